"""The graph auto-encoder: encoder and losses against explicit matrices and double loops, and planted clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.paper.autoencoder import (
    GraphAutoEncoder,
    LatentClusters,
    cluster_count,
    cluster_graph,
    clustering_loss,
    normalised_adjacency,
    reconstruction_loss,
    soft_assignment,
)
from helpers import reference


def clustered(attributes, adjacency, **changes) -> LatentClusters:
    options = {
        "clusters": 2,
        "pretrain_epochs": 20,
        "cluster_epochs": 20,
        "learning_rate": 0.01,
        "clustering_weight": 0.1,
        "seed": 0,
    }
    options |= changes
    attributes = np.asarray(attributes, float)
    encoder = GraphAutoEncoder(attributes.shape[1], 16, 4, options["seed"])
    return cluster_graph(attributes, np.asarray(adjacency, float), encoder, **options)


def random_graph(clients: int, attributes: int = 6, seed: int = 0):
    rng = np.random.default_rng(seed)
    edges = rng.uniform(size=(clients, clients))
    return rng.normal(size=(clients, attributes)), (edges + edges.T) / 2


def two_groups(sizes=(7, 3), seed: int = 0):
    """Two groups of clients with different attributes and edges only within each."""
    rng = np.random.default_rng(seed)
    truth = np.repeat([0, 1], sizes)
    attributes = np.where(truth[:, None] == 0, 1.0, -1.0) * np.ones(10) + 0.1 * rng.normal(size=(len(truth), 10))
    return attributes, np.where(truth[:, None] == truth[None, :], 0.9, 0.0), truth


def blobs(count: int, size: int, spread: float = 0.05, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = 10 * rng.normal(size=(count, 5))
    return np.concatenate([centre + spread * rng.normal(size=(size, 5)) for centre in centres])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_number_of_well_separated_clusters_is_found(count):
    assert cluster_count(blobs(count, 8), min_clusters=2, min_cluster_size=4) == count


def test_noise_counts_as_one_cluster():
    rng = np.random.default_rng(1)
    attributes = np.concatenate([blobs(2, 10), 300 * rng.normal(size=(1, 5))])
    assert cluster_count(attributes, min_clusters=2, min_cluster_size=5) == 3


@pytest.mark.parametrize("min_clusters", [1, 2, 3])
@pytest.mark.parametrize("clients", [3, 4, 10])
def test_identical_clients_get_the_smallest_number_of_clusters(clients, min_clusters):
    assert cluster_count(np.zeros((clients, 5)), min_clusters=min_clusters, min_cluster_size=2) == min_clusters


def test_the_smallest_number_of_clusters_is_a_lower_bound_only():
    far_apart = blobs(3, 8)
    assert [cluster_count(far_apart, min_clusters=q, min_cluster_size=4) for q in (1, 2, 3, 5)] == [3, 3, 3, 5]


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(3, 25), seed=st.integers(0, 2**32 - 1), min_cluster_size=st.integers(2, 30))
def test_there_are_at_least_two_clusters_and_at_most_half_as_many_as_clients(clients, seed, min_cluster_size):
    attributes = np.random.default_rng(seed).standard_cauchy(size=(clients, 3))
    found = cluster_count(attributes, min_clusters=2, min_cluster_size=min_cluster_size)
    assert 2 <= found <= max(2, clients // 2)


def test_many_tiny_clusters_are_limited_to_half_the_clients():
    assert cluster_count(blobs(10, 2), min_clusters=2, min_cluster_size=2) <= 10


def test_the_adjacency_is_divided_by_the_square_roots_of_both_degrees():
    _, edges = random_graph(5)
    connected = [[1.0 if i == j else edges[i, j] for j in range(5)] for i in range(5)]
    expected = [[connected[i][j] / (sum(connected[i]) * sum(connected[j])) ** 0.5 for j in range(5)] for i in range(5)]
    np.testing.assert_allclose(normalised_adjacency(edges), expected, rtol=1e-12)


def test_the_normalised_adjacency_of_unconnected_clients_is_the_identity():
    assert normalised_adjacency(np.zeros((3, 3))).tolist() == np.eye(3).tolist()


def test_normalising_does_not_change_the_adjacency_in_place():
    edges = np.full((3, 3), 0.5)
    normalised_adjacency(edges)
    assert edges.tolist() == np.full((3, 3), 0.5).tolist()


def test_the_untrained_latent_space_is_two_graph_convolutions_of_the_attributes():
    attributes, edges = random_graph(6)
    encoder = GraphAutoEncoder(6, 16, 4, seed=3)
    rng = np.random.default_rng(0)
    assert not encoder.first_bias.any()
    assert not encoder.second_bias.any()
    propagation = torch.from_numpy(normalised_adjacency(edges))
    for bias in (encoder.first_bias, encoder.second_bias):
        bias.data = torch.from_numpy(rng.normal(size=len(bias)))
    ours = encoder.encode(propagation @ torch.from_numpy(attributes), propagation).detach().numpy()
    expected = reference.gcn(attributes, edges, *(p.detach().numpy() for p in encoder.parameters()))
    np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_without_training_the_latent_space_is_that_of_the_untrained_encoder():
    attributes, edges = random_graph(6)
    found = clustered(attributes, edges, pretrain_epochs=0, cluster_epochs=0, seed=5)
    start = [p.detach().numpy() for p in GraphAutoEncoder(6, 16, 4, seed=5).parameters()]
    np.testing.assert_allclose(found.latent, reference.gcn(attributes, edges, *start), atol=1e-12)


def test_the_initial_weights_are_uniform_within_glorots_bound():
    encoder = GraphAutoEncoder(50, 30, 20, seed=0)
    for weights, fan in ((encoder.first, 80), (encoder.second, 50)):
        bound = (6 / fan) ** 0.5
        assert float(weights.detach().abs().max()) <= bound
        assert float(weights.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_the_soft_assignment_is_a_normalised_gaussian_kernel():
    rng = np.random.default_rng(0)
    latent, centres = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    ours = soft_assignment(torch.from_numpy(latent), torch.from_numpy(centres)).numpy()
    np.testing.assert_allclose(ours, reference.soft_assignment(latent, centres), rtol=1e-9)


def test_the_soft_assignment_of_a_client_far_from_every_centre_sums_to_one():
    soft = soft_assignment(
        torch.full((1, 2), 1e6, dtype=torch.float64), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    )
    assert soft.tolist() == [[0.0, 1.0]]


def test_the_reconstruction_loss_is_the_cross_entropy_over_all_pairs():
    rng = np.random.default_rng(0)
    latent, (_, edges) = rng.normal(size=(5, 3)), random_graph(5)
    ours = reconstruction_loss(torch.from_numpy(latent), torch.from_numpy(edges))
    assert float(ours) == pytest.approx(reference.reconstruction_loss(latent, edges), rel=1e-9)


def test_the_reconstruction_loss_is_finite_where_the_sigmoid_saturates():
    latent = torch.full((2, 1), 100.0, dtype=torch.float64)
    loss = reconstruction_loss(latent, torch.zeros(2, 2, dtype=torch.float64))
    assert float(loss) == pytest.approx(4 * 100.0**2)


@settings(deadline=None)
@given(clients=st.integers(1, 8), clusters=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_the_clustering_loss_is_the_kl_divergence_of_hard_and_soft_assignment(clients, clusters, seed):
    soft = np.random.default_rng(seed).dirichlet(np.ones(clusters), size=clients)
    ours = clustering_loss(torch.from_numpy(soft))
    assert float(ours) == pytest.approx(reference.clustering_loss(soft), rel=1e-9, abs=1e-12)


def test_the_clustering_loss_of_certain_assignments_is_zero():
    assert float(clustering_loss(torch.eye(3, dtype=torch.float64))) == 0.0


@pytest.mark.parametrize("clients", [3, 10])
def test_labels_distances_and_soft_assignment_follow_from_latent_space_and_centres(clients):
    found = clustered(*random_graph(clients), clusters=3)
    np.testing.assert_allclose(found.soft, reference.soft_assignment(found.latent, found.centres), rtol=1e-9)
    P_hat = reference.hard_assignment(found.soft)
    assert found.labels.tolist() == P_hat.argmax(axis=1).tolist()
    np.testing.assert_allclose(
        found.distances, reference.distances_to_centres(found.latent, P_hat, found.centres), atol=1e-12
    )


def test_k_means_starts_each_centre_at_the_mean_of_its_clients():
    attributes, edges, _ = two_groups()
    found = clustered(attributes, edges, cluster_epochs=0)
    for cluster, centre in enumerate(found.centres):
        members = [z for z, label in zip(found.latent, found.labels, strict=True) if label == cluster]
        np.testing.assert_allclose(centre, sum(members) / len(members), atol=1e-9)


@pytest.mark.parametrize("epochs", [(0, 0), (30, 0), (30, 30)])
def test_two_well_separated_groups_are_distinguished(epochs):
    attributes, edges, truth = two_groups()
    labels = clustered(attributes, edges, pretrain_epochs=epochs[0], cluster_epochs=epochs[1]).labels
    assert len(set(labels.tolist())) == 2
    assert len(set(zip(labels.tolist(), truth.tolist(), strict=True))) == 2


def test_the_same_seed_gives_the_same_clustering_bit_for_bit():
    graph = random_graph(9)
    first, second = clustered(*graph, seed=11), clustered(*graph, seed=11)
    for part in ("latent", "centres", "soft", "labels"):
        assert np.array_equal(getattr(first, part), getattr(second, part))


def test_another_seed_gives_another_latent_space():
    graph = random_graph(9)
    assert not np.array_equal(clustered(*graph, seed=1).latent, clustered(*graph, seed=2).latent)


def test_global_random_generators_are_neither_read_nor_advanced():
    graph = random_graph(5)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    first = clustered(*graph)
    after = torch.rand(1).item(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert (torch.rand(1).item(), np.random.rand()) == after  # noqa: NPY002
    assert np.array_equal(first.latent, clustered(*graph).latent)


def test_inputs_are_not_changed():
    attributes, edges = random_graph(6)
    before = attributes.copy(), edges.copy()
    clustered(attributes, edges)
    assert np.array_equal(attributes, before[0])
    assert np.array_equal(edges, before[1])


def test_pre_training_lowers_the_reconstruction_loss():
    attributes, edges = random_graph(8)
    losses = [
        reference.reconstruction_loss(
            clustered(attributes, edges, pretrain_epochs=epochs, cluster_epochs=0).latent, edges
        )
        for epochs in (0, 10, 60)
    ]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("clients", [3, 5])
def test_identical_clients_share_one_cluster_and_the_others_stay_empty(clients):
    found = clustered(np.ones((clients, 4)), np.zeros((clients, clients)), clusters=3)
    assert len(set(found.labels.tolist())) == 1
    assert np.isfinite(found.latent).all()
    assert found.centres.shape == (3, 4)


def test_clients_without_attributes_and_edges_can_be_clustered():
    found = clustered(np.zeros((4, 6)), np.zeros((4, 4)))
    assert found.labels.tolist() == [0, 0, 0, 0]
    assert np.isfinite(found.soft).all()


def test_three_clients_can_be_clustered_into_two():
    attributes, edges, _ = two_groups((2, 1))
    labels = clustered(attributes, edges).labels
    assert labels[0] == labels[1] != labels[2]


def _step_of_centres(attributes, edges, **changes):
    still = clustered(attributes, edges, cluster_epochs=0, pretrain_epochs=0, **changes)
    moved = clustered(attributes, edges, cluster_epochs=1, pretrain_epochs=0, **changes)
    return still, moved.centres - still.centres


def test_the_first_joint_step_moves_each_centre_down_the_gradient_of_the_total_loss():
    attributes, edges = random_graph(8, seed=2)
    still, step = _step_of_centres(attributes, edges, learning_rate=1e-3)
    checked = 0
    for place in np.ndindex(still.centres.shape):
        nudge = np.zeros_like(still.centres)
        nudge[place] = 1e-6
        losses = [
            reference.clustering_loss(reference.soft_assignment(still.latent, still.centres + sign * nudge))
            for sign in (1, -1)
        ]
        slope = 0.1 * (losses[0] - losses[1]) / 2e-6
        if abs(slope) > 1e-4:  # Adam's first step is the learning rate against the sign of the slope
            assert step[place] == pytest.approx(-1e-3 * np.sign(slope), rel=1e-3)
            checked += 1
    assert checked >= 4


def test_without_weight_on_the_clustering_loss_the_centres_do_not_move():
    attributes, edges = random_graph(8)
    _, step = _step_of_centres(attributes, edges, clustering_weight=0.0)
    assert not step.any()


def test_joint_training_moves_the_centres():
    attributes, edges, _ = two_groups()
    start, end = (clustered(attributes, edges, cluster_epochs=epochs).centres for epochs in (0, 10))
    assert np.abs(end - start).max() > 1e-3
