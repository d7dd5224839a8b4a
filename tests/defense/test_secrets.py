"""Without a seed a guard draws a secret that is in its saved state and nowhere else."""

from __future__ import annotations

import json
import logging

import pytest

from g2uardfl import G2uardFL
from g2uardfl.core.errors import StateError
from g2uardfl.defense.profiles import names
from helpers.federations import Federation
from helpers.models import same

QUICK = {"default": {"sketch_width": 64}, "paper": {"pretrain_epochs": 3, "cluster_epochs": 3}}
each_profile = pytest.mark.parametrize("profile", names())


@each_profile
def test_every_guard_without_a_seed_draws_a_secret_of_its_own(profile):
    secrets = {G2uardFL(profile).observer.secret for _ in range(20)}
    assert len(secrets) == 20
    assert max(secrets) > 2**100


@each_profile
def test_all_stages_have_the_secret_and_a_seed_that_other_libraries_accept(profile):
    guard = G2uardFL(profile)
    assert {stage.secret for stage in guard.parts.values()} == {guard.observer.secret}
    assert {stage.seed for stage in guard.parts.values()} == {guard.observer.secret % 2**32}


@each_profile
def test_the_secret_is_shown_nowhere(profile, caplog):
    guard = G2uardFL(profile, **QUICK[profile])
    with caplog.at_level(logging.DEBUG):
        results = Federation().run(guard, 4)
    shown = [
        repr(guard),
        json.dumps(guard.configuration()),
        caplog.text,
        *(json.dumps(result.report.as_dict()) + repr(result.verdicts) for result in results),
    ]
    secret = guard.observer.secret
    assert guard.configuration()["seed"] is None
    assert "seed=None" in shown[0]
    assert not any(str(one) in text for text in shown for one in (secret, secret % 2**32))


@each_profile
def test_a_guard_that_drew_its_secret_continues_bit_for_bit(profile, tmp_path):
    guard = G2uardFL(profile, **QUICK[profile])
    model = Federation().run(guard, 3)[-1].weights
    guard.save(tmp_path / "guard")
    loaded, restored = G2uardFL.load(tmp_path / "guard"), G2uardFL(profile, **QUICK[profile])
    restored.restore(guard.state())
    expected = Federation().run(guard, 4, model, first=4)
    for other in (loaded, restored):
        assert other.seed is None
        assert other.observer.secret == guard.observer.secret
        for first, second in zip(expected, Federation().run(other, 4, model, first=4), strict=True):
            assert first.verdicts == second.verdicts
            assert same(first.weights, second.weights)


@each_profile
def test_a_guard_that_takes_over_a_fixed_seed_from_a_saved_state_shows_it(profile, tmp_path):
    saved, guard = G2uardFL(profile, seed=5), G2uardFL(profile)
    guard.restore(saved.state())
    saved.save(tmp_path / "guard")
    for other in (guard, G2uardFL.load(tmp_path / "guard")):
        assert other.seed == 5
        assert "seed=5" in repr(other)
    guard.restore(G2uardFL(profile).state())
    assert guard.seed is None


def test_a_state_of_an_earlier_release_is_a_clear_error():
    """Its sketches had public buckets and cannot be compared with those of today."""
    state = G2uardFL(seed=0).state()
    earlier = type(state)({name: value for name, value in state.values.items() if name != "secret"}, state.arrays)
    with pytest.raises(StateError, match="this guard state is incomplete"):
        G2uardFL(seed=0).restore(earlier)
