"""FoolsGold against loops, a round by hand, and the mistakes of its public ports."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.foolsgold import FoolsGold, learning_rates
from g2uardfl.core.errors import ConfigError, StateError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from helpers.models import batch_norm_model, federation, odd_mlp, perturbed, same
from helpers.rounds import accepted, decisions, weights_of


def cosine(a, b):
    norms = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / norms if norms > 0 else 0.0


def slow_alphas(vectors, kappa=1.0):
    """The published algorithm, client by client."""
    n = len(vectors)
    cs = [[0.0 if i == j else cosine(vectors[i], vectors[j]) for j in range(n)] for i in range(n)]
    v = [max(row) for row in cs]
    for i in range(n):
        for j in range(n):
            if v[i] < v[j]:
                cs[i][j] *= v[i] / v[j]
    alphas = [min(1.0, max(0.0, 1.0 - max(row))) for row in cs]
    alphas = [0.0 if alpha < 1e-10 else alpha for alpha in alphas]
    if max(alphas) == 0:
        return alphas
    result = []
    for alpha in alphas:
        alpha /= max(alphas)
        if alpha > 1 - 1e-10:  # the client with the largest α, and those equal up to rounding
            alpha = 0.99
        stretched = kappa * (math.log(alpha / (1 - alpha)) + 0.5) if alpha > 0 else -math.inf
        result.append(min(1.0, max(0.0, stretched)))
    return result


def one_layer(updates, names="abcdefghij"):
    """A model of zeros with a single matrix, and clients with the given updates."""
    model = {"w": np.zeros((1, len(updates[0])))}
    return model, {name: {"w": np.array([u], float)} for name, u in zip(names, updates, strict=False)}


def vectors_of(kind, seed, clients, size):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(clients, size))
    if kind == "clustered":
        vectors = vectors * 0.1 + rng.normal(size=(2, size))[rng.integers(2, size=clients)]
    elif kind == "sybils":
        vectors[: clients // 2] = vectors[0]
    elif kind == "one zero":
        vectors[0] = 0
    elif kind == "zero":
        vectors[:] = 0
    elif kind == "outlier":
        vectors[0] *= 1e9
    return vectors


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(["random", "clustered", "sybils", "one zero", "zero", "outlier"]),
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 9),
    size=st.integers(1, 6),
    kappa=st.sampled_from([0.1, 1.0, 3.0]),
)
@example(kind="random", seed=1, clients=5, size=5, kappa=0.1)  # two equal largest α up to rounding
def test_a_round_is_that_of_the_published_algorithm_divided_by_the_number_of_clients(kind, seed, clients, size, kappa):
    vectors = vectors_of(kind, seed, clients, size)
    model, sent = one_layer(vectors)
    result = FoolsGold(confidence=kappa).aggregate(model, sent)
    alphas = slow_alphas(vectors.tolist(), kappa)
    expected = sum(alpha * vector for alpha, vector in zip(alphas, vectors, strict=True)) / clients
    np.testing.assert_allclose(result.weights["w"][0], expected, rtol=1e-6, atol=1e-8 * np.abs(vectors).max())
    assert weights_of(result) == pytest.approx([alpha / clients for alpha in alphas], abs=1e-7)
    assert decisions(result) == "".join("a" if alpha > 0 else "h" for alpha in alphas)


def test_a_round_by_hand():
    """The similarities are a-b 0.6, a-c 0, b-c -0.8; so 1 - max is 0.4, 0.4 and 1, and ln(0.4/0.6) + 0.5 = 0.0945."""
    model, clients = one_layer([[1, 0], [0.6, 0.8], [0, -1]])
    result = FoolsGold().aggregate(model, clients)
    alpha = 0.0945348919
    expected = [(alpha * 1 + alpha * 0.6) / 3, (alpha * 0.8 - 1) / 3]
    np.testing.assert_allclose(result.weights["w"], [expected], rtol=1e-8)
    assert result.verdicts["a"].weight == pytest.approx(alpha / 3)
    assert "0.6000" in result.verdicts["a"].reason
    assert "'b'" in result.verdicts["a"].reason


def test_an_honest_client_that_is_similar_to_two_sybils_is_pardoned():
    """The Sybils' v is 1, the honest client's 0.8: its similarities to them shrink to 0.64."""
    similarities = np.array([[1, 0.8, 0.8], [0.8, 1, 1], [0.8, 1, 1]])
    assert learning_rates(similarities).tolist() == [1, 0, 0]
    # Unpardoned, a second honest client at 0.5 would leave it (1 - 0.8) / (1 - 0.5) = 0.4; pardoned it has 0.48.
    similarities = np.array([[1, 0.8, 0.8, 0], [0.8, 1, 1, 0.5], [0.8, 1, 1, 0.5], [0, 0.5, 0.5, 1]])
    first, second = 1 - 0.8 * 0.8, 1 - 0.5 * 0.5
    expected = math.log(first / second / (1 - first / second)) + 0.5
    assert learning_rates(similarities) == pytest.approx([expected, 0, 0, 1])


# Mistakes of public ports: each test fails with the mistake it names.


@pytest.mark.parametrize("clients", [2, 4, 6])
@pytest.mark.parametrize("update", [[0.5, 0.25], [3.0, 0.0], [1e-20, 0.1], [0.1, 0.7]])
def test_identical_updates_keep_the_model_and_give_no_nan(clients, update):
    model, sent = one_layer([update] * clients)
    result = FoolsGold().aggregate(model, sent)
    np.testing.assert_array_equal(result.weights["w"], [[0, 0]])
    assert not accepted(result)
    assert [event.kind for event in result.report.events] == ["model_kept"]
    assert result.note == "Every update has cosine similarity 1 with another: the global model was kept."


def test_rounding_errors_do_not_give_a_copy_a_positive_weight():
    rng = np.random.default_rng(0)
    direction = rng.normal(size=5000)
    model, sent = one_layer([direction * scale for scale in (1, 1.1, 0.3, 7)])
    assert not FoolsGold().aggregate(model, sent).weights["w"].any()


def test_weights_are_not_scaled_to_sum_1():
    model, sent = one_layer([[1, 0], [0, 1], [-1, -1], [-1, -1]])
    result = FoolsGold().aggregate(model, sent)
    assert weights_of(result) == [0.25, 0.25, 0, 0]


def test_the_sum_is_divided_by_the_number_of_clients():
    model, sent = one_layer(np.eye(5) * 3)
    np.testing.assert_allclose(FoolsGold().aggregate(model, sent).weights["w"], [[0.6] * 5])


def test_large_updates_are_not_normalised():
    model, sent = one_layer([[4, 0], [0, 1]])
    np.testing.assert_allclose(FoolsGold().aggregate(model, sent).weights["w"], [[2, 0.5]])


def test_only_the_output_layer_is_compared():
    model = odd_mlp()
    clients = {i: perturbed(model, i) for i in range(5)}
    for name in ("2.weight", "2.bias"):
        clients[4][name] = clients[3][name]
    assert decisions(FoolsGold().aggregate(model, clients))[3:] == "hh"
    whole = {i: perturbed(model, i) for i in range(5)}
    whole[4] = {**whole[3], "2.weight": whole[4]["2.weight"]}
    assert FoolsGold().aggregate(model, whole).verdicts[4].decision == "accepted"


def test_updates_are_compared_not_weights():
    """The weights have a cosine similarity near 1, because the model has norm 1000; the updates have 0."""
    model = {"w": np.full((1, 3), 1000.0)}
    clients = {i: {"w": model["w"] + np.eye(3)[i]} for i in range(3)}
    result = FoolsGold().aggregate(model, clients)
    assert weights_of(result) == [1 / 3] * 3


def test_history_is_kept_by_client_id_not_by_position():
    """Two Sybils alternate: their sums are similar although their updates of this round are not."""
    rounds = [
        {"evil-1": [5, 0, 0], "evil-2": [0, 5, 0], "x": [0, 0, 1]},
        {"y": [1, 0, 9], "evil-2": [5, 0, 0.1], "z": [0, -1, 2], "evil-1": [0.1, 5, 0]},
    ]
    for remembers in (True, False):
        rule = FoolsGold(history=remembers)
        for sent in rounds:
            clients = {client: {"w": np.array([u], float)} for client, u in sent.items()}
            result = rule.aggregate({"w": np.zeros((1, 3))}, clients)
        # The order of the clients differs between the rounds.
        sums = [[5.1, 5, 0], [5, 5, 0.1], [1, 0, 9], [0, -1, 2]]
        now = [[0.1, 5, 0], [5, 0, 0.1], [1, 0, 9], [0, -1, 2]]
        expected = slow_alphas(sums if remembers else now)
        names = ["evil-1", "evil-2", "y", "z"]
        assert [result.verdicts[name].weight for name in names] == pytest.approx([alpha / 4 for alpha in expected])
        assert (result.verdicts["evil-1"].decision == "held_out") is remembers


# The layer, memory and degenerate rounds.


def test_the_compared_layer_is_the_last_matrix_in_the_order_of_the_model_not_of_the_alphabet():
    model = {"z.weight": np.zeros((2, 2)), "a.weight": np.zeros((2, 2)), "a.bias": np.zeros(2)}
    rng = np.random.default_rng(1)
    clients = {i: {name: rng.normal(size=value.shape) for name, value in model.items()} for i in range(4)}
    clients[3]["a.weight"] = clients[2]["a.weight"]
    result = FoolsGold().aggregate(model, clients)
    assert result.verdicts[3].decision == "held_out"
    assert "'a.weight'" in result.verdicts[3].reason
    other = FoolsGold(layer="z.weight").aggregate(model, clients)
    alphas = slow_alphas([clients[i]["z.weight"].ravel().tolist() for i in range(4)])
    assert weights_of(other) == pytest.approx([alpha / 4 for alpha in alphas])


def test_of_a_model_without_a_matrix_all_parameters_are_compared():
    model = {"a": np.zeros(2), "b": np.zeros(1)}
    clients = {0: {"a": np.array([1.0, 0]), "b": np.zeros(1)}, 1: {"a": np.zeros(2), "b": np.ones(1)}}
    assert weights_of(FoolsGold().aggregate(model, clients)) == [0.5, 0.5]


def test_an_unknown_layer_is_rejected_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'fc'.*0.weight, 0.bias, 2.weight, 2.bias"):
        FoolsGold(layer="fc").aggregate(odd_mlp(), federation(odd_mlp()))


def test_a_single_client_has_weight_1_whatever_its_samples():
    model, sent = one_layer([[2, 3]])
    np.testing.assert_allclose(FoolsGold().aggregate(model, sent, {"a": 0}).weights["w"], [[2, 3]])


def test_running_statistics_are_averaged_by_the_same_weights():
    model = batch_norm_model()
    clients = {i: perturbed(model, min(i, 2)) | {"1.running_mean": torch.full((4,), float(i))} for i in range(4)}
    result = FoolsGold().aggregate(model, clients)
    weights = np.array(weights_of(result))
    assert weights[2] == weights[3] == 0
    slow = sum(w * clients[i]["1.running_mean"].double().numpy() for i, w in enumerate(weights)) / weights.sum()
    np.testing.assert_allclose(result.weights["1.running_mean"], slow, rtol=1e-6)


@pytest.mark.parametrize("when", [0, 1, 2])
def test_a_restored_rule_with_history_continues_bit_for_bit(tmp_path, when):
    model = odd_mlp()
    rule = kept = FoolsGold(history=True)
    for number in range(4):
        if number == when:
            write_state(tmp_path / "state", "foolsgold", rule.state())
            kept = FoolsGold(history=True)
            kept.restore(read_state(tmp_path / "state", "foolsgold"))
        clients = {np.int64(i) if i % 2 else f"c{i + number}": w for i, w in federation(model, 6, 2, number).items()}
        first = rule.aggregate(model, clients)
        if kept is not rule:
            second = kept.aggregate(model, clients)
            assert same(first.weights, second.weights)
            assert first.verdicts == second.verdicts
        model = first.weights


def test_without_history_nothing_is_remembered():
    rule = FoolsGold()
    rule.aggregate(odd_mlp(), federation(odd_mlp()))
    assert rule.state() == SavedState({"clients": []})


def test_remembered_updates_of_another_model_are_rejected():
    rule = FoolsGold(history=True)
    rule.aggregate(odd_mlp(), federation(odd_mlp()))
    with pytest.raises(ValueError, match="another model"):
        rule.aggregate(batch_norm_model(), federation(batch_norm_model()))


@pytest.mark.parametrize("values", [{}, {"clients": [1, 2]}, {"clients": 5}])
def test_an_incomplete_state_is_a_clear_error(values):
    with pytest.raises(StateError, match="foolsgold"):
        FoolsGold(history=True).restore(SavedState(values))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(2, 8), scales=st.lists(st.floats(1e-6, 1e6), min_size=8))
def test_weights_depend_on_cosine_similarities_alone(seed, clients, scales):
    vectors = np.random.default_rng(seed).normal(size=(clients, 4))
    model, sent = one_layer(vectors)
    _, scaled = one_layer(vectors * np.array(scales[:clients])[:, None])
    plain, again = (weights_of(FoolsGold().aggregate(model, clients_)) for clients_ in (sent, scaled))
    assert plain == pytest.approx(again, abs=1e-6)
    assert all(0 <= weight <= 1 / clients for weight in plain)
