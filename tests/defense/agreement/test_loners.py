"""Loners: the generalised ESD test against loops and published values, and planted attackers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from g2uardfl import G2uardFL
from g2uardfl.defense.agreement.loners import critical_deviate, find_loners

SUBMISSIONS = 5


def table_of(means, submissions: int = SUBMISSIONS):
    """Repetition and clients of a window in which client i has mean repetition `means[i]`."""
    people = np.tile(np.arange(len(means)), submissions)
    counts = np.repeat(np.arange(submissions), len(means))
    return np.stack([np.array(means)[people] * counts, counts], axis=1).astype(float), people


def found_in(means, rate: float = 0.01, share: float = 0.5, submissions: int = SUBMISSIONS) -> set[int]:
    return set(np.flatnonzero(find_loners(*table_of(means, submissions), rate, share).found).tolist())


def slow_loners(means, rate: float, share: float) -> set[int]:
    """The test as Rosner describes it: all deviates first, and then the last one that is significant."""
    rest = dict(enumerate(means))
    removed, significant = [], 0
    noise = 1 / math.sqrt(SUBMISSIONS * (SUBMISSIONS - 1) / 2)
    for _ in range(min(math.floor(share * len(means) + 1e-9), len(means) - 5)):
        values = list(rest.values())
        mean = sum(values) / len(values)
        deviation = max(noise, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)))
        largest = max(rest, key=rest.get)
        count = len(values)
        quantile = stats.t.ppf(1 - rate / count, count - 2)
        critical = quantile * (count - 1) / math.sqrt((count - 2 + quantile**2) * count)
        removed.append(largest)
        if rest.pop(largest) - mean > critical * deviation:
            significant = len(removed)
    return set(removed[:significant])


@settings(max_examples=200, deadline=None)
@given(
    means=st.lists(st.integers(-20, 20), min_size=6, max_size=20, unique=True),
    planted=st.lists(st.integers(40, 90), max_size=4, unique=True),
    scale=st.sampled_from([0.01, 0.1, 1.0]),
    rate=st.sampled_from([0.001, 0.01, 0.1]),
    share=st.sampled_from([0.1, 0.34, 0.5]),
)
def test_the_clients_found_are_those_of_the_test_in_loops(means, planted, scale, rate, share):
    values = [scale * value for value in means + planted]
    assert found_in(values, rate, share) == slow_loners(values, rate, share)


@pytest.mark.parametrize(
    ("count", "rate", "expected"), [(10, 0.05, 2.176), (10, 0.01, 2.410), (20, 0.05, 2.557), (20, 0.01, 2.884)]
)
def test_critical_values_are_those_of_grubbs_tables(count, rate, expected):
    assert critical_deviate(count, rate) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("clients", "most"), [(10, 0.2), (30, 0.13)])
def test_among_honest_clients_a_loner_is_found_at_the_false_alarm_rate(clients, most):
    """Rosner's critical values are exact for 25 and more; with ten clients the rate is up to twice as high."""
    generator = np.random.default_rng(0)
    alarms = [bool(found_in(generator.normal(size=clients), rate=0.1)) for _ in range(1000)]
    assert 0.07 < np.mean(alarms) < most


@pytest.mark.parametrize("attackers", [1, 2, 3])
def test_planted_attackers_are_found_and_nobody_else(attackers):
    generator = np.random.default_rng(0)
    for _ in range(20):
        means = generator.normal(size=10)
        means[:attackers] += 12
        assert found_in(means) >= set(range(attackers))
        assert len(found_in(means)) <= attackers + 1


def test_clients_with_few_submissions_are_not_tested():
    means = [0.0, 0.1, 0.2, -0.1, -0.2, 0.05, 0.15, 50.0]
    assert found_in(means) == {7}
    assert found_in(0.01 * np.array(means)) == set()  # that is noise
    assert found_in(means, submissions=SUBMISSIONS - 1) == set()


def test_five_others_must_remain():
    assert found_in([0.0, 0.1, 0.2, 0.3, 0.4, 50.0]) == {5}
    assert found_in([0.0, 0.1, 0.2, 0.3, 50.0]) == set()


def test_the_largest_share_bounds_how_many_are_found():
    means = [0.1 * number for number in range(8)] + [50.0, 51.0]
    assert found_in(means, share=0.2) == {8, 9}
    assert found_in(means, share=0.1) == set()


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(10)), st.floats(1, 10), st.floats(-5, 5))
def test_neither_order_nor_scale_nor_location_matters(order, scale, shift):
    means = np.array([0.3, -0.2, 0.1, 0.4, 0.0, -0.4, 0.2, 0.6, 9.0, 7.0])
    expected = {place for place, client in enumerate(order) if client in found_in(means)}
    assert len(expected) == 2
    assert found_in(scale * means[list(order)] + shift) == expected


def play(strengths, *, rounds: int = 12, seed: int = 0):
    """The verdicts of a guard about ten clients; each adds a direction of its own in every round, in this strength."""
    generator = np.random.default_rng(seed)
    size = 4000
    model = {"w": np.zeros(size, np.float32)}
    own = generator.normal(size=(10, size)) / math.sqrt(size)
    guard, decisions = G2uardFL(seed=0), []
    for _ in range(rounds):
        updates = generator.normal(size=(10, size)) / math.sqrt(size) + np.array(strengths)[:, None] * own
        updates /= np.linalg.norm(updates, axis=1, keepdims=True)
        result = guard.aggregate(model, {client: {"w": row.astype(np.float32)} for client, row in enumerate(updates)})
        decisions.append(result.verdicts)
    return decisions


def test_a_lone_attacker_is_detected_after_some_rounds_with_a_reason_that_its_owner_can_check():
    last = play([0.8] + [0.0] * 9)[-1]
    assert [client for client, verdict in last.items() if verdict.decision == "malicious"] == [0]
    assert last[0].reason.startswith("Flagged as malicious: its updates repeat themselves (mean z-score ")
    assert "Honest causes: data that differ from those of all other clients" in last[0].reason


def test_where_all_clients_repeat_themselves_no_one_is_a_loner():
    for verdicts in play([0.9, 0.7, 0.8, 0.6, 0.5, 0.9, 0.6, 0.7, 0.8, 0.5]):
        assert {verdict.decision for verdict in verdicts.values()} == {"accepted"}
