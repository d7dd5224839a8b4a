"""Detectors on recorded rounds: how well they separate attackers, and how often they reject honest clients.

    python benchmarks/detectors.py records/*.npz --only "default profile" "one propagation"

Records come from `make_records.py` or from `g2uardfl run` and `sweep` with `--record`. Task, α and whether the model
was poisoned are read from their notes, and attacks are pooled. The first table shows the mean adjusted Rand index of
the clusters against the ground truth, over the rounds with at least two attackers and two honest clients. The second
shows false positive rates (honest clients rejected) with the attackers removed from the record: a detector that always
makes two clusters rejects the smaller one. The third shows recall and false positive rate by the number of attackers in
a round.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.metrics import adjusted_rand_score

from g2uardfl import G2uardFL
from g2uardfl.core.numerics import Array, InnerProducts, cosine, z_scores
from g2uardfl.core.threads import one_thread
from g2uardfl.defense.observation import Observation
from g2uardfl.defense.paper.attributes import normalised_attributes
from g2uardfl.defense.paper.autoencoder import GraphAutoEncoder, normalised_adjacency
from g2uardfl.defense.paper.relations import adjacency, edge_strengths
from g2uardfl.defense.recording import Record, without
from g2uardfl.simulation.metrics import Detection

COSINE_INPUT = 3.0
"""The weight of update cosines among the inputs of a graph detector; the attributes together weigh 1."""
COSINE_RELATION = 9.0
"""The weight of the update cosine among the relations; the paper's three weigh 1 each."""
HIDDEN, LATENT, STEPS, RATE = 32, 32, 150, 0.01
"""Layer widths, training steps and learning rate of the improved auto-encoder."""
MANY = 5
"""Rounds with at least this many attackers are counted together."""
MIN_CLIENTS = 3
"""With fewer clients nobody is rejected, as in the guard."""

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Decision:
    """A detector's decision about the clients of a round."""

    labels: Labels
    """The cluster of each client."""
    rejected: npt.NDArray[np.bool_]


Decide = Callable[[Observation], Decision]


def products_of(observation: Observation) -> InnerProducts:
    """The inner products of the updates."""
    return InnerProducts(observation["gg"], observation["gu"], observation["uu"])


def attributes_of(observation: Observation) -> Array:
    """The client attributes of this round as z-scores."""
    return normalised_attributes(observation["attributes"])


def update_cosines(products: InnerProducts) -> Array:
    """The cosines of the clients' updates over the whole model, (clients x clients)."""
    uu = products.total.uu[0]
    squared = np.diagonal(uu)
    return cosine(uu, squared[:, None], squared[None, :])


def inputs(observation: Observation, cosine_weight: float) -> Array:
    """[attributes / sqrt(their number) | cosine_weight * update cosines / sqrt(clients)], both as z-scores."""
    attributes = attributes_of(observation)
    cosines = z_scores(update_cosines(products_of(observation)), axis=0)
    return np.hstack([attributes / np.sqrt(attributes.shape[1]), cosine_weight * cosines / np.sqrt(len(cosines))])


def graph(observation: Observation) -> Array:
    """The weighted mean of the paper's three relations and the update cosine."""
    products = products_of(observation)
    fourth = edge_strengths(z_scores(update_cosines(products), axis=None), "similarity")
    edges: Array = (3 * adjacency(products) + COSINE_RELATION * fourth) / (3 + COSINE_RELATION)
    return edges


def propagated(observation: Observation) -> Array:
    """The mean of each client's inputs and its neighbours', weighted by the edges."""
    edges = graph(observation)
    np.fill_diagonal(edges, 1.0)
    means: Array = edges @ inputs(observation, COSINE_INPUT) / edges.sum(axis=1, keepdims=True)
    return means


def embedded(observation: Observation) -> Array:
    """Z of an auto-encoder that reconstructs edges, by sigmoid(Z Zᵀ + bias), and attributes, linearly."""
    edges = graph(observation)
    features = inputs(observation, COSINE_INPUT)
    propagation, target = torch.from_numpy(normalised_adjacency(edges)), torch.from_numpy(edges)
    first = propagation @ torch.from_numpy(features)
    attributes = torch.from_numpy(features[:, : observation["attributes"].shape[1]].copy())
    others = ~torch.eye(len(edges), dtype=torch.bool)

    encoder = GraphAutoEncoder(features.shape[1], HIDDEN, LATENT, seed=0)
    edge_bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    # From a decoder of zeros the encoder would learn nothing, while the edges already draw all clients together.
    decoder = torch.empty(LATENT, attributes.shape[1], dtype=torch.float64, requires_grad=True)
    torch.nn.init.xavier_uniform_(decoder, generator=torch.Generator().manual_seed(1))
    decoder_bias = torch.zeros(attributes.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([*encoder.parameters(), edge_bias, decoder, decoder_bias], lr=RATE)
    for _ in range(STEPS):
        latent = encoder.encode(first, propagation)
        logits = (latent @ latent.T + edge_bias)[others]
        edge_loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target[others])
        errors = latent @ decoder + decoder_bias - attributes
        optimizer.zero_grad()
        (edge_loss + errors.square().sum(dim=1).mean()).backward()
        optimizer.step()
    with torch.no_grad():
        result: Array = encoder.encode(first, propagation).numpy()
    return result


def two_means(points: Array) -> Labels:
    """The cluster of each row, of two."""
    return KMeans(2, n_init=10, random_state=0).fit_predict(points).astype(np.int64)


def spectral(edges: Array) -> Labels:
    """Spectral clustering of a graph in two."""
    model = SpectralClustering(2, affinity="precomputed", random_state=0)
    return model.fit_predict(edges).astype(np.int64)


def smaller_of_two(cluster: Callable[[Observation], Labels]) -> Callable[[], Decide]:
    """A detector without memory that rejects the smaller of two clusters."""

    def decide(observation: Observation) -> Decision:
        if len(observation.clients) < MIN_CLIENTS:
            one = np.zeros(len(observation.clients), dtype=np.int64)
            return Decision(one, one > 0)
        with warnings.catch_warnings():
            # scikit-learn warns of equal points and of graphs that are not connected.
            warnings.simplefilter("ignore")
            labels = cluster(observation)
        smaller = np.bincount(labels, minlength=2).argmin()
        return Decision(labels, labels == smaller)

    return lambda: decide


def guard(profile: str, **settings: Any) -> Callable[[], Decide]:
    """A guard, which begins each record with an empty memory.

    Its clusters are those of the paper's profile; in any other profile they are the accepted and the rejected clients.
    """

    def begin() -> Decide:
        rule = G2uardFL(profile, seed=0, **settings)

        def decide(observation: Observation) -> Decision:
            verdicts = rule.judge(observation)
            in_order = [verdicts[client] for client in observation.clients]
            rejected = np.array([verdict.refused for verdict in in_order])
            if profile == "paper":
                return Decision(np.array([verdict.cluster or 0 for verdict in in_order]), rejected)
            return Decision(rejected.astype(np.int64), rejected)

        return decide

    return begin


DETECTORS: dict[str, Callable[[], Decide]] = {
    "2-means on the attributes": smaller_of_two(lambda seen: two_means(attributes_of(seen))),
    "2-means on attributes and update cosines": smaller_of_two(lambda seen: two_means(inputs(seen, 1.0))),
    "paper profile": guard("paper"),
    "improved auto-encoder": smaller_of_two(lambda seen: two_means(embedded(seen))),
    "one propagation": smaller_of_two(lambda seen: two_means(propagated(seen))),
    "spectral clustering": smaller_of_two(lambda seen: spectral(graph(seen))),
    "default profile": guard("default"),
}
"""Each entry starts a detector afresh, for one record."""


def is_scored(truth: npt.NDArray[np.bool_]) -> bool:
    """Whether a round has at least two attackers and two honest clients, so that the Rand index is meaningful."""
    return bool(2 <= truth.sum() <= len(truth) - 2)


@dataclass
class Tally:
    """The results of a detector on some records."""

    indices: list[float] = field(default_factory=list)
    """The adjusted Rand index of each round that is scored."""
    rejected: int = 0
    """Rejected submissions of honest clients when nobody attacks."""
    honest: int = 0
    """All submissions of honest clients when nobody attacks."""
    by_attackers: dict[int, Detection] = field(default_factory=lambda: defaultdict(Detection))
    """Number of attackers -> the decisions in rounds with that many."""
    seconds: float = 0.0
    rounds: int = 0

    def add(self, record: Record, begin: Callable[[], Decide]) -> None:
        """Decide the rounds of `record` in turn, and again with the attackers removed."""
        began = time.perf_counter()
        if any(truth.any() for truth in record.attacking):
            decide = begin()
            for observation, truth in zip(record.rounds, record.attacking, strict=True):
                decision = decide(observation)
                rejected, attacking = np.flatnonzero(decision.rejected), np.flatnonzero(truth)
                self.by_attackers[min(len(attacking), MANY)].add(rejected, attacking, range(len(truth)))
                if is_scored(truth):
                    self.indices.append(float(adjusted_rand_score(truth, decision.labels)))
            self.rounds += len(record.rounds)
        decide = begin()
        for observation, truth in zip(record.rounds, record.attacking, strict=True):
            rejected = decide(without(observation, truth)).rejected if not truth.all() else np.zeros(0)
            self.rejected, self.honest = self.rejected + int(rejected.sum()), self.honest + len(rejected)
        self.rounds += len(record.rounds)
        self.seconds += time.perf_counter() - began


def split_of(record: Record) -> str:
    """The split of the data among clients: "iid", or Dirichlet's α.

    >>> split_of(Record([], [], notes={"alpha": 0.5}))
    'α 0.5'
    """
    alpha = _settings(record).get("alpha", math.inf)
    return "iid" if math.isinf(alpha) else f"α {alpha:g}"


def group_of(record: Record) -> str:
    """The row of a record in the tables: task, start and split of the data, from the record's notes.

    >>> group_of(Record([], [], notes={"task": "mnist", "alpha": 0.5, "clean": False}))
    'mnist, poisoned, α 0.5'
    """
    settings = _settings(record)
    start = "clean" if settings.get("clean", settings.get("defend_from", 1) == 1) else "poisoned"
    return f"{settings.get('task', 'unknown task')}, {start}, {split_of(record)}"


def _settings(record: Record) -> dict[str, Any]:
    """The settings of the run that was recorded."""
    config = record.notes.get("config")
    return record.notes if config is None else tomllib.loads(config)


def compare(paths: list[Path], names: list[str], processes: int = 1) -> dict[str, dict[str, Tally]]:
    """Group -> detector -> its tally; groups run in parallel processes."""
    groups: dict[str, list[Path]] = {}
    for group, path in sorted((group_of(Record.load(path)), path) for path in paths):
        groups.setdefault(group, []).append(path)
    if processes == 1:
        return {group: tallied(records, names) for group, records in groups.items()}
    with ProcessPoolExecutor(processes) as pool:
        return dict(zip(groups, pool.map(tallied, groups.values(), repeat(names)), strict=True))


def tallied(paths: list[Path], names: list[str]) -> dict[str, Tally]:
    """Detector -> its tally over some records."""
    tallies = {name: Tally() for name in names}
    with one_thread():
        for path in paths:
            record = with_truth(path)
            for name, tally in tallies.items():
                tally.add(record, DETECTORS[name])
    return tallies


def with_truth(path: Path) -> Record:
    """A record that says who attacked."""
    record = Record.load(path)
    if not record.attacking:
        raise SystemExit(f"{path} does not say who attacked: record it in a simulation")
    return record


def tables(tallies: dict[str, dict[str, Tally]], names: list[str]) -> str:
    """All tables, as Markdown."""

    def row(label: str, cells: list[str]) -> str:
        return f"| {' | '.join([label, *cells])} |"

    def head(title: str) -> list[str]:
        return [row(title, names), row("---", ["---:"] * len(names))]

    lines = head("adjusted Rand index (rounds)")
    for group, found in tallies.items():
        rounds = len(found[names[0]].indices)
        if rounds:
            lines.append(row(f"{group} ({rounds})", [f"{np.mean(found[name].indices):.2f}" for name in names]))
    lines += ["", *head("false positive rate without attackers, % (submissions)")]
    for group, found in tallies.items():
        shares = [f"{100 * found[name].rejected / found[name].honest:.1f}" for name in names]
        lines.append(row(f"{group} ({found[names[0]].honest})", shares))
    seconds = [sum(group[name].seconds for group in tallies.values()) for name in names]
    rounds = sum(group[names[0]].rounds for group in tallies.values())
    lines.append(row("seconds per round", [f"{one / rounds:.4f}" for one in seconds]))
    lines += ["", *head("attackers in a round: recall % / false positive rate % (submissions)")]
    for count in range(MANY + 1):
        pooled = [summed([group[name].by_attackers[count] for group in tallies.values()]) for name in names]
        title = f"{count} or more" if count == MANY else str(count)
        lines.append(row(f"{title} ({sum(astuple(pooled[0]))})", [error_rates(one) for one in pooled]))
    return "\n".join(lines)


def summed(parts: list[Detection]) -> Detection:
    """The sum of several counts."""
    return Detection(*(sum(counts) for counts in zip(*map(astuple, parts), strict=True)))


def error_rates(counts: Detection) -> str:
    """Recall and false positive rate in percent; a dash where there are no attackers or no honest clients.

    >>> error_rates(Detection(true_positives=3, false_negatives=1))
    '75.0 / -'
    """
    rates = (counts.recall, counts.benign_refused)
    return " / ".join("-" if rate is None else f"{100 * rate:.1f}" for rate in rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--only", nargs="+", choices=list(DETECTORS), default=list(DETECTORS), metavar="NAME")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    print(tables(compare(arguments.records, arguments.only, arguments.processes), arguments.only))


if __name__ == "__main__":
    main()
