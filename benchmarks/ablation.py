r"""The worth of each ingredient of the default profile for detection, on recorded rounds.

    python benchmarks/ablation.py records/*.npz

Each row changes one setting or replaces one stage of the default profile. Recall and false positive rate (honest
clients rejected) are means over the records; for the last column the attackers are removed from the record.
"Homogeneous" are records with a uniform split of the data, "heterogeneous" those with a Dirichlet partition.

A replay decides the recorded updates. It cannot show what follows from a decision: in a real run other accepted clients
lead to another model, and to other updates. Nor can it show the worth of what changes the model alone, which is
clipping, consensus, rollback and elimination. Use real runs for these; the last two defences are the median and the
mean in place of the consensus:

    cd benchmarks && g2uardfl sweep --attack black_box --defense g2uardfl g2uardfl,rollback=false \
        g2uardfl,eliminate=false g2uardfl,dissent=0.5 g2uardfl,profile=ablation:PlainMean
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detectors import spectral, split_of, with_truth
from g2uardfl import G2uardFL
from g2uardfl.aggregators.base import Round
from g2uardfl.core.numerics import Array
from g2uardfl.defense.agreement import Default
from g2uardfl.defense.agreement.clustering import CommunityClustering, CommunityClusters, SubmissionPrior
from g2uardfl.defense.agreement.communities import MIN_CLIENTS, Community
from g2uardfl.defense.agreement.construction import NoiseJudgement, SimilarityConstruction, SubmissionGraph
from g2uardfl.defense.agreement.elimination import RollbackAndElimination
from g2uardfl.defense.agreement.filtering import AgreementJudgement, ReputationFiltering
from g2uardfl.defense.agreement.shapes import UsualShapes
from g2uardfl.defense.agreement.twins import find_twins
from g2uardfl.defense.agreement.window import Window
from g2uardfl.defense.observation import Observation
from g2uardfl.defense.recording import without
from g2uardfl.defense.stages import Step


class ForgetfulConstruction(SimilarityConstruction):
    """The graph of this round's submissions alone."""

    def build(self, number: int, observation: Observation) -> SubmissionGraph:
        """Forget earlier rounds first."""
        self.window = Window(self.settings.window)
        return super().build(number, observation)


class NoiseKeepingConstruction(SimilarityConstruction):
    """Keeps noise in the window."""

    def learn(self, evidence: SubmissionGraph, judgement: NoiseJudgement) -> None:
        """Treat no submission as noise."""
        super().learn(evidence, replace(judgement, noise=np.zeros_like(judgement.noise)))


class TrustingClustering(CommunityClustering):
    """Searches for communities without knowing whom the filtering suspects."""

    def cluster(self, evidence: SubmissionGraph, prior: SubmissionPrior) -> CommunityClusters:
        """Treat no submission as a suspect's."""
        return super().cluster(evidence, replace(prior, suspects=np.zeros_like(prior.suspects)))


class SpectralClustering(CommunityClustering):
    """Always finds one community: the smaller of two clusters of the similarity graph."""

    def cluster(self, evidence: SubmissionGraph, prior: SubmissionPrior) -> CommunityClusters:
        """Spectral clustering of the positive edges; twins as in the default profile."""
        members = np.zeros(len(evidence.nodes), dtype=bool)
        if len(set(evidence.nodes)) >= MIN_CLIENTS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scikit-learn warns of graphs that are not connected
                labels = spectral(np.maximum(evidence.edges, 0.0))
            members = labels == np.bincount(labels, minlength=2).argmin()
        communities: tuple[Community, ...] = ()
        if members.any():
            inner = evidence.edges[np.ix_(members, members)]
            communities = (Community(math.nan, float(inner.sum(axis=1).mean()), members * 1.0, float(inner.mean())),)
        twins = find_twins(evidence.edges, evidence.rounds, prior.suspects, self.settings.twin_similarity)
        return CommunityClusters(members.astype(np.int64), members * 1.0, communities, twins=tuple(twins))


class CredulousShapes(UsualShapes):
    """Counts every client in full in what is usual, and may convict most of a round."""

    def add(self, shapes: Array, weights: Array) -> None:
        """With equal weights."""
        super().add(shapes, np.ones(len(shapes)))

    def z_scores(self, shapes: Array, weights: Array, allowed: float) -> Array:
        """Without the rule that a round convicts no majority."""
        return super().z_scores(shapes, np.zeros(len(shapes)), allowed)


class CredulousFiltering(ReputationFiltering):
    """Lets clients of bad reputation and members of communities determine which shapes are usual."""

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.shapes = CredulousShapes()


class HomogeneousClustering(CommunityClustering):
    """Requires the same lead of communities, however heterogeneous the clients are."""

    def cluster(self, evidence: SubmissionGraph, prior: SubmissionPrior) -> CommunityClusters:
        """Treat clients as if they had the same kind of data."""
        return super().cluster(evidence, replace(prior, heterogeneity=1.0))


class MeanElimination(RollbackAndElimination):
    """Moves the model by the mean of the accepted, clipped updates, whether clients learn the same or not."""

    def step(self, round_: Round, evidence: SubmissionGraph, judgement: AgreementJudgement) -> Step:
        """A step without consensus; whether to roll back or remove is decided as in the default profile."""
        step = super().step(round_, evidence, judgement)
        return step if step.restored is not None else replace(step, vector=round_.weighted_sum(step.weights))


class Forgetful(Default):
    """The default profile without earlier rounds."""

    construction = ForgetfulConstruction


class NoiseKeeping(Default):
    """The default profile with noise in its window."""

    construction = NoiseKeepingConstruction


class Trusting(Default):
    """The default profile whose clustering knows no suspects."""

    clustering = TrustingClustering


class Spectral(Default):
    """The default profile with spectral clustering."""

    clustering = SpectralClustering


class Credulous(Default):
    """The default profile in which every client determines what is usual."""

    filtering = CredulousFiltering


class Homogeneous(Default):
    """The default profile with one lead for all federations."""

    clustering = HomogeneousClustering


class PlainMean(Default):
    """The default profile without consensus. A replay cannot tell it from the default profile."""

    elimination = MeanElimination


ROWS: dict[str, dict[str, Any]] = {
    "all": {},
    "without earlier rounds": {"profile": "ablation:Forgetful"},
    "without communities": {"min_evidence": math.inf},
    "without a lead over other communities": {"min_lead": 0.0},
    "without a larger lead among heterogeneous clients": {"profile": "ablation:Homogeneous"},
    "without outliers": {"outlier_z_score": 1e9},
    "with usual shapes of all clients alike": {"profile": "ablation:Credulous"},
    "without twins": {"twin_similarity": math.inf},
    "without reputations": {"reputation_weight": 0.0, "min_reputation": -1.0},
    "without suspects in the clustering": {"profile": "ablation:Trusting"},
    "with noise in the window": {"profile": "ablation:NoiseKeeping"},
    "with spectral clustering": {"profile": "ablation:Spectral"},
}
"""Each row with what it changes of the guard."""
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
