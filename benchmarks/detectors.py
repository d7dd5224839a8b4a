"""Detectors on recorded rounds: who tells attackers apart, and who refuses honest clients when nobody attacks.

    python benchmarks/detectors.py records/*.npz --only "agreement graph" "one propagation"

Records come from `g2uardfl run --record` or `make_records.py`; task, α and whether the model was poisoned are read from
their file names, and attacks are pooled. The first table is the mean adjusted Rand index against the truth, over the
rounds with at least two attackers and two others. The second is the share of honest clients refused after the attackers
were taken out of the record: a detector that always cuts in two refuses its smaller cluster. The third says who was
refused by how many attackers a round had.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from itertools import repeat
from pathlib import Path

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
from g2uardfl.defense.paper.clustering import GraphAutoEncoder, _glorot, normalised_adjacency
from g2uardfl.defense.paper.relations import adjacency, edge_strengths
from g2uardfl.defense.recording import Record
from g2uardfl.simulation.metrics import Detection

COSINE_INPUT = 3.0
"""What update cosines weigh among the inputs of a graph detector; the attributes together weigh 1."""
COSINE_RELATION = 9.0
"""What the update cosine weighs among the relations; the paper's three weigh 1 each."""
HIDDEN, LATENT, STEPS, RATE = 32, 32, 150, 0.01
MANY = 5
"""From how many attackers of a round on they are counted together."""
_FEWEST = 3
"""Below this many clients nobody is refused, as in the guard."""

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Decision:
    """What a detector says about the clients of a round."""

    labels: Labels
    """The cluster of each client."""
    refused: npt.NDArray[np.bool_]


Decide = Callable[[Observation], Decision]


def update_cosines(products: InnerProducts) -> Array:
    """The cosines of the clients' updates over the whole model, (clients x clients)."""
    uu = products.total.uu[0]
    squared = np.diagonal(uu)
    return cosine(uu, squared[:, None], squared[None, :])


def inputs(observation: Observation, cosine_weight: float) -> Array:
    """[attributes / sqrt(their number) | cosine_weight * update cosines / sqrt(clients)], both as z-scores."""
    attributes = normalised_attributes(observation.attributes)
    cosines = z_scores(update_cosines(observation.products), axis=0)
    return np.hstack([attributes / np.sqrt(attributes.shape[1]), cosine_weight * cosines / np.sqrt(len(cosines))])


def graph(products: InnerProducts) -> Array:
    """The paper's three relations and the update cosine as a fourth, weighed."""
    fourth = edge_strengths(z_scores(update_cosines(products), axis=None), "similarity")
    edges: Array = (3 * adjacency(products) + COSINE_RELATION * fourth) / (3 + COSINE_RELATION)
    return edges


def propagated(observation: Observation) -> Array:
    """The mean of each client's inputs and its neighbours', by the strength of their edges."""
    edges = graph(observation.products)
    np.fill_diagonal(edges, 1.0)
    means: Array = edges @ inputs(observation, COSINE_INPUT) / edges.sum(axis=1, keepdims=True)
    return means


def embedded(observation: Observation) -> Array:
    """Z of an auto-encoder that reconstructs edges, by sigmoid(Z Zᵀ + bias), and attributes, linearly."""
    edges = graph(observation.products)
    features = inputs(observation, COSINE_INPUT)
    propagation, target = torch.from_numpy(normalised_adjacency(edges)), torch.from_numpy(edges)
    first = propagation @ torch.from_numpy(features)
    attributes = torch.from_numpy(features[:, : observation.attributes.shape[1]].copy())
    others = ~torch.eye(len(edges), dtype=torch.bool)

    encoder = GraphAutoEncoder(features.shape[1], HIDDEN, LATENT, seed=0)
    edge_bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    # A decoder that starts at zero teaches the encoder nothing while the edges already pull it together.
    decoder = _glorot(LATENT, attributes.shape[1], torch.Generator().manual_seed(1))
    decoder_bias = torch.zeros(attributes.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([*encoder.parameters(), edge_bias, decoder, decoder_bias], lr=RATE)
    for _ in range(STEPS):
        latent = encoder.encode(first, propagation)
        logits = (latent @ latent.T + edge_bias)[others]
        edge_loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target[others])
        missed = latent @ decoder + decoder_bias - attributes
        optimizer.zero_grad()
        (edge_loss + missed.square().sum(dim=1).mean()).backward()
        optimizer.step()
    with torch.no_grad():
        result: Array = encoder.encode(first, propagation).numpy()
    return result


def two_means(points: Array) -> Labels:
    """Which of two clusters each row is in."""
    return KMeans(2, n_init=10, random_state=0).fit_predict(points).astype(np.int64)


def spectral(observation: Observation) -> Labels:
    """Spectral clustering of the weighed graph."""
    model = SpectralClustering(2, affinity="precomputed", random_state=0)
    return model.fit_predict(graph(observation.products)).astype(np.int64)


def cutting(cut: Callable[[Observation], Labels]) -> Callable[[], Decide]:
    """A detector without memory that refuses the smaller of two clusters."""

    def decide(observation: Observation) -> Decision:
        if len(observation.clients) < _FEWEST:
            nobody = np.zeros(len(observation.clients), dtype=np.int64)
            return Decision(nobody, nobody > 0)
        with warnings.catch_warnings():
            # Clients that sent the same and graphs in pieces are clustered all the same.
            warnings.simplefilter("ignore")
            labels = cut(observation)
        smaller = np.bincount(labels, minlength=2).argmin()
        return Decision(labels, labels == smaller)

    return lambda: decide


def guarding(profile: str) -> Callable[[], Decide]:
    """The guard with a fresh memory; its clusters are the paper's, or the accepted and the refused."""

    def begin() -> Decide:
        guard = G2uardFL(profile, seed=0)

        def decide(observation: Observation) -> Decision:
            judged = guard.judge(observation)
            verdicts = [judged[client] for client in observation.clients]
            refused = np.array([verdict.refused for verdict in verdicts])
            if profile == "paper":
                return Decision(np.array([verdict.cluster or 0 for verdict in verdicts]), refused)
            return Decision(refused.astype(np.int64), refused)

        return decide

    return begin


DETECTORS: dict[str, Callable[[], Decide]] = {
    "2-means on the attributes": cutting(lambda seen: two_means(normalised_attributes(seen.attributes))),
    "2-means on attributes and update cosines": cutting(lambda seen: two_means(inputs(seen, 1.0))),
    "auto-encoder, paper": guarding("paper"),
    "auto-encoder, improved": cutting(lambda seen: two_means(embedded(seen))),
    "one propagation": cutting(lambda seen: two_means(propagated(seen))),
    "spectral clustering": cutting(spectral),
    "agreement graph": guarding("default"),
}
"""Each entry begins a detector anew, for one record."""


def without(observation: Observation, left_out: npt.NDArray[np.bool_]) -> Observation:
    """The round as it would have been seen had some clients not taken part."""
    kept = np.flatnonzero(~left_out)
    products = observation.products
    return replace(
        observation,
        clients=tuple(observation.clients[row] for row in kept),
        attributes=observation.attributes[kept],
        products=InnerProducts(products.gg, products.gu[:, kept], products.uu[:, kept][:, :, kept]),
        centred=observation.centred[:, kept][:, :, kept],
        along_step=observation.along_step[:, kept],
        shapes=observation.shapes[kept],
        directions=observation.directions[kept],
    )


@dataclass
class Tally:
    """What a detector did on some records."""

    indices: list[float] = field(default_factory=list)
    """The adjusted Rand index of each round that can tell."""
    refused: int = 0
    honest: int = 0
    """Submissions of honest clients, and how many were refused, with nobody attacking."""
    by_attackers: dict[int, Detection] = field(default_factory=lambda: defaultdict(Detection))
    """Who was refused in rounds with so many attackers."""
    seconds: float = 0.0
    rounds: int = 0

    def add(self, record: Record, begin: Callable[[], Decide]) -> None:
        """Decide the rounds of `record` in turn, and again with the attackers left out."""
        began = time.perf_counter()
        if any(truth.any() for truth in record.attacking):
            decide = begin()
            for observation, truth in zip(record.rounds, record.attacking, strict=True):
                decision = decide(observation)
                refused, attacking = np.flatnonzero(decision.refused), np.flatnonzero(truth)
                self.by_attackers[min(len(attacking), MANY)].add(refused, attacking, range(len(truth)))
                if 2 <= truth.sum() <= len(truth) - 2:
                    self.indices.append(float(adjusted_rand_score(truth, decision.labels)))
            self.rounds += len(record.rounds)
        decide = begin()
        for observation, truth in zip(record.rounds, record.attacking, strict=True):
            refused = decide(without(observation, truth)).refused if not truth.all() else np.zeros(0)
            self.refused, self.honest = self.refused + int(refused.sum()), self.honest + len(refused)
        self.rounds += len(record.rounds)
        self.seconds += time.perf_counter() - began


def group_of(path: Path) -> str:
    """The row a record belongs to: task, start and how the data was divided, from the file's name.

    >>> group_of(Path("mnist-dba-alpha0.5-pmr0.25-poisoned-seed0.npz"))
    'mnist, poisoned, α 0.5'
    """
    start = "poisoned" if re.search("defend_from|poisoned", path.name) else "clean"
    alpha = re.search(r"alpha(inf|[\d.]+\d)", path.name)
    division = "iid" if alpha is None or alpha[1] == "inf" else f"α {alpha[1]}"
    return f"{path.name.split('-')[0]}, {start}, {division}"


def compare(paths: list[Path], names: list[str], processes: int = 1) -> dict[str, dict[str, Tally]]:
    """Group -> detector -> its tally; groups go side by side in processes."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(paths, key=group_of):
        groups.setdefault(group_of(path), []).append(path)
    if processes == 1:
        return {group: tallied(records, names) for group, records in groups.items()}
    with ProcessPoolExecutor(processes) as pool:
        return dict(zip(groups, pool.map(tallied, groups.values(), repeat(names)), strict=True))


def tallied(paths: list[Path], names: list[str]) -> dict[str, Tally]:
    """Detector -> its tally over some records."""
    tallies = {name: Tally() for name in names}
    with one_thread():
        for path in paths:
            record = Record.load(path)
            if not record.attacking:
                raise SystemExit(f"{path} does not say who attacked: record it in a simulation")
            for name, tally in tallies.items():
                tally.add(record, DETECTORS[name])
    return tallies


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
    lines += ["", *head("benign clients refused, %, nobody attacking (submissions)")]
    for group, found in tallies.items():
        shares = [f"{100 * found[name].refused / found[name].honest:.1f}" for name in names]
        lines.append(row(f"{group} ({found[names[0]].honest})", shares))
    spent = [sum(group[name].seconds for group in tallies.values()) for name in names]
    rounds = sum(group[names[0]].rounds for group in tallies.values())
    lines.append(row("seconds a round", [f"{seconds / rounds:.4f}" for seconds in spent]))
    lines += ["", *head("attackers of a round: % of them and of the others refused (rounds' clients)")]
    for count in range(MANY + 1):
        pooled = [together([group[name].by_attackers[count] for group in tallies.values()]) for name in names]
        title = f"{count} or more" if count == MANY else str(count)
        lines.append(row(f"{title} ({sum(astuple(pooled[0]))})", [error_rates(one) for one in pooled]))
    return "\n".join(lines)


def together(parts: list[Detection]) -> Detection:
    """The counts of several."""
    return Detection(*(sum(counts) for counts in zip(*map(astuple, parts), strict=True)))


def error_rates(counts: Detection) -> str:
    """The attackers and the others who were refused, in percent; a dash where there are none.

    >>> error_rates(Detection(true_positives=3, false_negatives=1))
    '75.0 / -'
    """
    attackers = counts.true_positives + counts.false_negatives
    honest = counts.false_positives + counts.true_negatives
    recall = f"{100 * counts.true_positives / attackers:.1f}" if attackers else "-"
    return f"{recall} / {100 * counts.false_positives / honest:.1f}" if honest else f"{recall} / -"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--only", nargs="+", choices=list(DETECTORS), default=list(DETECTORS), metavar="NAME")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    print(tables(compare(arguments.records, arguments.only, arguments.processes), arguments.only))


if __name__ == "__main__":
    main()
