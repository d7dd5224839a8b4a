"""Model replacement by `pgd_replacement` and `constrain_and_scale`: what FedAvg makes of the scaled updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.attacks.base import Member, Turn, moved
from g2uardfl.attacks.pgd import PGDReplacement
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples
from g2uardfl.training.batched import BatchedEngine
from g2uardfl.training.engine import LoopEngine
from helpers.attacking import RECIPE, act, assert_close, average, enlisted, parameter_keys, training_turn
from helpers.models import Patches

ENGINES = pytest.mark.parametrize("engine", [LoopEngine, BatchedEngine])


def weighted_mean(models, counts, names):
    """The sample-weighted mean of some clients' parameters, in float64."""
    total = sum(counts[client] for client in models)
    return {
        name: sum(counts[client] / total * model[name].double() for client, model in models.items()) for name in names
    }


@ENGINES
@pytest.mark.parametrize("name", ["pgd_replacement", "constrain_and_scale"])
@pytest.mark.parametrize("attackers", [{2: 17}, {0: 40, 1: 23, 3: 8}], ids=["one", "three"])
def test_replacement_makes_the_attackers_model_the_average(patches, start, engine, name, attackers):
    counts = {**attackers, 10: 31, 11: 90, 12: 5}
    attack = enlisted(name, patches)
    trained, sent = act(attack, training_turn(attack, start, counts), engine)
    parameters = parameter_keys(patches)
    found = average(start, sent, counts)
    expected = weighted_mean(trained, counts, parameters)
    assert max(float((expected[key] - start[key]).abs().max()) for key in parameters) > 0.01
    assert_close({key: found[key] for key in parameters}, expected, atol=1e-5)


def test_k_attackers_that_scale_by_their_own_share_overshoot_k_fold(patches, start):
    counts = {0: 40, 1: 23, 3: 8, 10: 31, 11: 90}
    attack = enlisted("pgd_replacement", patches, share="own")
    trained, sent = act(attack, training_turn(attack, start, counts))
    found = average(start, sent, counts)
    for key in parameter_keys(patches):
        overshot = start[key].double() + sum(trained[client][key].double() - start[key] for client in trained)
        torch.testing.assert_close(found[key].double(), overshot, rtol=0, atol=1e-5)
    equal = {0: 20, 1: 20, 3: 20, 10: 60}
    trained, sent = act(attack, training_turn(attack, start, equal))
    found = average(start, sent, equal)
    mean = weighted_mean(trained, equal, parameter_keys(patches))
    for key, value in mean.items():
        torch.testing.assert_close(found[key] - start[key].double(), 3 * (value - start[key]), rtol=0, atol=1e-5)


class Halved(PGDReplacement):
    """Trains on half of its poisoned data, but reports all samples."""

    def training_data(self, client, clean, pdr, generator):
        return super().training_data(client, clean, pdr, generator).take(torch.arange(len(clean) // 2))


def test_replacement_uses_the_sample_counts_that_the_server_averages_by(patches, start):
    counts = {0: 40, 1: 20, 10: 30}
    attack = enlisted(f"{__name__}:Halved", patches)
    trained, sent = act(attack, training_turn(attack, start, counts))
    found = average(start, sent, counts)
    for key, value in weighted_mean(trained, counts, parameter_keys(patches)).items():
        torch.testing.assert_close(found[key].double(), value, rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    attackers=st.lists(st.integers(1, 500), min_size=1, max_size=5),
    others=st.lists(st.integers(1, 500), max_size=5),
    seed=st.integers(0, 999),
)
def test_replacement_is_exact_for_any_numbers_of_samples(attackers, others, seed):
    task = Patches()
    attack = enlisted("pgd_replacement", task, team=range(5))
    generator = torch.Generator().manual_seed(seed)
    start = {key: value.double() for key, value in fresh_weights(task, 0).items() if value.is_floating_point()}
    counts = dict(enumerate(attackers)) | {10 + i: count for i, count in enumerate(others)}
    nothing = torch.zeros(max(attackers), 1, 6, 6, dtype=torch.uint8), torch.zeros(max(attackers), dtype=torch.int64)
    samples = [Samples(*(part[:count] for part in nothing)) for count in attackers]
    members = tuple(Member(i, own, own, RECIPE, 0) for i, own in enumerate(samples))
    turn = Turn(1, start, members, sum(counts.values()), generator)
    names = parameter_keys(task)
    trained = {
        i: start | {key: start[key] + torch.randn(start[key].shape, generator=generator) for key in names}
        for i in range(len(attackers))
    }
    found = average(start, attack.submissions(turn, trained), counts)
    for key, value in weighted_mean(trained, counts, names).items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["pgd_replacement", "constrain_and_scale"])
def test_running_statistics_are_sent_as_trained(patches, start, name):
    attack = enlisted(name, patches)
    trained, sent = act(attack, training_turn(attack, start, {0: 20, 1: 20, 10: 400}))
    for client, model in trained.items():
        for key in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(sent[client][key], model[key])
        update, scaled = (float((weights["4.weight"] - start["4.weight"]).norm()) for weights in (model, sent[client]))
        assert scaled == pytest.approx(11 * update, rel=1e-4)


@given(factor=st.floats(-50, 50), seed=st.integers(0, 99))
def test_moved_scales_the_update_of_the_named_parameters_alone(factor, seed):
    generator = np.random.default_rng(seed)
    start, trained = ({key: torch.tensor(generator.normal(size=3)) for key in "ab"} for _ in range(2))
    found = moved(start, trained, factor, frozenset("a"))
    np.testing.assert_allclose(found["a"], (1 - factor) * start["a"].numpy() + factor * trained["a"].numpy(), atol=1e-9)
    assert found["b"] is trained["b"]
