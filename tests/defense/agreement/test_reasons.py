"""Reasons of verdicts: what was found, with whom, since when, in which layers, and its honest causes."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.agreement.clustering import GroupClusters
from g2uardfl.defense.agreement.groups import Group
from g2uardfl.defense.agreement.reasons import reasons
from helpers.graphs import drawn_sketches, evidence_of

NAMES = ("a", "b", "c", "d", "e")
ATTACKERS = ("a", "b")


def evidence():
    """Three rounds of five clients, of whom two send similar updates from round 2 on, in "layer 1" alone."""
    rounds = []
    for number in range(3):
        sketches = drawn_sketches(number, 5, 3, 512)
        if number:
            sketches[:2, 1] = drawn_sketches(9, 1, 512)
        rounds.append((NAMES, sketches))
    shapes = np.tile([0.0, -3.0], (5, 1))
    shapes[:, 0] = np.log([3.0, 1.0, 50.0, 1.0, 1.0])
    return evidence_of(*rounds, shapes=shapes)


def reasons_of(usual_norm: float = 1.0) -> dict[str, str]:
    """In a group: a and b; an outlier: c; held out: d; accepted: e."""
    graph = evidence()
    members = np.array([name in ATTACKERS for name in graph.nodes]) & (graph.rounds > 1)
    group = Group(members * 0.9, 20.0, 4.2)
    clusters = GroupClusters(members.astype(np.int64), members * 0.9, (group,))
    outliers, accepted = (np.array([name in some for name in NAMES]) for some in ("c", "e"))
    scores = np.array([-0.6, -0.6, -0.3, -0.55, 0.4])
    return dict(zip(NAMES, reasons(graph, clusters, outliers, accepted, scores, usual_norm), strict=True))


def test_all_reasons_are_sentences():
    for reason in reasons_of().values():
        assert reason[0].isupper()
        assert reason.endswith(".")


@pytest.mark.parametrize(
    ("client", "parts"),
    [
        pytest.param("a", ["Flagged as malicious", "2 updates of 1 other clients", "'b'"], id="other clients"),
        pytest.param("a", ["since round 2"], id="first round"),
        pytest.param("a", ["most in layer 1 (cosine 1.00), layer"], id="layers"),
        pytest.param("a", ["norm 3 times the usual"], id="norm"),
        pytest.param("a", ["scores 4.2 times as high as any other"], id="lead"),
        pytest.param("a", ["Honest causes: the same or copied data"], id="honest cause"),
        pytest.param("c", ["outlier", "norm 50 times the usual", "0.05 of the norm"], id="outlier"),
        pytest.param("c", ["Honest causes: another learning rate"], id="honest cause of an outlier"),
        pytest.param("d", ["Held out", "benign score -0.55"], id="held out"),
        pytest.param("e", ["Accepted", "no group", "norm 1 times the usual"], id="accepted"),
    ],
)
def test_a_reason_names_what_decided(client, parts):
    reason = reasons_of()[client]
    assert [part for part in parts if part not in reason] == []


def test_a_reason_states_the_mean_edge_to_the_other_members():
    graph = evidence()
    edges = [graph.edges[10, place] for place in range(15) if graph.nodes[place] == "b" and graph.rounds[place] > 1]
    assert f"(mean z-score {sum(edges) / len(edges):.1f})" in reasons_of()["a"]


def test_a_member_is_not_named_among_those_it_is_similar_to():
    assert "'a'" not in reasons_of()["a"]


def test_a_reason_says_that_no_norm_is_known_yet():
    assert "no usual norm yet" in reasons_of(usual_norm=0.0)["e"]
