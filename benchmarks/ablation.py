r"""The contribution of each part of the default profile to detection, on recorded rounds.

    python benchmarks/ablation.py records/*.npz

Each row changes one setting or replaces one stage of the default profile. Recall and false positive rate (honest
clients rejected) are means over the records; for the last column the attackers are removed from the record.
"Homogeneous" are records with a uniform split of the data, "heterogeneous" those with a Dirichlet partition.

A replay decides the recorded updates. It cannot show the effects of a decision: in a real run other accepted clients
lead to another model, and to other updates. It also cannot show the contribution of clipping, consensus and rollback,
which change only the model. Use real runs for these; the last two defences are the median and the mean in place of the
consensus:

    cd benchmarks && g2uardfl sweep --attack black_box --defense g2uardfl g2uardfl,rollback=false \
        g2uardfl,dissent=0.5 g2uardfl,profile=ablation:PlainMean
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detectors import spectral, split_of, with_truth
from g2uardfl import G2uardFL
from g2uardfl.aggregators.base import ClientId, Round
from g2uardfl.core.numerics import Array
from g2uardfl.defense.agreement import Default
from g2uardfl.defense.agreement.clustering import GroupClustering, GroupClusters
from g2uardfl.defense.agreement.construction import SimilarityConstruction, SubmissionGraph
from g2uardfl.defense.agreement.elimination import RobustStepAndRollback
from g2uardfl.defense.agreement.filtering import AgreementJudgement, ReputationFiltering
from g2uardfl.defense.agreement.groups import MIN_OTHERS, Group
from g2uardfl.defense.agreement.reputation import Reputation
from g2uardfl.defense.agreement.shapes import UsualShapes
from g2uardfl.defense.agreement.window import Window
from g2uardfl.defense.observation import Observation
from g2uardfl.defense.recording import without
from g2uardfl.defense.stages import Mask, Prior, Step


class ForgetfulConstruction(SimilarityConstruction):
    """The graph of this round's submissions alone."""

    def build(self, number: int, observation: Observation) -> SubmissionGraph:
        """Forget earlier rounds first."""
        self.window = Window(self.settings.window)
        return super().build(number, observation)


class SpectralClustering(GroupClustering):
    """Always finds one group: the smaller of two clusters of the similarity graph."""

    def cluster(self, evidence: SubmissionGraph, prior: Prior) -> GroupClusters:
        """Spectral clustering of the positive edges."""
        members = np.zeros(len(evidence.nodes), dtype=bool)
        if len(set(evidence.nodes)) >= MIN_OTHERS + 2:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scikit-learn warns of graphs that are not connected
                labels = spectral(np.maximum(evidence.edges, 0.0))
            members = labels == np.bincount(labels, minlength=2).argmin()
        groups = (Group(members * 1.0, math.nan, math.nan),) if members.any() else ()
        return GroupClusters(members.astype(np.int64), members * 1.0, groups)


class NoShapes(UsualShapes):
    """Finds no outliers; the usual norm is as in the default profile."""

    def z_scores(self, shapes: Array, trusted: Mask, allowed: float) -> Array:
        """All zero."""
        return np.zeros_like(super().z_scores(shapes, trusted, allowed))


class OutlierAcceptingFiltering(ReputationFiltering):
    """Flags the members of groups only."""

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.shapes = NoShapes()


class NoReputation(Reputation):
    """Treats every client as a new one."""

    def read(self, clients: Sequence[ClientId]) -> Array:
        """No counts."""
        return np.zeros((len(clients), 2))


class ForgivingFiltering(ReputationFiltering):
    """Decides each round without reputations."""

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.reputation = NoReputation()


class MeanElimination(RobustStepAndRollback):
    """Moves the model by the mean of the accepted, clipped updates, whether clients learn the same or not."""

    def step(self, round_: Round, evidence: SubmissionGraph, judgement: AgreementJudgement) -> Step:
        """The mean; whether to roll back is decided as in the default profile."""
        step = super().step(round_, evidence, judgement)
        return step if step.restored is not None else replace(step, vector=round_.weighted_sum(step.weights))


class Forgetful(Default):
    """The default profile without earlier rounds."""

    construction = ForgetfulConstruction


class Spectral(Default):
    """The default profile with spectral clustering."""

    clustering = SpectralClustering


class OutlierAccepting(Default):
    """The default profile without the limits on norms and peaks."""

    filtering = OutlierAcceptingFiltering


class Forgiving(Default):
    """The default profile without reputations."""

    filtering = ForgivingFiltering


class PlainMean(Default):
    """The default profile without consensus. A replay cannot distinguish it from the default profile."""

    elimination = MeanElimination


ROWS: dict[str, dict[str, Any]] = {
    "all": {},
    "without earlier rounds": {"profile": "ablation:Forgetful"},
    "without groups": {"max_malicious_share": 1e-9},
    "without a lead over other groups": {"false_alarm_rate": 0.5},
    "without outliers": {"profile": "ablation:OutlierAccepting"},
    "without reputations": {"profile": "ablation:Forgiving"},
    "with spectral clustering": {"profile": "ablation:Spectral"},
}
"""Each row with its changes to the guard."""
COLUMNS = ["recall", "false positive rate", "false positive rate without attackers"]


def figures_of(path: Path, settings: dict[str, Any]) -> dict[str, float]:
    """The shares in `COLUMNS` for one record; without recall where nobody attacks."""
    torch.set_num_threads(1)
    record = with_truth(path)
    figures = {}
    for honest_only in (False, True):
        guard = G2uardFL(**{"seed": 0, **settings})
        rejected: dict[bool, list[bool]] = {True: [], False: []}
        for observation, attacking in zip(record.rounds, record.attacking, strict=True):
            if honest_only and attacking.all():
                continue
            verdicts = guard.judge(without(observation, attacking) if honest_only else observation)
            for client, attacks in zip(observation.clients, attacking, strict=True):
                if client in verdicts:
                    rejected[bool(attacks)].append(verdicts[client].refused)
        if honest_only:
            figures[COLUMNS[2]] = statistics.fmean(rejected[False])
        elif rejected[True]:
            figures[COLUMNS[0]] = statistics.fmean(rejected[True])
            figures[COLUMNS[1]] = statistics.fmean(rejected[False])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", metavar="RECORD")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS], metavar="ROW")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    jobs = list(product(arguments.rows, arguments.records))
    splits = {path: split_of(with_truth(path)) for path in arguments.records}
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = pool.map(figures_of, [path for _, path in jobs], [ROWS[row] for row, _ in jobs])
        for (row, path), figures in zip(jobs, results, strict=True):
            kind = "homogeneous" if splits[path] == "iid" else "heterogeneous"
            for column, share in figures.items():
                found[row, kind, column].append(100 * share)
    columns = list(product(("homogeneous", "heterogeneous"), COLUMNS))
    heads = [f"{column}, {kind} %" for kind, column in columns]
    print(f"{len(arguments.records)} records\n\n| | " + " | ".join(heads) + " |\n|---" + "|---" * len(heads) + "|")
    for row in arguments.rows:
        cells = [found[row, kind, column] for kind, column in columns]
        print(f"| {row} | " + " | ".join(f"{statistics.fmean(cell):.1f}" if cell else "-" for cell in cells) + " |")


if __name__ == "__main__":
    main()
