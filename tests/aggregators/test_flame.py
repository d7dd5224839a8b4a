"""FLAME against exact distances, single linkage by hand, and the mistakes of its public ports."""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.flame import FLAME, cluster_labels, majority, model_distances
from g2uardfl.core.errors import StateError
from g2uardfl.core.numerics import inner_products
from g2uardfl.core.state_files import SavedState
from helpers.models import batch_norm_model, federation, flat, numpy_model, odd_mlp, perturbed, same
from helpers.rounds import accepted, weights_of


def exact_distance(g, first, second):
    """1 - cos of two models G + update, in 60 digits."""
    with localcontext() as context:
        context.prec = 60
        w = [Decimal(float(a)) + Decimal(float(b)) for a, b in zip(g, first, strict=True)]
        v = [Decimal(float(a)) + Decimal(float(b)) for a, b in zip(g, second, strict=True)]
        product = sum(a * b for a, b in zip(w, v, strict=True))
        norms = (sum(a * a for a in w) * sum(b * b for b in v)).sqrt()
        return float(1 - product / norms)


def distances_of(g, updates):
    tensors = torch.from_numpy(np.asarray(updates, np.float64)), torch.from_numpy(np.asarray(g, np.float64))
    return model_distances(inner_products(*tensors, [slice(0, len(g))]))


def majority_by_linkage(distances):
    """Merge the closest models first; the first group with more than half of the clients is the majority."""
    clients = len(distances)
    groups = [{client} for client in range(clients)]
    for limit in np.unique(distances[np.triu_indices(clients, 1)]):
        for i, j in itertools.combinations(range(clients), 2):
            if distances[i, j] <= limit:
                first = next(group for group in groups if i in group)
                second = next(group for group in groups if j in group)
                if first is not second:
                    groups.remove(second)
                    first |= second
        largest = max(groups, key=len)
        if len(largest) > clients // 2:
            return sorted(largest)
    return [0]


def flame_round(model, clients):
    """The round without noise, slowly: the accepted clients, and the new parameters in the order of their names."""
    g, ids = flat(model).numpy(), sorted(clients)
    updates = np.array([flat(clients[i]).numpy() - g for i in ids])
    distances = np.array(
        [[0 if i == j else exact_distance(g, u, v) for j, v in enumerate(updates)] for i, u in enumerate(updates)]
    )
    members = majority_by_linkage(distances)
    norms = [np.sqrt(sum(x * x for x in update)) for update in updates]
    limit = np.median(norms)
    clipped = [updates[i] * min(1.0, limit / norms[i]) if norms[i] > 0 else updates[i] for i in members]
    return [ids[i] for i in members], g + sum(clipped) / len(members)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-8, 1e-11])
def test_distances_are_accurate_for_updates_that_are_tiny_compared_with_the_model(size):
    rng = np.random.default_rng(3)
    g = rng.normal(size=40)
    updates = rng.normal(size=(5, 40)) * size
    distances = distances_of(g, updates)
    for i, j in itertools.permutations(range(5), 2):
        assert distances[i, j] == pytest.approx(exact_distance(g, updates[i], updates[j]), rel=1e-5, abs=0)
    assert (distances == distances.T).all()
    assert (np.diagonal(distances) == 0).all()


def test_distances_of_models_with_zero_and_negative_cosine_similarity():
    distances = distances_of([0.0, 0.0], [[1, 0], [0, 5], [-2, 0], [3, 3]])
    root = np.sqrt(0.5)
    expected = [[0, 1, 2, 1 - root], [1, 0, 1, 1 - root], [2, 1, 0, 1 + root], [1 - root, 1 - root, 1 + root, 0]]
    np.testing.assert_allclose(distances, expected, atol=1e-12)


def test_a_model_of_zeros_has_distance_1_from_all_others():
    np.testing.assert_array_equal(distances_of([1.0, 1.0], [[-1, -1], [-1, -1], [0, 0]])[0], [0, 0, 1])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(2, 13), groups=st.integers(1, 4))
def test_the_majority_is_the_first_large_group_of_single_linkage(seed, clients, groups):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(clients, 5)) + 6 * rng.integers(groups, size=(clients, 1))
    distances = np.linalg.norm(points[:, None] - points[None, :], axis=2)
    assert np.flatnonzero(majority(cluster_labels(distances))).tolist() == majority_by_linkage(distances)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(1, 0), (2, 0), (3, 1), (8, 2), (11, 4)])
def test_a_round_without_noise_is_filter_clip_and_plain_mean(seed, shape):
    model = numpy_model()
    clients = federation(model, *shape, seed)
    clients[0] = perturbed(model, seed, size=3.0)
    result = FLAME(noise_factor=0).aggregate(model, clients, {client: 10**client for client in clients})
    members, expected = flame_round(model, clients)
    assert accepted(result) == members
    np.testing.assert_allclose(flat(result.weights), expected, rtol=1e-5, atol=1e-6)
    assert [client for client, weight in zip(clients, weights_of(result), strict=True) if weight > 0] == members


def test_a_round_by_hand():
    model = {"w": np.array([10.0, 0.0])}
    updates = {"a": [1.0, 0.0], "b": [2.0, 0.2], "c": [0.0, 0.1], "evil": [0.0, 9.0]}
    result = FLAME(noise_factor=0).aggregate(model, {k: {"w": model["w"] + u} for k, u in updates.items()})
    assert accepted(result) == ["a", "b", "c"]
    # The norms are 1, 2.0100, 0.1 and 9: the median over all four is 1.50499, and among the accepted only b exceeds it.
    factor = 1.504987562 / 2.009975124
    expected = [10 + (1 + 2 * factor + 0) / 3, (0 + 0.2 * factor + 0.1) / 3]
    np.testing.assert_allclose(result.weights["w"], expected, rtol=1e-8)
    assert result.verdicts["b"].weight == pytest.approx(factor / 3)
    assert "distance" in result.verdicts["evil"].reason
    assert result.verdicts["evil"].weight == 0


# Mistakes of public ports: each test fails with the mistake it names.


def test_all_layers_are_compared_not_only_the_last_ones():
    model = odd_mlp()
    clients = {i: perturbed(model, i, size=0.01) for i in range(6)}
    for i in (4, 5):
        clients[i]["0.weight"] = clients[i]["0.weight"] + 1.0
    assert accepted(FLAME(seed=0).aggregate(model, clients)) == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [1, 2, 10])
def test_the_noise_depends_on_the_median_norm_alone_and_is_added_to_the_mean(count):
    """Not lambda S std(parameter), and not added to a sum that is divided by n afterwards."""
    rng = np.random.default_rng(0)
    model = {"wide": rng.normal(size=20_000) * 7, "narrow": rng.normal(size=20_000) * 1e-3}
    update = np.full(20_000, 2.0)
    clients = {i: {name: value + update for name, value in model.items()} for i in range(count)}
    result = FLAME(noise_factor=0.01, seed=0).aggregate(model, clients)
    median_norm = 2.0 * np.sqrt(40_000)
    for name in model:
        noise = result.weights[name] - clients[0][name]
        assert noise.std() == pytest.approx(0.01 * median_norm, rel=0.03)
        assert abs(noise.mean()) < 0.05 * 0.01 * median_norm


def test_the_clustering_uses_the_matrix_as_distances_not_as_features():
    from sklearn.cluster import HDBSCAN

    rng = np.random.default_rng(11)
    differ = 0
    for _ in range(20):
        points = rng.normal(size=(9, 2))
        distances = np.linalg.norm(points[:, None] - points[None, :], axis=2)
        as_features = HDBSCAN(min_cluster_size=5, min_samples=1, allow_single_cluster=True, copy=True)
        differ += (as_features.fit_predict(distances) >= 0).tolist() != (cluster_labels(distances) >= 0).tolist()
        assert np.flatnonzero(cluster_labels(distances) >= 0).tolist() == majority_by_linkage(distances)
    assert differ, "these examples do not distinguish the two"


def test_each_accepted_client_is_clipped_by_its_own_norm_not_by_that_of_another_index():
    model = {"w": np.array([100.0, 0.0, 0.0])}
    updates = {0: [0, 50, 0], 1: [1, 0, 0], 2: [2, 0, 0], 3: [4, 0, 0]}
    result = FLAME(noise_factor=0).aggregate(model, {k: {"w": model["w"] + u} for k, u in updates.items()})
    assert accepted(result) == [1, 2, 3]
    np.testing.assert_allclose(result.weights["w"], [100 + (1 + 2 + 3) / 3, 0, 0])


def test_the_clipping_bound_is_the_median_over_all_clients_not_over_the_accepted():
    model = {"w": np.array([100.0, 0.0, 0.0])}
    updates = {0: [1, 0, 0], 1: [2, 0, 0], 2: [8, 0, 0], 3: [0, 50, 0], 4: [0, -50, 0]}
    result = FLAME(noise_factor=0).aggregate(model, {k: {"w": model["w"] + u} for k, u in updates.items()})
    assert accepted(result) == [0, 1, 2]
    # Over all clients the median is 8 and nothing is clipped; over the accepted it would be 2.
    np.testing.assert_allclose(result.weights["w"], [100 + 11 / 3, 0, 0])


def test_running_statistics_are_not_compared_and_receive_no_noise():
    model = batch_norm_model()
    # Differences that are huge compared with those of the parameters, but not beyond the limits of statistics.
    clients = {i: perturbed(model, 5, size=0.01) | {"1.running_mean": torch.full((4,), float(i))} for i in range(5)}
    result = FLAME(noise_factor=1.0, seed=0).aggregate(model, clients)
    assert accepted(result) == [0, 1, 2, 3, 4]
    assert result.weights["1.running_mean"].tolist() == [2.0] * 4
    assert int(result.weights["1.num_batches_tracked"]) == 12
    assert not np.allclose(result.weights["0.weight"], clients[0]["0.weight"])


def test_all_clients_are_accepted_if_there_is_no_cluster():
    assert majority(np.full(4, -1)).all()
    assert majority(np.array([-1, 1, 1, 0, 0, 1])).tolist() == [False, True, True, False, False, True]


# Degenerate rounds, noise and memory.


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_identical_models_are_all_accepted(clients):
    model = odd_mlp()
    result = FLAME(noise_factor=0).aggregate(model, dict.fromkeys(range(clients), perturbed(model, 1)))
    assert len(accepted(result)) == clients
    np.testing.assert_allclose(flat(result.weights), flat(perturbed(model, 1)), rtol=1e-6, atol=1e-7)


def test_zero_updates_leave_the_model_unchanged_without_noise():
    model = odd_mlp()
    assert same(FLAME(seed=0).aggregate(model, dict.fromkeys(range(4), model)).weights, model)


def test_a_huge_update_is_held_out_and_does_not_increase_the_noise():
    model = odd_mlp()
    clients = federation(model, 7, 0)
    without = FLAME(noise_factor=0).aggregate(model, clients)
    clients[7] = {name: value + 1e12 for name, value in model.items()}
    result = FLAME(noise_factor=0.001, seed=0).aggregate(model, clients)
    assert result.verdicts[7].decision == "held_out"
    assert (flat(result.weights) - flat(without.weights)).abs().max() < 1


@pytest.mark.parametrize("seed", range(20))
def test_a_tiny_model_among_huge_ones_is_handled(seed):
    """The global model and the update cancel, so the cosine similarity is rounding error and not symmetric."""
    rng = np.random.default_rng(seed)
    model = {"w": rng.normal(size=30) * 1e12}
    clients = {i: {"w": rng.normal(size=30) * (1e-3 if i < 3 else 1e12)} for i in range(6)}
    result = FLAME(noise_factor=0).aggregate(model, clients)
    assert np.isfinite(result.weights["w"]).all()
    distances = distances_of(model["w"], [clients[i]["w"] - model["w"] for i in clients])
    assert (distances == distances.T).all()


def test_held_out_clients_are_farther_from_the_cluster_than_its_members_from_each_other():
    model = odd_mlp()
    held_out = 0
    for seed in range(10):
        for verdict in FLAME(seed=0).aggregate(model, federation(model, 9, 3, seed)).verdicts.values():
            if verdict.decision == "held_out":
                own, widest = (float(word.rstrip(".,")) for word in verdict.reason.split() if "e-" in word)
                assert own >= widest
                held_out += 1
    assert held_out


def test_the_same_seed_gives_the_same_noise_and_each_round_and_seed_its_own():
    model = odd_mlp()
    clients = federation(model)
    first, again, other = (FLAME(seed=seed).aggregate(model, clients).weights for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)
    rule = FLAME(seed=1)
    assert not same(rule.aggregate(model, clients).weights, rule.aggregate(model, clients).weights)


def test_a_state_without_its_round_is_a_clear_error():
    with pytest.raises(StateError, match="flame"):
        FLAME().restore(SavedState())


def test_the_order_of_the_names_in_a_model_changes_nothing():
    model = batch_norm_model()
    clients = federation(model)
    names = sorted(model, reverse=True)
    plain = FLAME(seed=0).aggregate(model, clients)
    turned = FLAME(seed=0).aggregate(
        {n: model[n] for n in names}, {c: {n: w[n] for n in names} for c, w in clients.items()}
    )
    assert all(torch.equal(plain.weights[name], turned.weights[name]) for name in names)
