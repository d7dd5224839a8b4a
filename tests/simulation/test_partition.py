"""Partitions: every sample is used once, no client is empty, and the proportions are those of the distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.partition import Indices, dirichlet, iid, natural, partition
from helpers.data_sets import MNIST_TRAIN_COUNTS


def shuffled_labels(counts: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))


def assert_every_sample_is_used_once(clients: list[Indices], num_samples: int) -> None:
    used = [int(index) for client in clients for index in client]
    assert sorted(used) == list(range(num_samples))


def class_shares(clients: list[Indices], labels: np.ndarray) -> np.ndarray:
    """The share of each class (row) that each client (column) holds, counted one sample at a time."""
    counts = np.zeros((labels.max() + 1, len(clients)))
    for client, indices in enumerate(clients):
        for index in indices:
            counts[labels[index], client] += 1
    return counts / counts.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("num_clients", [200, 1000, 5000])
@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 100.0, math.inf])
def test_sixty_thousand_samples_are_used_once_and_no_client_is_empty(alpha: float, num_clients: int) -> None:
    clients = partition(shuffled_labels(MNIST_TRAIN_COUNTS), num_clients, alpha, seed=0)
    assert len(clients) == num_clients
    assert min(len(client) for client in clients) >= 1
    assert_every_sample_is_used_once(clients, 60_000)


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e12, 1e306])
def test_extreme_concentrations_give_a_valid_partition(alpha: float) -> None:
    clients = dirichlet(shuffled_labels((300, 300)), 100, alpha, seed=0)
    assert min(len(client) for client in clients) >= 1
    assert_every_sample_is_used_once(clients, 600)


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    num_clients=st.integers(1, 60),
    alpha=st.floats(0.01, 1000) | st.just(math.inf),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_every_partition_uses_each_sample_once_and_leaves_no_client_empty(
    labels: list[int], num_clients: int, alpha: float, seed: int
) -> None:
    num_clients = min(num_clients, len(labels))
    clients = partition(labels, num_clients, alpha, seed)
    assert len(clients) == num_clients
    assert all(len(client) >= 1 for client in clients)
    assert_every_sample_is_used_once(clients, len(labels))


@pytest.mark.parametrize("alpha", [0.05, 1.0, math.inf])
def test_the_same_seed_gives_the_same_partition(alpha: float) -> None:
    labels = shuffled_labels((500, 500, 500))
    first, second = (partition(labels, 50, alpha, seed=3) for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("alpha", [0.05, 1.0, math.inf])
def test_another_seed_gives_another_partition(alpha: float) -> None:
    labels = shuffled_labels((500, 500, 500))
    first, second = (partition(labels, 50, alpha, seed=seed) for seed in (3, 4))
    assert any(not np.array_equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("alpha", [0.5, math.inf])
def test_a_client_is_a_sorted_array_of_int64(alpha: float) -> None:
    for client in partition(shuffled_labels((100, 100)), 10, alpha, seed=0):
        assert client.dtype == np.int64
        assert np.all(np.diff(client) > 0)


def test_labels_may_be_a_tensor() -> None:
    labels = shuffled_labels((100, 100))
    from_array, from_tensor = dirichlet(labels, 10, 0.5, 0), dirichlet(torch.from_numpy(labels), 10, 0.5, 0)
    assert all(np.array_equal(one, other) for one, other in zip(from_array, from_tensor, strict=True))


def test_iid_sizes_differ_by_at_most_one() -> None:
    assert sorted({len(client) for client in iid(60_001, 200, seed=0)}) == [300, 301]


def test_iid_counts_of_a_class_have_the_hypergeometric_variance() -> None:
    labels = shuffled_labels((5000, 5000))
    positives = np.array([labels[client].sum() for client in iid(10_000, 100, seed=0)])
    # 100 of 10,000 without replacement: variance n p (1 - p) (N - n) / (N - 1) = 24.75.
    assert positives.mean() == 50
    assert positives.var() == pytest.approx(24.75, rel=0.4)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0, 100.0])
def test_class_shares_have_the_mean_and_variance_of_the_dirichlet_distribution(alpha: float) -> None:
    num_clients = 20
    labels = np.repeat(np.arange(400), 1000)
    shares = class_shares(dirichlet(labels, num_clients, alpha, seed=0), labels)
    mean = 1 / num_clients
    variance = mean * (1 - mean) / (num_clients * alpha + 1)
    assert shares.mean(axis=0) == pytest.approx(mean, abs=5 * math.sqrt(variance / 400))
    assert np.mean((shares - mean) ** 2) == pytest.approx(variance, rel=0.08)


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_a_clients_share_of_a_class_has_the_beta_marginal(alpha: float) -> None:
    num_clients = 10
    labels = np.repeat(np.arange(100), 1000)
    marginal = stats.beta(alpha, (num_clients - 1) * alpha)
    p_values = []
    for seed in range(20):
        shares = class_shares(dirichlet(labels, num_clients, alpha, seed), labels)
        p_values += [stats.kstest(shares[:, client], marginal.cdf).pvalue for client in (0, num_clients - 1)]
    # Of 40 tests at 5 %, two fail on average; eight or more fail with probability 0.001.
    assert sum(p_value < 0.05 for p_value in p_values) < 8


def test_shares_of_different_classes_are_independent() -> None:
    labels = np.repeat(np.arange(200), 500)
    shares = class_shares(dirichlet(labels, 50, 0.5, seed=0), labels)
    between_neighbours = [np.corrcoef(shares[row], shares[row + 1])[0, 1] for row in range(199)]
    assert abs(np.mean(between_neighbours)) < 4 / math.sqrt(199 * 50)


def test_a_smaller_alpha_gives_clients_fewer_classes() -> None:
    labels = shuffled_labels(MNIST_TRAIN_COUNTS)
    classes_held = {
        alpha: np.mean([len(np.unique(labels[client])) for client in dirichlet(labels, 200, alpha, seed=0)])
        for alpha in (0.05, 0.5, 100.0)
    }
    assert classes_held[0.05] < 5 < classes_held[0.5] < 10 == classes_held[100.0]


def test_empty_clients_take_one_sample_each_from_the_largest() -> None:
    # With this alpha one client gets all samples of the only class; each of the three others takes one of them.
    sizes = sorted(len(client) for client in dirichlet(np.zeros(10), 4, 1e-6, seed=0))
    assert sizes == [1, 1, 1, 7]


def test_samples_moved_to_empty_clients_are_random_ones() -> None:
    labels = np.repeat([0, 1], 200)
    splits = (dirichlet(labels, 20, 1e-6, seed) for seed in range(200))
    # A partition in which one client got both classes, so that the samples of the 19 others come from it.
    clients = next(split for split in splits if max(len(client) for client in split) == 400 - 19)
    moved = [labels[client[0]] for client in clients if len(client) == 1]
    assert len(moved) == 19
    assert 2 < sum(moved) < 17


def test_as_many_clients_as_samples_get_one_sample_each() -> None:
    assert [len(client) for client in dirichlet(np.arange(50) % 3, 50, 0.05, seed=0)] == [1] * 50


def test_labels_may_be_the_words_of_a_vocabulary() -> None:
    words = np.random.default_rng(0).zipf(1.2, 50_000) % 10_000
    assert_every_sample_is_used_once(dirichlet(words, 200, 0.5, seed=0), 50_000)


def test_natural_groups_are_never_split() -> None:
    groups = np.random.default_rng(0).integers(0, 300, 5000)
    clients = natural(groups, 40, seed=0)
    owners: dict[int, set[int]] = {}
    for client, indices in enumerate(clients):
        for index in indices:
            owners.setdefault(int(groups[index]), set()).add(client)
    assert all(len(owner) == 1 for owner in owners.values())
    assert_every_sample_is_used_once(clients, 5000)


@given(groups=st.lists(st.integers(0, 20), min_size=1, max_size=100), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_natural_sizes_differ_by_no_more_than_the_largest_group(groups: list[int], seed: int) -> None:
    num_clients = max(1, len(set(groups)) // 2)
    sizes = [len(client) for client in natural(groups, num_clients, seed)]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= max(groups.count(group) for group in groups)


def test_the_largest_natural_groups_are_assigned_first() -> None:
    # Groups of 5, 4, 3, 3, 3 for two clients, by hand: 5 | 4, then 5 | 7, then 8 | 7, then 8 | 10.
    groups = np.repeat([10, 20, 30, 40, 50], [5, 4, 3, 3, 3])
    assert sorted(len(client) for client in natural(groups, 2, seed=0)) == [8, 10]


def test_natural_partitions_depend_only_on_the_seed() -> None:
    groups = np.arange(1000) // 4
    first, again, other = (natural(groups, 50, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert any(not np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_kind_natural_gives_the_natural_partition() -> None:
    groups = np.arange(100) // 5
    expected = natural(groups, 10, seed=0)
    found = partition(np.zeros(100), 10, 0.5, 0, groups=groups, kind="natural")
    assert all(np.array_equal(one, two) for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize("alpha", [0.5, math.inf])
def test_more_clients_than_samples_are_rejected_with_the_maximum(alpha: float) -> None:
    with pytest.raises(ConfigError, match="11 clients cannot share 10 samples: choose at most 10 clients"):
        partition(np.zeros(10), 11, alpha, seed=0)


def test_more_clients_than_natural_groups_are_rejected_with_advice() -> None:
    with pytest.raises(ConfigError, match="at most 4 clients, or the dirichlet partition"):
        natural(np.arange(20) // 5, 5, seed=0)


def test_a_natural_partition_without_groups_is_rejected_with_advice() -> None:
    with pytest.raises(ConfigError, match="use the dirichlet partition"):
        partition(np.zeros(10), 2, 0.5, seed=0, kind="natural")


def test_an_unknown_kind_is_rejected_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="dirichlet or natural"):
        partition(np.zeros(10), 2, 0.5, seed=0, kind="shards")


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, -math.inf])
def test_an_alpha_that_is_not_positive_is_rejected(alpha: float) -> None:
    with pytest.raises(ConfigError, match="must be a positive number"):
        partition(np.zeros(10), 2, alpha, seed=0)


@pytest.mark.parametrize("num_clients", [0, -3])
def test_a_partition_without_clients_is_rejected(num_clients: int) -> None:
    with pytest.raises(ConfigError, match="at least one client"):
        iid(10, num_clients, seed=0)


def test_labels_that_are_not_one_per_sample_are_rejected_with_advice() -> None:
    with pytest.raises(ConfigError, match="natural partition"):
        dirichlet(np.zeros((10, 5)), 2, 0.5, seed=0)
