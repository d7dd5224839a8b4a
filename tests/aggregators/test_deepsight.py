"""DeepSight against loops, whole rounds put together a second time, and the mistakes that its public ports make."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.cluster import HDBSCAN

from g2uardfl.aggregators import deepsight
from g2uardfl.aggregators.context import OutputLayer, ServerContext
from g2uardfl.aggregators.deepsight import (
    DeepSight,
    accepted_clients,
    disagreement,
    division_differences,
    merged_distances,
    normalised_energies,
    threshold_exceedings,
    update_energies,
)
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.layout import ModelLayout
from g2uardfl.core.state_files import read_state, write_state
from helpers.models import same

CLASSES, WIDTH = 6, 4


class LinearServer(ServerContext):
    """A server for models of a body that does nothing and a linear head; it remembers what it handed out."""

    def __init__(self, bias="head.bias"):
        self.bias = bias
        self.seeds = []
        self.inputs = []

    @property
    def output_layer(self):
        return OutputLayer("head.weight", self.bias)

    def random_inputs(self, count, seed):
        self.seeds.append(seed)
        self.inputs.append(torch.rand(count, WIDTH, generator=torch.Generator().manual_seed(seed)))
        return self.inputs[-1]

    def probabilities(self, weights, inputs):
        logits = inputs @ weights["head.weight"].float().T
        return (logits if self.bias is None else logits + weights["head.bias"].float()).softmax(dim=1)


def head_model(seed=0, bias=True):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"body.weight": (3, 5), "head.weight": (CLASSES, WIDTH)} | ({"head.bias": (CLASSES,)} if bias else {})
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def crowd(model, honest, attackers, seed=0):
    """Honest clients move all outputs a little, attackers one output a lot."""
    generator = torch.Generator().manual_seed(seed)

    def moved(values, size):
        return values + size * torch.randn(values.shape, generator=generator)

    clients = {i: {name: moved(value, 0.05) for name, value in model.items()} for i in range(honest)}
    for i in range(honest, honest + attackers):
        clients[i] = {name: moved(value, 1e-4) for name, value in model.items()}
        clients[i]["head.weight"][2] += 0.5
        if "head.bias" in model:
            clients[i]["head.bias"][2] += 0.5
    return clients


def rule_with(server=None, **kwargs):
    rule = DeepSight(**{"random_inputs": 50, **kwargs})
    rule.attach(server or LinearServer())
    return rule


def decisions(result):
    return [verdict.decision for verdict in result.verdicts.values()]


def flat(weights):
    return torch.cat([weights[name].double().flatten() for name in sorted(weights)]).numpy()


# A second, slow computation of everything, from the paper's words.


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


def slow_round(model, clients, input_sets, size=5):
    """Who is accepted, and the new parameters in the order of their names; features and not distances are clustered."""
    ids = sorted(clients)
    neups = [slow_neups(slow_energies(model, clients[i])) for i in ids]
    exceedings = [slow_exceedings(row) for row in neups]
    suspicious = [te <= np.median(exceedings) / 2 for te in exceedings]
    biases = [(clients[i]["head.bias"].double() - model["head.bias"].double()).numpy() for i in ids]
    angles = np.array([[1 - a @ b / np.sqrt((a @ a) * (b @ b)) for b in biases] for a in biases])
    angles[angles < 1e-12] = 0

    def labels(data, **options):
        return HDBSCAN(min_cluster_size=size, min_samples=4, copy=True, **options).fit_predict(np.array(data))

    ddifs = [
        slow_disagreement(labels([slow_ddif(model, clients[i], x) for i in ids], algorithm="brute")) for x in input_sets
    ]
    by_neup = slow_disagreement(labels(neups, algorithm="brute"))
    by_angle = slow_disagreement(labels(angles, metric="precomputed"))
    final = labels((sum(ddifs) / len(ddifs) + by_neup + by_angle) / 3, metric="precomputed", allow_single_cluster=True)
    accepted = []
    for position, i in enumerate(ids):
        members = [p for p in range(len(ids)) if final[p] == final[position]]
        share = sum(suspicious[p] for p in members) / len(members)
        if final[position] != -1 and share < 1 / 3:
            accepted.append(i)
    updates = {i: flat(clients[i]) - flat(model) for i in ids}
    norms = {i: np.sqrt(updates[i] @ updates[i]) for i in ids}
    limit = np.median(list(norms.values()))
    step = sum((updates[i] * min(1.0, limit / norms[i]) for i in accepted), np.zeros(1)) / max(1, len(accepted))
    return accepted, flat(model) + step


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [(10, 6), (7, 2), (12, 0), (6, 9), (3, 1)])
def test_a_round_is_that_of_a_second_computation(seed, shape):
    model = head_model()
    clients = crowd(model, *shape, seed)
    server = LinearServer()
    result = rule_with(server, seed=seed).aggregate(model, clients, dict.fromkeys(clients, 0))
    size = min(5, len(clients))
    accepted, expected = slow_round(model, clients, server.inputs, size)
    assert [client for client, verdict in result.verdicts.items() if verdict.decision == "accepted"] == accepted
    np.testing.assert_allclose(flat(result.weights), expected, rtol=1e-5, atol=1e-6)


def test_a_group_that_trains_one_output_is_held_out_and_the_others_are_averaged():
    model = head_model()
    clients = crowd(model, 10, 6)
    result = rule_with().aggregate(model, clients)
    assert decisions(result) == ["accepted"] * 10 + ["held_out"] * 6
    assert {result.verdicts[i].cluster for i in range(10)} != {result.verdicts[i].cluster for i in range(10, 16)}
    assert "6 of 6 clients in its cluster are suspicious" in result.verdicts[12].reason
    assert "moves 1 outputs" in result.verdicts[12].reason


# Each stage.


def test_energy_exceedings_and_suspicion_by_hand():
    model = {"head.weight": np.zeros((3, 2), np.float32), "head.bias": np.zeros(3, np.float32)}
    layout = ModelLayout.of(model)
    weight, bias = (next(entry for entry in layout.entries if entry.name == name) for name in model)
    update = layout.flatten({"head.weight": np.array([[1, -2], [0, 0.5], [0, 0]]), "head.bias": np.array([-1, 0.5, 0])})
    energies = update_energies(update[None], weight, bias)
    assert energies.tolist() == [[4, 1, 0]]
    assert update_energies(update[None], weight, None).tolist() == [[3, 0.5, 0]]
    np.testing.assert_allclose(normalised_energies(energies), [[16 / 17, 1 / 17, 0]])
    # With three classes the limit is a third of the largest.
    assert threshold_exceedings(normalised_energies(energies)).tolist() == [1]


def test_with_more_than_a_hundred_classes_the_limit_is_a_hundredth_of_the_largest():
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


@pytest.mark.parametrize("at_once", [1, 7, 20, 1000])
def test_division_differences_are_means_over_all_inputs_however_many_come_at_a_time(monkeypatch, at_once):
    monkeypatch.setattr(deepsight, "_MOST_INPUTS", at_once)
    model, server = head_model(), LinearServer()
    clients = list(crowd(model, 3, 1).values())
    got = division_differences(server, model, clients, classes=CLASSES, count=20, seed=[0, 1, 2])
    assert [len(part) for part in server.inputs] == [at_once] * (20 // at_once) + [20 % at_once] * (20 % at_once > 0)
    inputs = torch.cat(server.inputs)
    np.testing.assert_allclose(got, [slow_ddif(model, client, inputs) for client in clients], rtol=1e-5)


def test_wide_heads_see_fewer_inputs_at_a_time(monkeypatch):
    monkeypatch.setattr(deepsight, "_MOST_PROBABILITIES", 5 * CLASSES)
    server = LinearServer()
    division_differences(server, head_model(), [head_model()], classes=CLASSES, count=12, seed=[0])
    assert [len(part) for part in server.inputs] == [5, 5, 2]


# What the public ports get wrong (each test fails with the mistake in its name).


def test_a_cluster_of_suspicious_clients_is_dropped_and_one_of_others_kept_not_the_other_way_round():
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    suspicious = np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 0], bool)
    accepted = accepted_clients(labels, suspicious, 1 / 3)
    assert accepted.tolist() == [True] * 3 + [False] * 3 + [True] * 4


def test_a_third_of_suspicious_clients_is_too_many_and_who_is_in_no_cluster_is_out():
    labels = np.array([0, 0, 0, -1, -1])
    suspicious = np.array([1, 0, 0, 0, 0], bool)
    assert not accepted_clients(labels, suspicious, 1 / 3).any()


def test_distances_from_a_clustering_are_zero_inside_its_clusters_and_outliers_are_alone():
    for labels in itertools.product([-1, 0, 1], repeat=4):
        np.testing.assert_array_equal(disagreement(np.array(labels)), slow_disagreement(labels))


def test_every_pair_of_clients_has_its_own_cosine():
    vectors = np.random.default_rng(0).normal(size=(5, CLASSES))
    vectors[3], vectors[4] = 0.3 * vectors[0], 0
    got = deepsight._angles(torch.from_numpy(vectors))
    for i, j in itertools.permutations(range(5), 2):
        a, b = vectors[i], vectors[j]
        lengths = math.sqrt(a @ a) * math.sqrt(b @ b)
        assert got[i, j] == pytest.approx(1 - a @ b / lengths if lengths else 1.0, abs=1e-12)
    assert (np.diagonal(got) == 0).all()


def test_rounding_does_not_tell_clients_apart_that_point_the_same_way():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=CLASSES) * rng.uniform(0.01, 100, size=(40, 1))
    assert not deepsight._angles(torch.from_numpy(vectors)).any()


@pytest.mark.parametrize("bias", [True, False])
def test_directions_are_those_of_the_bias_updates_and_of_the_weight_updates_only_without_a_bias(monkeypatch, bias):
    seen = []

    def watched(vectors):
        seen.append(vectors.clone())
        return np.zeros((len(vectors), len(vectors)))

    monkeypatch.setattr(deepsight, "_angles", watched)
    model = head_model(bias=bias)
    clients = crowd(model, 4, 1)
    rule_with(LinearServer("head.bias" if bias else None)).aggregate(model, clients)
    name = "head.bias" if bias else "head.weight"
    expected = torch.stack([(clients[i][name] - model[name]).flatten() for i in clients])
    torch.testing.assert_close(seen[0], expected)


def test_the_three_views_count_the_same_however_many_sets_of_random_inputs_there_are():
    by_angle, by_neup = np.array([0, 0, 1]), np.array([0, 1, 1])
    by_ddifs = [np.array([0, 0, 0]), np.array([0, 1, 0]), np.array([-1, 0, -1])]
    # Clients 0 and 1 are together by angle, apart by NEUP, and apart in two of three DDifs.
    expected = [[0, (0 + 1 + 2 / 3) / 3, (1 + 1 + 1 / 3) / 3], [0, 0, (1 + 0 + 2 / 3) / 3], [0, 0, 0]]
    merged = merged_distances(by_angle, by_neup, by_ddifs)
    np.testing.assert_allclose(merged, np.add(expected, np.transpose(expected)))


def test_a_clients_energies_are_clustered_as_one_row_not_as_numbers_apart():
    """Every client moves the same amounts, on other outputs: only whole rows tell the two groups apart."""
    rows = np.array([[3.0, 1, 0, 0, 0, 0]] * 6 + [[0, 0, 0, 0, 1, 3.0]] * 6)
    rows += np.random.default_rng(0).uniform(0, 0.05, rows.shape)
    labels = DeepSight()._labels(deepsight._euclidean(normalised_energies(rows)))
    assert labels[:6].tolist() == [labels[0]] * 6
    assert labels[6:].tolist() == [labels[6]] * 6
    assert labels[0] != labels[6]


def test_the_last_clustering_takes_the_merged_matrix_for_distances():
    rng = np.random.default_rng(2)
    differ = 0
    for _ in range(20):
        views = [rng.integers(0, 3, size=14) for _ in range(3)]
        merged = sum(disagreement(view) for view in views) / 3
        options = {"min_cluster_size": 5, "min_samples": 4, "allow_single_cluster": True, "copy": True}
        labels = DeepSight()._labels(merged, allow_single_cluster=True)
        np.testing.assert_array_equal(labels, HDBSCAN(metric="precomputed", **options).fit_predict(merged))
        differ += not np.array_equal(labels, HDBSCAN(**options).fit_predict(merged))
    assert differ, "these examples cannot tell the two apart"


def test_the_clipping_bound_is_the_median_over_all_clients_not_over_the_accepted():
    model = head_model()
    clients = crowd(model, 10, 6)
    for i in range(10, 16):
        clients[i]["body.weight"] = clients[i]["body.weight"] + 50
    result = rule_with().aggregate(model, clients)
    assert decisions(result) == ["accepted"] * 10 + ["held_out"] * 6
    norms = sorted(np.linalg.norm(flat(clients[i]) - flat(model)) for i in range(16))
    limit = (norms[7] + norms[8]) / 2
    for i in range(10):
        norm = np.linalg.norm(flat(clients[i]) - flat(model))
        assert result.verdicts[i].weight == pytest.approx(min(1, limit / norm) / 10, rel=1e-6)


def test_the_number_of_clients_is_what_came():
    model, rule = head_model(), rule_with()
    for number, count in enumerate((7, 12, 1, 3, 9)):
        clients = {f"{number}-{i}": weights for i, weights in crowd(model, count, 0, number).items()}
        result = rule.aggregate(model, clients)
        assert list(result.verdicts) == list(clients)
        model = result.weights


# The head, the server, degenerate rounds.


def test_a_head_without_bias_is_compared_by_its_weight():
    model = head_model(bias=False)
    clients = crowd(model, 10, 6)
    result = rule_with(LinearServer(bias=None)).aggregate(model, clients)
    assert decisions(result) == ["accepted"] * 10 + ["held_out"] * 6


def test_models_are_run_whole_with_their_running_statistics():
    model = {**head_model(), "norm.running_mean": torch.zeros(2)}
    clients = {
        i: {**weights, "norm.running_mean": torch.full((2,), float(i))} for i, weights in crowd(model, 4, 0).items()
    }
    seen = []

    class Watching(LinearServer):
        def probabilities(self, weights, inputs):
            seen.append(float(weights["norm.running_mean"][0]))
            return super().probabilities(weights, inputs)

    rule_with(Watching(), input_sets=1).aggregate(model, clients)
    assert seen == [0, 0, 1, 2, 3]


def test_without_a_server_it_is_one_clear_error():
    with pytest.raises(ConfigError, match=r"deepsight needs .* attach\(\)") as caught:
        DeepSight().aggregate(head_model(), crowd(head_model(), 3, 0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("weight", "bias", "words"),
    [
        ("fc.weight", None, "'fc.weight'.*no parameter.*head.weight"),
        ("head.weight", "fc.bias", "'fc.bias'.*no parameter"),
        ("head.bias", None, "no output layer"),
        ("body.weight", "head.bias", "no output layer"),
    ],
)
def test_a_server_that_names_another_output_layer_is_the_callers_error(weight, bias, words):
    class Wrong(LinearServer):
        @property
        def output_layer(self):
            return OutputLayer(weight, bias)

    with pytest.raises(ConfigError, match=words):
        rule_with(Wrong()).aggregate(head_model(), crowd(head_model(), 3, 0))


def test_one_client_alone_is_accepted_without_asking_for_probabilities():
    model, server = head_model(), LinearServer()
    clients = crowd(model, 0, 1)
    result = rule_with(server).aggregate(model, clients)
    assert decisions(result) == ["accepted"]
    assert not server.inputs
    np.testing.assert_allclose(flat(result.weights), flat(clients[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_few_clients_are_one_cluster_and_that_is_said(count):
    model = head_model()
    result = rule_with().aggregate(model, crowd(model, count, 0))
    assert decisions(result) == ["accepted"] * count
    assert f"only all {count} together" in result.note


def test_copies_of_one_client_are_accepted():
    model = head_model()
    result = rule_with().aggregate(model, dict.fromkeys(range(8), crowd(model, 1, 0)[0]))
    assert decisions(result) == ["accepted"] * 8


def test_updates_of_nothing_keep_the_model():
    model = head_model()
    result = rule_with().aggregate(model, dict.fromkeys(range(8), model))
    assert same(result.weights, model)
    assert "global model was kept" in result.note


def test_a_client_that_did_nothing_among_others_is_no_exception():
    model = head_model()
    clients = {**crowd(model, 9, 0), 9: model}
    result = rule_with().aggregate(model, clients)
    assert "moves 0 outputs" in result.verdicts[9].reason
    assert np.isfinite(flat(result.weights)).all()


def test_a_model_that_answers_nan_is_held_against_nobody_else():
    model = head_model()
    clients = {**crowd(model, 9, 0), 9: {name: value + 1e17 for name, value in model.items()}}

    class Overflowing(LinearServer):
        def probabilities(self, weights, inputs):
            found = super().probabilities(weights, inputs)
            return found * float("nan") if float(weights["head.bias"][0]) > 1e16 else found

    result = rule_with(Overflowing()).aggregate(model, clients)
    assert np.isfinite(flat(result.weights)).all()
    assert np.abs(flat(result.weights) - flat(model)).max() < 1


def test_a_class_that_the_global_model_rules_out_is_no_division_by_zero():
    class Certain(LinearServer):
        def probabilities(self, weights, inputs):
            found = torch.zeros(len(inputs), CLASSES)
            found[:, 0] = 1
            return found if "global" in weights else found.roll(1, dims=1)

    ddifs = division_differences(Certain(), {"global": 1}, [{}, {"global": 1}], classes=CLASSES, count=4, seed=[0])
    assert np.isfinite(ddifs).all()
    assert ddifs[0, 1] > 1e30
    np.testing.assert_array_equal(ddifs[1], [1, 0, 0, 0, 0, 0])


# Randomness and memory.


def test_inputs_follow_from_the_seed_and_the_round_and_every_set_has_its_own():
    model = head_model()
    clients = crowd(model, 6, 0)
    servers = [LinearServer() for _ in range(3)]
    rules = [rule_with(server, seed=seed) for server, seed in zip(servers, (1, 1, 2), strict=True)]
    for rule in rules:
        rule.aggregate(model, clients)
        rule.aggregate(model, clients)
    first, again, other = (server.seeds for server in servers)
    assert first == again
    assert len(set(first)) == 6
    assert not set(first) & set(other)


def test_a_restored_rule_goes_on_bit_for_bit(tmp_path):
    model, rule = head_model(), rule_with(seed=3)
    rule.aggregate(model, crowd(model, 8, 2))
    write_state(tmp_path / "state", "deepsight", rule.state())
    again = rule_with(seed=3)
    again.restore(read_state(tmp_path / "state", "deepsight"))
    first, second = (each.aggregate(model, crowd(model, 8, 2, 1)) for each in (rule, again))
    assert rule.server.seeds[3:] == again.server.seeds
    assert same(first.weights, second.weights)
    assert first.verdicts == second.verdicts


@pytest.mark.parametrize("name", ["suspicious_share", "random_inputs", "input_sets", "min_samples", "min_cluster_size"])
def test_a_setting_outside_its_range_is_refused(name):
    with pytest.raises(ConfigError, match=name):
        DeepSight(**{name: -1})


WIDE_HEAD = """
import torch
from g2uardfl.aggregators.context import OutputLayer, ServerContext
from g2uardfl.aggregators.deepsight import DeepSight
import sklearn.cluster

torch.set_num_threads(1)
CLASSES, WIDTH = 50_000, 2

class Server(ServerContext):
    output_layer = OutputLayer("weight", "bias")
    def random_inputs(self, count, seed):
        return torch.rand(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    def probabilities(self, weights, inputs):
        return torch.addmm(weights["bias"], inputs, weights["weight"].T).softmax(dim=1)

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

model = {"weight": torch.randn(CLASSES, WIDTH), "bias": torch.randn(CLASSES)}
clients = {i: {name: value + 0.01 * torch.randn_like(value) for name, value in model.items()} for i in range(3)}
rule = DeepSight(input_sets=1)
rule.attach(Server())
before = peak()
rule.aggregate(model, clients)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_head_of_50_000_classes_takes_less_memory_than_the_probabilities_of_one_model():
    """2,000 inputs x 50,000 classes are 381 MiB a model; pieces of 64 MiB of two models are kept at a time."""
    run = subprocess.run([sys.executable, "-c", WIDE_HEAD], capture_output=True, text=True, check=True)
    grown = float(run.stdout)
    assert 64 < grown < 380
