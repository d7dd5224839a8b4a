"""The secret of the sketches is renewed over time, and nothing that the guard remembers is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl import G2uardFL
from g2uardfl.core.layout import Layer
from g2uardfl.defense.agreement import renewal
from g2uardfl.defense.agreement.renewal import SketchSecrets
from g2uardfl.defense.agreement.sketches import sketch_layout
from g2uardfl.defense.agreement.window import Window
from g2uardfl.defense.recording import Record, RoundRecorder
from g2uardfl.defense.stages import Evidence
from helpers.federations import first_model, message
from helpers.models import same
from helpers.rounds import decisions

LAYERS = (Layer("a", slice(0, 700)), Layer("b", slice(700, 710)))
CPU = torch.device("cpu")


def same_layout(first, second) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for one, other in zip(first, second, strict=True)
        for name in ("signs", "classes", "order")
    )


def test_a_secret_serves_ten_windows_and_then_both_are_used_until_all_submissions_have_the_next():
    secrets = SketchSecrets(7, 64)
    for _ in range(99):
        secrets.advance(10, 100, 0)
        assert len(secrets.layouts(LAYERS, CPU)) == 1
    secrets.advance(10, 100, 0)
    first, second = secrets.layouts(LAYERS, CPU)
    assert same_layout(first, sketch_layout(LAYERS, 64, 7, 0))
    assert same_layout(second, sketch_layout(LAYERS, 64, 7, 1))
    for renewed in (10, 50, 99):
        secrets.advance(10, 100, renewed)
        assert len(secrets.layouts(LAYERS, CPU)) == 2
    secrets.advance(10, 100, 100)
    assert secrets.renewals == 1
    [only] = secrets.layouts(LAYERS, CPU)
    assert only is second
    for _ in range(99):
        secrets.advance(10, 100, 0)
        assert not secrets.is_renewing
    secrets.advance(10, 100, 0)
    assert secrets.is_renewing


@pytest.mark.parametrize("rounds", [3, 12, 14])
def test_a_restored_renewal_continues_as_the_saved_one(rounds):
    secrets, restored = SketchSecrets(7, 64), SketchSecrets(7, 64)
    for _ in range(rounds):
        secrets.advance(10, 10, 10 * secrets.is_renewing)
    restored.restore(secrets.state())
    for _ in range(30):
        assert (restored.renewals, restored.is_renewing) == (secrets.renewals, secrets.is_renewing)
        assert all(map(same_layout, restored.layouts(LAYERS, CPU), secrets.layouts(LAYERS, CPU)))
        for one in (secrets, restored):
            one.advance(10, 10, 10 * one.is_renewing)
    assert secrets.renewals > 1


@settings(max_examples=15, deadline=None)
@given(
    rounds=st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=20, max_size=60),
    limit=st.integers(1, 25),
)
def test_a_renewal_loses_no_submission_whatever_is_forgotten_as_noise(rounds, limit):
    """`rounds` say which submissions of each round are kept; the sketches name the submission and the secret."""
    renewed, plain, secrets = Window(limit), Window(limit), SketchSecrets(0, 16)
    for number, kept in enumerate(rounds):
        names = [f"{number}-{row}" for row in range(len(kept))]
        values = np.array([1000.0 * number + row for row in range(len(kept))], np.float32)[:, None, None]
        under = [values + 1e6 * (secrets.renewals + one) for one in (0, 1)]
        renewed.add(number, names, under[0], under[1] if secrets.is_renewing else under[1][:, :0], secrets.renewals)
        plain.add(number, names, values)
        assert (renewed.clients, renewed.rounds) == (plain.clients, plain.rounds)
        assert np.array_equal(renewed.sketches, plain.sketches + np.float32(1e6 * secrets.renewals))
        secrets.advance(len(kept), len(renewed.clients), len(renewed.renewed))
        for window in (renewed, plain):
            window.keep(np.array([True] * (len(window.clients) - len(kept)) + kept))


def sketch(*values):
    return np.array(values, dtype=np.float32)[:, None, None]


@pytest.mark.parametrize("renewals", [2, 0, 7])
def test_submissions_without_a_sketch_under_the_secret_of_the_round_are_forgotten(renewals):
    """A record may lack rounds, or have been made with a smaller window."""
    window = Window(10, renewals=1)
    window.add(1, ["a", "b"], sketch(1, 2), renewals=1)
    window.add(2, ["c"], sketch(3), sketch(30), renewals=1)
    window.add(3, ["d"], sketch(40), renewals=renewals)
    assert window.clients == (["c", "d"] if renewals == 2 else ["d"])
    assert window.sketches[:, 0, 0].tolist() == ([30, 40] if renewals == 2 else [40])
    assert len(window.renewed) == 0


def test_an_interrupted_renewal_starts_again():
    window = Window(10)
    window.add(1, ["a"], sketch(1), sketch(10))
    window.add(2, ["b"], sketch(2))
    window.add(3, ["c"], sketch(3), sketch(30))
    window.add(4, ["d"], sketch(40), renewals=1)
    assert window.clients == ["c", "d"]


# Whole guards. Their secrets serve two windows of 30 submissions, so that the first renewal takes rounds 7 to 9.

SETTINGS = {"window": 30, "rollback": False}


@pytest.fixture(autouse=True)
def _windows_of_three_rounds(monkeypatch):
    monkeypatch.setattr("g2uardfl.defense.agreement.construction.HISTORY", 3)


FIRST_UNDER_THE_NEXT = 10


@pytest.fixture
def short_lived(monkeypatch):
    monkeypatch.setattr(renewal, "_LIFETIME", 2)


def slow_attack(guard: G2uardFL, rounds: int, model=None, first: int = 1, **options):
    """A new attacker in each round, and nine of forty honest clients: only earlier rounds can show who attacks."""
    model, results = first_model() if model is None else model, []
    for number in range(first, first + rounds):
        honest = 1000 + np.random.default_rng(number).choice(40, 9, replace=False)
        sent = {client: message(model, 5, number, client, client == number) for client in [number, *honest.tolist()]}
        results.append(guard.aggregate(model, sent, **options))
        model = results[-1].weights
    return results


ALL_REFUSED = "m" + "a" * 9


def test_slow_attackers_are_detected_before_during_and_after_a_renewal(short_lived):
    guard = G2uardFL(seed=0, **SETTINGS)
    results = slow_attack(guard, 2 * FIRST_UNDER_THE_NEXT + 4)
    assert guard.observer.secrets.renewals == 2
    around = results[3:]
    assert [decisions(result) for result in around] == [ALL_REFUSED] * len(around)
    assert all("its update is similar" in next(iter(result.verdicts.values())).reason for result in around)


def test_a_guard_that_forgets_at_the_renewal_does_not_detect_them(short_lived):
    """The detection after a renewal is due to what is remembered."""
    guard = G2uardFL(seed=0, **SETTINGS)
    model = slow_attack(guard, FIRST_UNDER_THE_NEXT - 1)[-1].weights
    guard.construction.window.keep(np.zeros(30, dtype=bool))
    [result] = slow_attack(guard, 1, model, FIRST_UNDER_THE_NEXT)
    assert decisions(result) == "a" * 10


def test_a_replay_equals_the_run_across_a_renewal(short_lived, tmp_path):
    guard, recorder = G2uardFL(seed=0, **SETTINGS), RoundRecorder(["default"])
    results = slow_attack(guard, FIRST_UNDER_THE_NEXT + 3, observers=[recorder])
    recorder.record.save(tmp_path / "record")
    record = Record.load(tmp_path / "record")
    numbers = [int(one["renewals"]) for one in record.rounds]
    assert numbers == [0] * (FIRST_UNDER_THE_NEXT - 1) + [1] * 4
    assert [one["renewed_directions"].shape[1] for one in record.rounds] == [0] * 6 + [3] * 3 + [0] * 4
    # The guard of the replay has another secret, which it does not use.
    again = G2uardFL(**SETTINGS)
    for result, observation in zip(results, record.rounds, strict=True):
        expected = {client: replace(verdict, weight=None) for client, verdict in result.verdicts.items()}
        assert again.judge(observation) == expected


@pytest.mark.parametrize(("when", "seed"), [(5, 3), (7, None), (9, 3)])
def test_a_guard_saved_before_or_during_a_renewal_continues_bit_for_bit(seed, when, short_lived, tmp_path):
    guard = G2uardFL(seed=seed, **SETTINGS)
    model = slow_attack(guard, when)[-1].weights
    guard.save(tmp_path / "guard")
    loaded = G2uardFL.load(tmp_path / "guard")
    rounds = FIRST_UNDER_THE_NEXT + 1 - when
    pairs = (slow_attack(one, rounds, model, when + 1) for one in (guard, loaded))
    for first, second in zip(*pairs, strict=True):
        assert first.verdicts == second.verdicts
        assert same(first.weights, second.weights)
    assert loaded.observer.secrets.renewals == 1
    assert np.array_equal(guard.construction.window.sketches, loaded.construction.window.sketches)


def test_the_same_seed_renews_at_the_same_time_to_the_same_secret(short_lived):
    guards = [G2uardFL(seed=seed, **SETTINGS) for seed in (4, 4, 5)]
    first, second, _ = ([decisions(one) for one in slow_attack(guard, 10)] for guard in guards)
    windows = [guard.construction.window for guard in guards]
    assert first == second
    assert [window.renewals for window in windows] == [1, 1, 1]
    assert np.array_equal(windows[0].sketches, windows[1].sketches)
    assert not np.array_equal(windows[0].sketches, windows[2].sketches)


def test_a_custom_construction_that_keeps_only_one_sketch_never_sees_another_secret():
    guard = G2uardFL(seed=0)
    for _ in range(100):
        guard.observer.learn(Evidence(1, ("a",), np.ones(1), ("a",), np.zeros((1, 1))))
    assert guard.observer.secrets.renewals == 0
    assert not guard.observer.secrets.is_renewing


@pytest.mark.parametrize(("layers", "width"), [(1, 64), (16, 64), (32, 32), (64, 16), (256, 16)])
def test_models_of_many_layers_have_narrower_sketches(layers, width):
    arrays = [Layer(f"layer{number}", slice(20 * number, 20 * number + 20)) for number in range(layers)]
    (found,) = SketchSecrets(1, 64).layouts(arrays, torch.device("cpu"))
    assert {one.order.shape[1] for one in found} == {width}
