"""How well the paper's graph auto-encoder tells attackers apart, for settings the paper does not give.

Records rounds of a federation under attack (the global model kept clean by averaging honest clients only, and again
with FedAvg, so that it is poisoned), then clusters every recorded round with each combination of settings and prints
the adjusted Rand index against the truth, beside 2-means on the attributes.

    python benchmarks/autoencoder_settings.py --task digits --rounds 40
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from g2uardfl import aggregators
from g2uardfl.aggregators.reading import read_messages
from g2uardfl.core.layout import ModelLayout
from g2uardfl.core.numerics import Array, inner_products
from g2uardfl.defense.paper.attributes import client_attributes, normalised_attributes
from g2uardfl.defense.paper.clustering import cluster_count, cluster_graph
from g2uardfl.defense.paper.relations import adjacency
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation


@dataclass(frozen=True)
class Recorded:
    """One round as the clustering sees it, and the truth."""

    attributes: Array
    edges: Array
    truth: list[bool]


def record(task: str, rounds: int, seed: int, *, poisoned: bool, data_dir: str) -> list[Recorded]:
    """Rounds with at least two attackers and two honest clients."""
    config = RunConfig(task=task, attack="black_box", rounds=rounds, seed=seed, data_dir=data_dir)
    simulation = Simulation(config)
    simulation.prepare()
    average = aggregators.create("fedavg")
    recorded, last, step = [], None, None
    for number in range(1, rounds + 1):
        selected = [int(client) for client in simulation.schedule.selected[number - 1]]
        attackers = simulation.malicious(number)
        turn = simulation._turn(number, selected, [client for client in selected if client in attackers])
        sent = simulation._train(turn, selected)
        layout = ModelLayout.of(simulation.weights)
        round_ = read_messages(layout, simulation.weights, sent)
        products = inner_products(round_.updates, round_.global_vector, [layer.columns for layer in layout.layers])
        step = round_.global_vector - last if last is not None else round_.global_vector * 0
        last = round_.global_vector
        raw = client_attributes(round_.updates, round_.global_vector, [step] * len(selected), layout.layers, products)
        truth = [client in attackers for client in round_.clients]
        if 2 <= sum(truth) <= len(truth) - 2:
            recorded.append(Recorded(normalised_attributes(raw), adjacency(products), truth))
        honest = {client: weights for client, weights in sent.items() if poisoned or client not in attackers}
        simulation.weights = average.aggregate(simulation.weights, honest, dict.fromkeys(honest, 1)).weights
    return recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", default="")
    arguments = parser.parse_args()
    sets = {
        name: record(arguments.task, arguments.rounds, arguments.seed, poisoned=poisoned, data_dir=arguments.data_dir)
        for name, poisoned in (("clean", False), ("poisoned", True))
    }
    print(f"{arguments.task}, seed {arguments.seed}: {', '.join(f'{len(s)} {n} rounds' for n, s in sets.items())}")

    def two_means(recorded: Recorded) -> np.ndarray:
        return KMeans(2, n_init=10, random_state=0).fit_predict(recorded.attributes)

    print(f"{'2-means on the attributes':58}", *(score(two_means, rounds) for rounds in sets.values()))
    grid = itertools.product((32, 64), (10, 30, 100), (10, 30, 100), (0.001, 0.01, 0.05), (0.01, 0.1, 1.0))
    rows = []
    for hidden, pretrain, cluster, rate, weight in grid:

        def auto_encoder(
            recorded: Recorded, hidden: int = hidden, pretrain: int = pretrain, cluster: int = cluster,
            rate: float = rate, weight: float = weight,
        ) -> np.ndarray:  # fmt: skip
            return cluster_graph(
                0.9 * recorded.attributes, 0.9 * recorded.edges, hidden_dim=hidden, latent_dim=32,
                clusters=cluster_count(recorded.attributes, min_clusters=2, min_cluster_size=2),
                pretrain_epochs=pretrain, cluster_epochs=cluster, learning_rate=rate, clustering_weight=weight, seed=0,
            ).labels  # fmt: skip

        label = f"hidden {hidden}, E_p {pretrain}, E_c {cluster}, rate {rate}, lambda {weight}"
        rows.append((label, [score(auto_encoder, rounds) for rounds in sets.values()]))
    for label, scores in sorted(rows, key=lambda row: -float(row[1][0].split()[0])):
        print(f"{label:58}", *scores)


def score(cluster, rounds: list[Recorded]) -> str:  # noqa: ANN001
    """Mean adjusted Rand index and mean number of clusters that were filled."""
    labels = [cluster(recorded) for recorded in rounds]
    index = statistics.fmean(adjusted_rand_score(r.truth, found) for r, found in zip(rounds, labels, strict=True))
    filled = statistics.fmean(len(np.unique(found)) for found in labels)
    return f"{index:6.2f} ({filled:.1f} clusters)"


if __name__ == "__main__":
    main()
