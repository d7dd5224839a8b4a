"""Preflight: each condition that weakens the protection is one sentence, and a sound federation has none."""

from __future__ import annotations

import pytest
import torch

from g2uardfl.aggregators import create
from g2uardfl.core.layout import ModelLayout
from g2uardfl.federation.preflight import is_untrained, weaknesses
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.start import start_weights
from g2uardfl.tasks import create as create_task
from helpers.models import batch_norm_model


@pytest.fixture(scope="module")
def converged():
    task = create_task("digits")
    return start_weights(task, RunConfig().resolved(task.defaults))


def found(model, rule="g2uardfl", clients=10, min_replies=5, persistent_ids=True, is_real=False, **settings):
    options = {"clients": clients, "min_replies": min_replies, "persistent_ids": persistent_ids, "is_real": is_real}
    return weaknesses(create(rule, **settings), model, layout=ModelLayout.of(model), **options)


@pytest.mark.parametrize("settings", [{}, {"profile": "paper"}], ids=["default", "paper"])
def test_a_sound_federation_has_no_weakness(converged, settings):
    assert found(converged, **settings) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"clients": 4, "min_replies": 2}, "it compares norms only"),
        ({"clients": 2, "min_replies": 1, "profile": "paper"}, "fewer than 3 are not compared"),
        ({"clients": 3000}, "The window holds 3 rounds of 3000 clients"),
        ({"persistent_ids": False}, "a client that restarts gets a new id"),
        ({"min_replies": 10}, "one failing client stops the training"),
        ({"is_real": True, "seed": 0}, "A fixed seed is set"),
        ({"is_real": True, "rule": "flame", "seed": 0}, "A fixed seed is set"),
    ],
)
def test_each_condition_is_one_sentence(converged, changed, sentence):
    (only,) = found(converged, **changed)
    assert sentence in only


@pytest.mark.parametrize("rule", ["g2uardfl", "flame", "median"])
def test_a_real_federation_without_a_fixed_seed_has_no_weakness(converged, rule):
    assert found(converged, rule=rule, is_real=True) == []


def test_buffers_are_named(converged):
    (only,) = found({**converged, **batch_norm_model()}, rule="fedavg")
    assert only.startswith("3 arrays are buffers")
    assert "running_mean" in only


def test_a_model_drawn_at_random_is_untrained_and_a_converged_one_is_not(converged):
    assert is_untrained(create_task("digits").build_model().state_dict())
    assert not is_untrained(converged)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: torch.nn.Linear(300, 200),
        lambda: torch.nn.Conv2d(32, 64, 3),
        lambda: torch.nn.LSTM(50, 64),
        lambda: torch.nn.Embedding(1000, 50),
    ],
)
def test_torchs_own_first_weights_are_untrained(layer):
    for seed in range(20):
        torch.manual_seed(seed)
        assert is_untrained(layer().state_dict())


def test_a_model_of_zeros_is_untrained_and_one_without_large_matrices_is_not():
    assert is_untrained({"weight": torch.zeros(100, 100)})
    assert not is_untrained({"weight": torch.rand(10, 10), "bias": torch.zeros(10_000)})


def test_one_trained_matrix_makes_a_model_trained():
    torch.manual_seed(0)
    drawn = torch.randn(100, 100)
    assert not is_untrained({"first": drawn, "second": drawn**3})


def test_rules_without_conditions_of_their_own_have_none(converged):
    assert found(converged, rule="median", clients=100) == []
