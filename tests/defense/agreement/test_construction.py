"""The construction stage: the graph of the window, and what it knows of each submission."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.agreement.construction import ConstructionSettings, SimilarityConstruction
from g2uardfl.defense.agreement.observation import ObserverSettings, SketchObserver
from g2uardfl.defense.agreement.similarity import new_edges
from g2uardfl.defense.observation import Observation
from helpers.graphs import drawn_sketches, evidence_of


def test_the_graph_holds_the_submissions_of_the_window_and_this_rounds_come_last():
    first, second = drawn_sketches(0, 3, 2, 16), drawn_sketches(1, 4, 2, 16)
    shapes = np.column_stack([np.log([1.0, 2.0, 3.0, 4.0]), np.full(4, -3.0)])
    graph = evidence_of((["a", "b", 3], first), ([4, "b", "c", "a"], second), shapes=shapes)
    assert graph.nodes == ("a", "b", 3, 4, "b", "c", "a")
    assert graph.nodes[graph.here] == graph.clients
    assert graph.people.tolist() == [0, 1, 2, 3, 1, 4, 0]
    assert graph.rounds.tolist() == [1] * 3 + [2] * 4
    assert graph.norms.tolist() == pytest.approx([1, 2, 3, 4])
    sketches = np.concatenate([first, second])
    edges, repetition = new_edges(sketches, graph.people, graph.rounds)
    np.testing.assert_allclose(graph.edges[3:], edges)
    np.testing.assert_allclose(graph.repetition, np.concatenate([np.zeros((3, 2)), repetition]))


class Accepting:
    """A judgement, as far as the stage needs one."""

    def __init__(self, *accepted: bool) -> None:
        self.accepted = np.array(accepted)


def test_the_graph_says_who_was_accepted_in_earlier_rounds():
    construction = SimilarityConstruction(ConstructionSettings(), 0)
    for number, accepted in enumerate([(True, False), (False, True), (True, True)], start=1):
        sketches = drawn_sketches(number, 2, 1, 16)
        measured = {"shapes": np.zeros((2, 2)), "directions": sketches, "renewed_directions": sketches[:, :0]}
        observation = Observation(("a", "b"), ("layer",), {**measured, "renewals": np.array(0)})
        graph = construction.build(number, observation)
        construction.learn(graph, Accepting(*accepted))
    assert graph.accepted.tolist() == [True, False, False, True, False, False]


@pytest.mark.parametrize(("clients", "weak"), [(10, False), (1000, False), (2000, False), (2001, True), (12_000, True)])
def test_a_window_of_fewer_than_five_rounds_is_a_weakness(clients, weak):
    """The window grows to five rounds, but not beyond 10,000 submissions."""
    weaknesses = SimilarityConstruction(ConstructionSettings(window=300), 0).weaknesses(clients)
    assert len(weaknesses) == weak
    assert all(f"use window={5 * clients}" in sentence for sentence in weaknesses)
    assert not SimilarityConstruction(ConstructionSettings(window=60_000), 0).weaknesses(clients)


def submissions(construction: SimilarityConstruction, *rounds: int) -> list[int]:
    """The size of the graph after rounds with these numbers of clients."""
    sizes = []
    for number, count in enumerate(rounds, start=1):
        sketches = drawn_sketches(number, count, 1, 16)
        measured = {"shapes": np.zeros((count, 2)), "directions": sketches, "renewed_directions": sketches[:, :0]}
        observation = Observation(tuple(range(count)), ("layer",), {**measured, "renewals": np.array(0)})
        sizes.append(len(construction.build(number, observation).nodes))
    return sizes


def test_the_window_grows_to_five_rounds_for_large_rounds(monkeypatch, caplog):
    construction = SimilarityConstruction(ConstructionSettings(window=10), 0)
    assert submissions(construction, 2, 2, 2, 2, 2, 2) == [2, 4, 6, 8, 10, 10]
    construction = SimilarityConstruction(ConstructionSettings(window=10), 0)
    assert submissions(construction, 4, 4, 4, 4, 4, 4)[-2:] == [20, 20]
    assert not caplog.records
    monkeypatch.setattr("g2uardfl.defense.agreement.construction._MAX_SUBMISSIONS", 12)
    construction = SimilarityConstruction(ConstructionSettings(window=10), 0)
    assert submissions(construction, 4, 4, 4, 4)[-2:] == [12, 12]
    [record] = caplog.records
    assert record.getMessage().startswith("The window holds 3 rounds of 4 clients")


def test_all_measurements_say_which_axes_run_over_clients():
    """A recorded round can be cut down to some of its clients."""
    sketches = drawn_sketches(0, 4, 2, 16)
    measured = {
        "shapes": np.arange(8.0).reshape(4, 2),
        "directions": sketches,
        "renewed_directions": sketches[:, :1],
        "renewals": np.array(3),
    }
    observer = SketchObserver(ObserverSettings(), 0)
    assert observer.client_axes.keys() == measured.keys()
    some = Observation(("a", "b", "c", "d"), ("x", "y"), measured, observer.client_axes).only(np.array([3, 1]))
    assert some.clients == ("d", "b")
    for name in ("shapes", "directions", "renewed_directions"):
        assert np.array_equal(some[name], measured[name][[3, 1]])
    assert some["renewals"] == 3
