"""The guard beyond the contract of all rules: its files, its model, its seed, and small rounds."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl import G2uardFL
from g2uardfl.core.errors import StateError
from helpers.models import batch_norm_model, federation, flat, numpy_model, odd_mlp, perturbed, same

PROFILES = pytest.mark.parametrize("profile", ["default", "paper"])
QUICK = {"default": {}, "paper": {"pretrain_epochs": 5, "cluster_epochs": 5}}
"""Settings of each profile that save time."""


def guard_of(profile: str, **changes) -> G2uardFL:
    return G2uardFL(profile, **{"seed": 0, **QUICK[profile], **changes})


def test_running_variances_stay_positive_under_elimination():
    model = batch_norm_model()
    guard = guard_of("paper", elimination_rate=1.0, score_update="signed")
    for seed in range(4):
        model = guard.aggregate(model, federation(model, 8, 3, seed)).weights
        assert (model["1.running_var"] >= 0).all()


@pytest.mark.parametrize("count", [1, 2])
def test_with_fewer_than_three_clients_the_paper_profile_takes_the_clipped_mean(count):
    model = odd_mlp()
    clients = {i: perturbed(model, i, size=0.1 + i) for i in range(count)}
    result = G2uardFL("paper", seed=0).aggregate(model, clients)
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}
    updates = [flat(clients[i]) - flat(model) for i in clients]
    limit = np.median([float(update.norm()) for update in updates])
    slow = sum(update * min(1.0, limit / float(update.norm())) for update in updates) / count
    torch.testing.assert_close(flat(result.weights) - flat(model), slow, rtol=1e-4, atol=1e-5)


def test_malicious_verdicts_of_the_paper_profile_state_the_clients_own_numbers():
    model, guard, reasons = odd_mlp(), G2uardFL("paper", seed=0), []
    for seed in range(6):
        result = guard.aggregate(model, federation(model, 10, 3, seed))
        reasons += [verdict.reason for verdict in result.verdicts.values() if verdict.decision == "malicious"]
    assert reasons
    assert all("of 10 clients" in reason and "standard deviations" in reason for reason in reasons)
    assert len(set(reasons)) == len(reasons)


# Files.


@PROFILES
@settings(max_examples=10, deadline=None)
@given(
    rounds=st.lists(
        st.lists(st.integers(0, 12) | st.sampled_from(["a", "b"]), min_size=1, max_size=7, unique=True),
        min_size=2,
        max_size=5,
    ),
    when=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
def test_a_guard_loaded_between_any_two_rounds_continues_bit_for_bit(tmp_path_factory, profile, rounds, when, seed):
    path = tmp_path_factory.mktemp("state") / "guard"
    model = numpy_model()
    guard = loaded = guard_of(profile, seed=seed)
    for number, ids in enumerate(rounds):
        clients = {client: perturbed(model, 100 * number + i) for i, client in enumerate(ids)}
        if number == min(when, len(rounds) - 1):
            guard.save(path)
            loaded = G2uardFL.load(path)
            assert loaded.configuration() == guard.configuration()
        first = guard.aggregate(model, clients)
        if loaded is not guard:
            second = loaded.aggregate(model, clients)
            assert same(first.weights, second.weights)
            assert first.verdicts == second.verdicts
        model = first.weights


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, 4000))
def test_a_truncated_state_file_is_a_clear_error(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("state")
    guard = G2uardFL(seed=0)
    guard.aggregate(odd_mlp(), federation(odd_mlp()))
    guard.save(folder / "guard")
    content = (folder / "guard").read_bytes()
    (folder / "cut").write_bytes(content[: min(cut, len(content) - 1)])
    with pytest.raises(StateError, match="damaged"):
        G2uardFL.load(folder / "cut")


@PROFILES
def test_an_altered_state_file_is_noticed(profile, tmp_path):
    guard = guard_of(profile)
    guard.aggregate(odd_mlp(), federation(odd_mlp()))
    guard.save(tmp_path / "guard")
    content = bytearray((tmp_path / "guard").read_bytes())
    with zipfile.ZipFile(tmp_path / "guard") as archive:
        largest = max(archive.infolist(), key=lambda item: item.file_size)
    content[largest.header_offset + 300] ^= 0xFF
    (tmp_path / "guard").write_bytes(content)
    with pytest.raises(StateError, match="damaged"):
        G2uardFL.load(tmp_path / "guard")


def test_foreign_files_and_missing_files_are_one_clear_error(tmp_path):
    (tmp_path / "text").write_text("hello")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    np.save(tmp_path / "array.npy", np.ones(3))
    for name, message in (("text", "damaged"), ("other.npz", "damaged"), ("array.npy", "damaged"), ("no", "not exist")):
        with pytest.raises(StateError, match=message):
            G2uardFL.load(tmp_path / name)


def test_a_failed_save_leaves_the_old_state_and_no_other_file(tmp_path, monkeypatch):
    guard = G2uardFL(seed=1)
    guard.save(tmp_path / "guard")

    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(StateError, match="No space left"):
        G2uardFL(seed=2).save(tmp_path / "guard")
    assert [path.name for path in tmp_path.iterdir()] == ["guard"]
    assert G2uardFL.load(tmp_path / "guard").seed == 1


def test_saving_into_a_missing_folder_is_a_clear_error(tmp_path):
    with pytest.raises(StateError, match="cannot write"):
        G2uardFL(seed=0).save(tmp_path / "no" / "guard")


# The model and the seed.


@PROFILES
def test_the_order_of_the_names_in_a_model_has_no_influence(profile):
    model = batch_norm_model()
    plain, reordered = guard_of(profile), guard_of(profile)
    for seed in range(2):
        clients = federation(model, seed=seed)
        first = plain.aggregate(model, clients)
        # The second guard receives the names in another order every round.
        names = sorted(model, reverse=seed == 0)
        second = reordered.aggregate(
            {name: model[name] for name in names},
            {client: {name: weights[name] for name in names} for client, weights in clients.items()},
        )
        assert list(second.weights) == names
        assert all(torch.equal(first.weights[name], second.weights[name]) for name in names)
        assert first.verdicts == second.verdicts


@PROFILES
def test_a_guard_rejects_a_model_with_other_parameters(profile):
    guard = guard_of(profile)
    guard.aggregate(odd_mlp(), federation(odd_mlp()))
    with pytest.raises(ValueError, match="other parameters"):
        guard.aggregate(numpy_model(), federation(numpy_model()))


def test_the_same_seed_gives_the_same_result_and_another_seed_another_start():
    model = odd_mlp()
    first, again, other = (guard_of("paper", seed=seed).aggregate(model, federation(model)) for seed in (1, 1, 2))
    assert first.verdicts == again.verdicts
    assert same(first.weights, again.weights)
    assert first.verdicts != other.verdicts
