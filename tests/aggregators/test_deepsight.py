"""DeepSight against a second computation of its stages and rounds, and the mistakes of its public ports."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.cluster import HDBSCAN

from g2uardfl.aggregators import deepsight as module
from g2uardfl.aggregators.deepsight import (
    DeepSight,
    accepted_clients,
    cosine_distances,
    disagreement,
    division_differences,
    euclidean_distances,
    merged_distances,
    normalised_energies,
    threshold_exceedings,
    update_energies,
)
from g2uardfl.core.layout import ModelLayout
from helpers.deepsight import CLASSES, LinearServer, deepsight, head_clients, head_model
from helpers.models import flat
from helpers.rounds import accepted, decisions

# A second, slow computation of everything, from the paper's text.


def slow_energies(model, client):
    weight, bias = (client[n].double() - model[n].double() for n in ("head.weight", "head.bias"))
    return [abs(float(bias[c])) + math.fsum(abs(float(x)) for x in weight[c]) for c in range(CLASSES)]


def slow_neups(energies):
    total = math.fsum(e * e for e in energies)
    return [e * e / total for e in energies]


def slow_exceedings(neups):
    limit = max(0.01, 1 / len(neups)) * max(neups)
    return sum(1 for value in neups if value > limit)


def slow_ddif(model, client, inputs):
    def probabilities(weights, x):
        logits = weights["head.weight"].double() @ x.double() + weights["head.bias"].double()
        powers = [math.exp(float(logit)) for logit in logits]
        return [power / sum(powers) for power in powers]

    quotients = [
        [a / b for a, b in zip(probabilities(client, x), probabilities(model, x), strict=True)] for x in inputs
    ]
    return [math.fsum(q[c] for q in quotients) / len(inputs) for c in range(CLASSES)]


def slow_disagreement(labels):
    n = len(labels)
    return np.array([[0.0 if i == j or (labels[i] == labels[j] != -1) else 1.0 for j in range(n)] for i in range(n)])


def slow_round(model, clients, input_sets, size, neighbours):
    """The accepted clients and the new parameters in the order of their names; HDBSCAN clusters features."""
    ids = sorted(clients)
    neups = [slow_neups(slow_energies(model, clients[i])) for i in ids]
    exceedings = [slow_exceedings(row) for row in neups]
    suspicious = [te <= np.median(exceedings) / 2 for te in exceedings]
    biases = [(clients[i]["head.bias"].double() - model["head.bias"].double()).numpy() for i in ids]
    angles = np.array([[1 - a @ b / np.sqrt((a @ a) * (b @ b)) for b in biases] for a in biases])
    angles[angles < 1e-12] = 0

    def labels(data, **options):
        return HDBSCAN(min_cluster_size=size, min_samples=neighbours + 1, copy=True, **options).fit_predict(
            np.array(data)
        )

    ddifs = [
        slow_disagreement(labels([slow_ddif(model, clients[i], x) for i in ids], algorithm="brute")) for x in input_sets
    ]
    by_neup = slow_disagreement(labels(neups, algorithm="brute"))
    by_angle = slow_disagreement(labels(angles, metric="precomputed"))
    final = labels((sum(ddifs) / len(ddifs) + by_neup + by_angle) / 3, metric="precomputed", allow_single_cluster=True)
    kept = []
    for position, i in enumerate(ids):
        members = [p for p in range(len(ids)) if final[p] == final[position]]
        share = sum(suspicious[p] for p in members) / len(members)
        if final[position] != -1 and share < 1 / 3:
            kept.append(i)
    updates = {i: (flat(clients[i]) - flat(model)).numpy() for i in ids}
    norms = {i: np.sqrt(updates[i] @ updates[i]) for i in ids}
    limit = np.median(list(norms.values()))
    step = sum((updates[i] * min(1.0, limit / norms[i]) for i in kept), np.zeros(1)) / max(1, len(kept))
    return kept, flat(model).numpy() + step


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [(2, 1), (5, 3)])
@pytest.mark.parametrize("shape", [(10, 6), (7, 2), (12, 0), (6, 9), (3, 1)])
def test_a_round_is_that_of_a_second_computation(seed, sizes, shape):
    model = head_model()
    clients = head_clients(model, *shape, seed)
    server = LinearServer()
    rule = deepsight(server, seed=seed, min_cluster_size=sizes[0], min_samples=sizes[1])
    result = rule.aggregate(model, clients, dict.fromkeys(clients, 0))
    kept, expected = slow_round(model, clients, server.inputs, min(sizes[0], len(clients)), sizes[1])
    assert accepted(result) == kept
    np.testing.assert_allclose(flat(result.weights), expected, rtol=1e-5, atol=1e-6)


def test_three_attackers_among_ten_clients_are_a_cluster_of_their_own_and_not_with_hdbscans_usual_sizes():
    model = head_model()
    clients = head_clients(model, 7, 3)
    assert decisions(deepsight().aggregate(model, clients))[7:] == "hhh"
    usual = deepsight(min_cluster_size=5, min_samples=3)
    assert decisions(usual.aggregate(model, clients)) == "a" * 10


def test_a_group_that_trains_one_output_is_held_out_and_the_others_are_averaged():
    model = head_model()
    clients = head_clients(model, 10, 6)
    result = deepsight().aggregate(model, clients)
    assert decisions(result) == "a" * 10 + "h" * 6
    assert {result.verdicts[i].cluster for i in range(10)} != {result.verdicts[i].cluster for i in range(10, 16)}
    assert "6 of 6 clients in its cluster are suspicious" in result.verdicts[12].reason
    assert "it has 1 threshold exceedings" in result.verdicts[12].reason


# The stages.


def test_energy_exceedings_and_suspicion_by_hand():
    model = {"head.weight": np.zeros((3, 2), np.float32), "head.bias": np.zeros(3, np.float32)}
    layout = ModelLayout.of(model)
    weight, bias = (next(entry for entry in layout.entries if entry.name == name) for name in model)
    update = layout.flatten({"head.weight": np.array([[1, -2], [0, 0.5], [0, 0]]), "head.bias": np.array([-1, 0.5, 0])})
    energies = update_energies(update[None], weight, bias)
    assert energies.tolist() == [[4, 1, 0]]
    assert update_energies(update[None], weight, None).tolist() == [[3, 0.5, 0]]
    np.testing.assert_allclose(normalised_energies(energies), [[16 / 17, 1 / 17, 0]])
    # With three classes the threshold is a third of the largest.
    assert threshold_exceedings(normalised_energies(energies)).tolist() == [1]


def test_with_more_than_a_hundred_classes_the_threshold_is_a_hundredth_of_the_largest():
    neups = np.full((1, 200), 0.0)
    neups[0, :4] = [0.9, 0.0091, 0.009, 0.0089]
    assert threshold_exceedings(neups).tolist() == [2]


@given(arrays.arrays(np.float64, (3, CLASSES), elements=st.floats(0, 1e150)))
def test_normalised_energies_are_those_of_the_definition_whatever_their_size(energies):
    neups = normalised_energies(energies)
    for row, got in zip(energies, neups, strict=True):
        scaled = [float(e / max(row)) if max(row) > 0 else 0.0 for e in row]
        expected = slow_neups(scaled) if any(scaled) else [0.0] * CLASSES
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-300)
        assert threshold_exceedings(got[None])[0] == slow_exceedings(got.tolist())


@pytest.mark.parametrize("count", [1, 7, 1024, 2500])
def test_division_differences_are_means_over_all_inputs_of_all_batches(count):
    model, server = head_model(), LinearServer()
    clients = list(head_clients(model, 1, 1).values())
    got = division_differences(server, model, clients, classes=CLASSES, count=count, seed=[0, 1, 2])
    inputs = torch.cat(server.inputs)
    assert len(inputs) == count
    np.testing.assert_allclose(got, [slow_ddif(model, client, inputs) for client in clients], rtol=1e-5)


# Mistakes of public ports: each test fails with the mistake it names.


def test_clusters_of_suspicious_clients_are_held_out_and_the_others_accepted_not_vice_versa():
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    suspicious = np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 0], bool)
    assert accepted_clients(labels, suspicious, 1 / 3).tolist() == [True] * 3 + [False] * 3 + [True] * 4


def test_a_third_of_suspicious_clients_is_too_many_and_clients_outside_clusters_are_held_out():
    labels = np.array([0, 0, 0, -1, -1])
    suspicious = np.array([1, 0, 0, 0, 0], bool)
    assert not accepted_clients(labels, suspicious, 1 / 3).any()


def test_distances_from_a_clustering_are_0_within_clusters_and_1_to_clients_outside():
    for labels in itertools.product([-1, 0, 1], repeat=4):
        np.testing.assert_array_equal(disagreement(np.array(labels)), slow_disagreement(labels))


def test_every_pair_of_clients_has_its_own_cosine_similarity():
    vectors = np.random.default_rng(0).normal(size=(5, CLASSES))
    vectors[3], vectors[4] = 0.3 * vectors[0], 0
    got = cosine_distances(torch.from_numpy(vectors))
    for i, j in itertools.permutations(range(5), 2):
        a, b = vectors[i], vectors[j]
        norms = math.sqrt(a @ a) * math.sqrt(b @ b)
        assert got[i, j] == pytest.approx(1 - a @ b / norms if norms else 1.0, abs=1e-12)
    assert (np.diagonal(got) == 0).all()


def test_clients_with_cosine_similarity_1_up_to_rounding_have_distance_0():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=CLASSES) * rng.uniform(0.01, 100, size=(40, 1))
    assert not cosine_distances(torch.from_numpy(vectors)).any()


@pytest.mark.parametrize("bias", [True, False])
def test_bias_updates_are_compared_and_weight_updates_only_if_there_is_no_bias(monkeypatch, bias):
    seen = []

    def watched(vectors):
        seen.append(vectors.clone())
        return np.zeros((len(vectors), len(vectors)))

    monkeypatch.setattr(module, "cosine_distances", watched)
    model = head_model(bias=bias)
    clients = head_clients(model, 4, 1)
    deepsight(LinearServer("head.bias" if bias else None)).aggregate(model, clients)
    name = "head.bias" if bias else "head.weight"
    expected = torch.stack([(clients[i][name] - model[name]).flatten() for i in clients])
    torch.testing.assert_close(seen[0], expected)


def test_the_three_kinds_of_clusterings_have_equal_weight_whatever_the_number_of_input_sets():
    by_angle, by_neup = np.array([0, 0, 1]), np.array([0, 1, 1])
    by_ddifs = [np.array([0, 0, 0]), np.array([0, 1, 0]), np.array([-1, 0, -1])]
    # Clients 0 and 1 are together by angle, apart by NEUP, and apart in two of three DDifs.
    expected = [[0, (0 + 1 + 2 / 3) / 3, (1 + 1 + 1 / 3) / 3], [0, 0, (1 + 0 + 2 / 3) / 3], [0, 0, 0]]
    merged = merged_distances(by_angle, by_neup, by_ddifs)
    np.testing.assert_allclose(merged, np.add(expected, np.transpose(expected)))


def test_the_energies_of_a_client_are_clustered_as_one_row_not_as_separate_numbers():
    """Every client has the same energies, at other outputs: only whole rows separate the two groups."""
    rows = np.array([[3.0, 1, 0, 0, 0, 0]] * 6 + [[0, 0, 0, 0, 1, 3.0]] * 6)
    rows += np.random.default_rng(0).uniform(0, 0.05, rows.shape)
    labels = DeepSight()._labels(euclidean_distances(normalised_energies(rows)))
    assert labels[:6].tolist() == [labels[0]] * 6
    assert labels[6:].tolist() == [labels[6]] * 6
    assert labels[0] != labels[6]


def test_the_last_clustering_uses_the_merged_matrix_as_distances():
    rng = np.random.default_rng(2)
    differ = 0
    for _ in range(20):
        views = [rng.integers(0, 3, size=14) for _ in range(3)]
        merged = sum(disagreement(view) for view in views) / 3
        options = {"min_cluster_size": 2, "min_samples": 2, "allow_single_cluster": True, "copy": True}
        labels = DeepSight()._labels(merged, allow_single_cluster=True)
        np.testing.assert_array_equal(labels, HDBSCAN(metric="precomputed", **options).fit_predict(merged))
        differ += not np.array_equal(labels, HDBSCAN(**options).fit_predict(merged))
    assert differ, "these examples do not distinguish the two"


def test_the_clipping_bound_is_the_median_over_all_clients_not_over_the_accepted():
    model = head_model()
    clients = head_clients(model, 10, 6)
    for i in range(10, 16):
        clients[i]["body.weight"] = clients[i]["body.weight"] + 50
    result = deepsight().aggregate(model, clients)
    assert decisions(result) == "a" * 10 + "h" * 6
    norms = sorted(float((flat(clients[i]) - flat(model)).norm()) for i in range(16))
    limit = (norms[7] + norms[8]) / 2
    for i in range(10):
        norm = float((flat(clients[i]) - flat(model)).norm())
        assert result.verdicts[i].weight == pytest.approx(min(1, limit / norm) / 10, rel=1e-6)


def test_the_number_of_clients_is_that_of_the_round():
    model, rule = head_model(), deepsight()
    for number, count in enumerate((7, 12, 1, 3, 9)):
        clients = {f"{number}-{i}": weights for i, weights in head_clients(model, count, 0, number).items()}
        result = rule.aggregate(model, clients)
        assert list(result.verdicts) == list(clients)
        model = result.weights
