"""Reasons of the paper's verdicts: each names the numbers that decided."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.paper.autoencoder import LatentClusters
from g2uardfl.defense.paper.reasons import explain
from g2uardfl.defense.paper.scoring import filter_clients
from helpers import reference

NAMES = ["norm of the update", "sum of the update", "maximum of the weights"]
POSITIONS = [0.0, 0.1, 0.2, 3.0, 0.3, 10.0, 10.1, 21.0]
SCORES = np.array([0.5, 0.5, 0.5, 0.5, -0.6, 0.1, 0.1, -0.9])
"""Clients 0 to 4 are in the benign cluster, of whom 3 is far from its centre and 4 has a low score; 5 and 6 are in a
cluster between the benign and the malicious one, in which client 7 is alone."""


@pytest.fixture(scope="module")
def reasons() -> list[str]:
    latent, centres = np.array(POSITIONS)[:, None], np.array([[0.0], [10.0], [21.0]])
    clusters = LatentClusters.of(latent, centres, reference.soft_assignment(latent, centres))
    limits = {"score_percentile": 20.0, "distance_percentile": 80.0}
    chosen = filter_clients(clusters, SCORES, size_weight=0.3, **limits)
    attributes = np.zeros((8, 3))
    attributes[7] = [2.5, 0.0, -4.0]
    attributes[5] = [0.0, 1.5, 0.0]
    return explain(chosen, clusters, scores=SCORES, attributes=attributes, attribute_names=NAMES, **limits)


@pytest.mark.parametrize(
    ("client", "parts"),
    [
        (0, ["In the benign cluster (5 of 8 clients, mean benign score +0.280)", "at distance 0 from its centre"]),
        (3, ["In the benign cluster", "distance 3 from the centre is above the 80th percentile"]),
        (4, ["In the benign cluster", "benign score -0.600 is below the 20th percentile"]),
        (5, ["between the benign and the malicious one (2 of 8 clients", "sum of the update (1.5", "above"]),
        (6, ["between the benign and the malicious one (2 of 8 clients, mean benign score +0.100)."]),
        (
            7,
            [
                "with the lowest score (1 of 8 clients, mean benign score -0.900)",
                "maximum of the weights (4.0",
                "below",
            ],
        ),
    ],
)
def test_a_reason_names_the_cluster_and_the_limit_or_the_difference_that_decided(reasons, client, parts):
    assert all(part in reasons[client] for part in parts), reasons[client]


def test_the_largest_difference_comes_first_and_at_most_two_are_named(reasons):
    weights, update = (reasons[7].index(name) for name in ("maximum of the weights", "norm of the update"))
    assert weights < update
    assert "sum of the update" not in reasons[7]


def test_every_reason_is_one_sentence(reasons):
    for reason in reasons:
        assert reason[0].isupper()
        assert reason.endswith(".")
        assert ". " not in reason
