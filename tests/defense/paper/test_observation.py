"""What the paper's profile measures of a round, and which update of a client is its previous one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from g2uardfl.aggregators.base import Round
from g2uardfl.core.layout import ModelLayout
from g2uardfl.core.settings import NoSettings
from g2uardfl.defense.paper.attributes import attribute_names
from g2uardfl.defense.paper.observation import PaperObserver

PARAMETERS = 6
COLUMN = attribute_names(["w"]).index("norm of the change of the update since the previous one in layer w")


def round_of(start: np.ndarray, updates: dict) -> Round:
    model = {"w": torch.from_numpy(start)}
    sent = torch.from_numpy(np.stack(list(updates.values())))
    return Round(ModelLayout.of(model), model["w"], tuple(updates), sent, np.ones(len(updates)))


def drawn(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=PARAMETERS)


def changes(observer: PaperObserver, start: np.ndarray, updates: dict) -> list[float]:
    """How far each client's update is from its previous one."""
    return observer.observe(round_of(start, updates))["attributes"][:, COLUMN].tolist()


def test_each_measurement_has_its_clients_on_the_axes_that_it_names():
    found = PaperObserver(NoSettings(), 0).observe(
        round_of(drawn(0), {client: drawn(client) for client in range(1, 5)})
    )
    assert found.measured.keys() == PaperObserver.client_axes.keys() == found.client_axes.keys()
    assert (found.clients, found.layers) == ((1, 2, 3, 4), ("w",))
    for name, axes in PaperObserver.client_axes.items():
        assert tuple(axis for axis, size in enumerate(found[name].shape) if size == 4) == axes


def test_inner_products_are_those_of_updates_and_global_model():
    start, updates = drawn(0), np.stack([drawn(1), drawn(2)])
    found = PaperObserver(NoSettings(), 0).observe(round_of(start, dict(enumerate(updates))))
    np.testing.assert_allclose(found["gg"], [start @ start])
    np.testing.assert_allclose(found["gu"], [updates @ start])
    np.testing.assert_allclose(found["uu"], [updates @ updates.T])


def test_in_the_first_round_previous_updates_are_zero():
    first = {"a": drawn(1), "b": drawn(2)}
    assert changes(PaperObserver(NoSettings(), 0), drawn(0), first) == pytest.approx(
        [np.linalg.norm(update) for update in first.values()]
    )


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clients_previous_update_is_that_of_the_last_round_or_the_models_step_where_it_was_absent(restarted):
    observer, start, step = PaperObserver(NoSettings(), 0), drawn(0), drawn(9)
    first, second = {"a": drawn(1), "b": drawn(2)}, {"b": drawn(3), "c": drawn(4)}
    changes(observer, start, first)
    if restarted:
        saved = observer.state()
        observer = PaperObserver(NoSettings(), 0)
        observer.restore(saved)
    found = changes(observer, start + step, second)
    assert found == pytest.approx(
        [np.linalg.norm(second["b"] - first["b"]), np.linalg.norm(second["c"] - step)], rel=1e-6
    )
    # Client "a" was absent: its update of the first round is forgotten.
    [found] = changes(observer, start + 3 * step, {"a": drawn(5)})
    assert found == pytest.approx(np.linalg.norm(drawn(5) - 2 * step), rel=1e-6)
