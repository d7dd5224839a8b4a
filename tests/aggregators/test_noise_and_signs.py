"""Weak DP and RLR against slow computations, and against the mistakes peers made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.fedavg import FedAvg
from g2uardfl.aggregators.ndc import NDC
from g2uardfl.aggregators.rlr import RLR
from g2uardfl.aggregators.weak_dp import WeakDP
from g2uardfl.core.errors import ConfigError, StateError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from helpers.models import batch_norm_model, federation, perturbed, same
from helpers.rounds import assert_same_on_gpu, decisions, rounds, send, updates_of, vector

counts = st.lists(st.integers(0, 50), min_size=12, max_size=12)
LONG = 200_000


def noise_of(rule, clients=1, examples=None):
    """What a round in which nobody moves adds to the model."""
    return vector(send(rule, np.zeros((clients, LONG), np.float32), examples)).astype(float)


def slow_rlr(start, updates, examples, threshold, rate):
    new = start.copy()
    total = sum(examples)
    for k in range(len(start)):
        votes = sum(1 if update[k] > 0 else -1 if update[k] < 0 else 0 for update in updates)
        mean = sum((n / total if total else 1 / len(updates)) * u[k] for n, u in zip(examples, updates, strict=True))
        new[k] += (rate if abs(votes) >= threshold else -rate) * mean
    return new


@settings(deadline=None)
@given(updates=rounds(), examples=counts)
def test_without_noise_weak_dp_is_fedavg(updates, examples):
    examples = examples[: len(updates)]
    np.testing.assert_allclose(
        vector(send(WeakDP(noise=0), updates, examples)), vector(send(FedAvg(), updates, examples)), rtol=1e-12
    )


@settings(deadline=None)
@given(updates=rounds(), examples=counts, limit=st.floats(0.1, 10))
def test_with_clipping_and_without_noise_weak_dp_is_ndc(updates, examples, limit):
    examples = examples[: len(updates)]
    clipped, ndc = (send(rule, updates, examples) for rule in (WeakDP(noise=0, clip_norm=limit), NDC(threshold=limit)))
    np.testing.assert_array_equal(vector(clipped), vector(ndc))
    assert clipped.verdicts == ndc.verdicts


def test_the_papers_noise_is_the_default_and_clipping_is_off():
    assert WeakDP().settings.noise == 0.025
    result = send(WeakDP(), [[300.0, 400.0]])
    assert "its norm 500 was left as it was" in result.verdicts[0].reason
    np.testing.assert_allclose(vector(result), [300, 400], atol=0.2)


def test_the_noise_is_normal_with_the_given_deviation():
    noise = noise_of(WeakDP()) / 0.025
    # Five standard errors of the mean, the variance and the tails of 200,000 normal numbers.
    assert abs(noise.mean()) < 5 / np.sqrt(LONG)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / LONG)
    assert abs((np.abs(noise) > 1.959964).mean() - 0.05) < 5 * np.sqrt(0.05 * 0.95 / LONG)
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 5 / np.sqrt(LONG)


@pytest.mark.parametrize("clients", [1, 2, 25])
def test_the_noise_is_on_the_average_and_not_on_each_client(clients):
    """On each of 25 clients before averaging it would be five times weaker, on their sum 25 times stronger."""
    assert noise_of(WeakDP(), clients).std() == pytest.approx(0.025, rel=0.02)


def test_the_noise_does_not_depend_on_sample_counts():
    assert noise_of(WeakDP(), 3, [1, 1000, 0]).std() == pytest.approx(0.025, rel=0.02)


def test_the_same_seed_gives_the_same_noise_and_every_round_and_seed_another():
    first, again, other = WeakDP(seed=1), WeakDP(seed=1), WeakDP(seed=2)
    drawn = [noise_of(first), noise_of(first), noise_of(other)]
    np.testing.assert_array_equal(drawn[0], noise_of(again))
    np.testing.assert_array_equal(drawn[1], noise_of(again))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(drawn[i], drawn[j])[0, 1]) < 5 / np.sqrt(LONG)


def test_running_statistics_and_counters_get_no_noise():
    model = batch_norm_model()
    clients = federation(model)
    noisy, plain = WeakDP(noise=5.0).aggregate(model, clients), FedAvg().aggregate(model, clients)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(noisy.weights[name], plain.weights[name])
    assert not torch.equal(noisy.weights["1.weight"], plain.weights["1.weight"])


def test_a_saved_weak_dp_goes_on_bit_for_bit(tmp_path):
    model = batch_norm_model()
    rule = WeakDP(seed=9)
    for seed in range(3):
        model = rule.aggregate(model, federation(model, seed=seed)).weights
    write_state(tmp_path / "state", "weak_dp", rule.state())
    loaded = WeakDP(seed=9)
    loaded.restore(read_state(tmp_path / "state", "weak_dp"))
    for seed in range(2):
        first, second = (one.aggregate(model, federation(model, seed=seed)) for one in (rule, loaded))
        assert same(first.weights, second.weights)
        model = first.weights


@pytest.mark.parametrize("values", [{}, {"round": None}, {"round": "many"}])
def test_a_state_without_rounds_is_one_clear_error(values):
    with pytest.raises(StateError, match="weak_dp"):
        WeakDP().restore(SavedState(values))


def test_global_random_generators_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    noise_of(WeakDP())
    assert torch.equal(torch.rand(1), expected)


@settings(deadline=None)
@given(
    updates=rounds(),
    examples=counts,
    threshold=st.integers(0, 6),
    rate=st.sampled_from([1.0, 0.5, 0.0]),
    seed=st.integers(0, 99),
)
def test_rlr_turns_back_what_too_few_agree_on(updates, examples, threshold, rate, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    examples = examples[: len(updates)]
    sent = (start + updates) - start
    expected = slow_rlr(start, sent, examples, min(threshold, len(updates)), rate)
    got = vector(send(RLR(threshold=threshold, learning_rate=rate), updates, examples, start))
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 * (1 + np.abs(updates).max()))


def test_rlr_worked_by_hand():
    """Votes 3, 1 and 2 of 4: only the first reaches θ = 3, the others go back."""
    updates = [[1.0, 1.0, 4.0], [1.0, -3.0, 4.0], [2.0, -1.0, 0.0], [0.0, 5.0, 0.0]]
    result = send(RLR(), np.array(updates))
    assert vector(result).tolist() == [1.0, -0.5, -2.0]
    assert result.note == "66.7% of the parameters were turned back: fewer than 3 votes between the directions."
    assert result.verdicts[0].reason == "Accepted: one vote in 4, weight 0.25."


def test_the_papers_settings_of_rlr_are_the_defaults():
    assert (RLR().settings.threshold, RLR().settings.learning_rate) == (3, 1.0)


def test_votes_are_signs_of_updates_and_not_of_weights():
    """All weights are positive here; half of the updates are not."""
    start = np.full(1, 10.0)
    result = send(RLR(), [[1.0], [1.0], [-0.5], [-0.5]], start=start)
    assert vector(result).tolist() == [10 - 0.25]


def test_an_untouched_parameter_has_no_vote():
    """With 0 counted as a vote up, three would agree."""
    assert vector(send(RLR(), [[1.0], [1.0], [0.0]])).tolist() == [pytest.approx(-2 / 3)]
    assert vector(send(RLR(), [[1.0], [1.0], [-0.0]])).tolist() == [pytest.approx(-2 / 3)]


def test_as_many_votes_as_the_threshold_suffice():
    assert vector(send(RLR(threshold=3), [[1.0], [1.0], [1.0]])).tolist() == [1.0]
    assert vector(send(RLR(threshold=4), [[1.0], [1.0], [1.0], [0.0]])).tolist() == [-0.75]


def test_one_client_of_many_samples_has_one_vote():
    result = send(RLR(), [[-1.0], [1.0], [1.0], [1.0]], [1000, 1, 1, 1])
    assert vector(result)[0] == pytest.approx(-((-1000 + 3) / 1003))


def test_a_client_without_samples_votes_and_carries_no_weight():
    result = send(RLR(), [[1.0], [1.0], [7.0]], [1, 1, 0])
    assert vector(result).tolist() == [1.0]
    assert decisions(result) == "aaa"
    assert result.verdicts[2].weight == 0


@pytest.mark.parametrize(
    ("updates", "expected"), [([[2.0, 3.0]], [2.0, 3.0]), ([[2.0, 12.0], [2.0, -6.0]], [2.0, -3.0])]
)
def test_with_fewer_clients_than_the_threshold_unanimity_suffices(updates, expected):
    """Without that every parameter would go backwards."""
    result = send(RLR(), updates)
    assert vector(result).tolist() == expected
    assert "θ was lowered from 3 to the number of clients" in result.note


def test_the_number_of_clients_is_what_came():
    rule = RLR()
    for clients in (10, 2, 5, 1):
        updates = updates_of("random", clients, 40, clients)
        expected = slow_rlr(np.zeros(40), updates, [1] * clients, min(3, clients), 1.0)
        np.testing.assert_allclose(vector(send(rule, updates)), expected, rtol=1e-9, atol=1e-12)


def test_running_statistics_are_averaged_and_never_turned_back():
    model = batch_norm_model()
    clients = {i: perturbed(model, i) for i in range(2)}
    result = RLR().aggregate(model, clients)
    slow = (clients[0]["1.running_var"] + clients[1]["1.running_var"]) / 2
    torch.testing.assert_close(result.weights["1.running_var"], slow)


@settings(deadline=None)
@given(updates=rounds())
def test_a_step_of_rlr_has_the_size_of_fedavgs_for_every_parameter(updates):
    np.testing.assert_allclose(
        np.abs(vector(send(RLR(), updates))), np.abs(vector(send(FedAvg(), updates))), rtol=1e-12
    )


@pytest.mark.parametrize("rule", [WeakDP, RLR])
def test_a_gpu_gives_the_same_result(rule):
    assert_same_on_gpu(rule)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [(WeakDP, {"noise": -1}), (WeakDP, {"clip_norm": 0}), (WeakDP, {"seed": 0.5}), (RLR, {"threshold": 2.5})],
)
def test_settings_that_make_no_sense_are_refused(rule, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        rule(**settings)
