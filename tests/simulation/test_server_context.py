"""The server of the simulator: root data, root updates, random inputs, probabilities and the output layer."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from g2uardfl import tasks
from g2uardfl.aggregators.context import OutputLayer
from g2uardfl.aggregators.deepsight import DeepSight
from g2uardfl.aggregators.fltrust import FLTrust
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.server import SimulatedServer, find_output_layer, for_as_many_steps, split_root
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples, Task, TrainingDefaults
from g2uardfl.tasks.models import LeNet, ResNet18, SimpleNet
from g2uardfl.tasks.text_models import LSTMClassifier
from g2uardfl.training.dropout import with_keyed_dropout
from g2uardfl.training.local import Job, Recipe, train_locally
from helpers.models import same


def recipe(lr=0.05, steps=3):
    return Recipe(lr=lr, batch_size=4, epochs=1, steps=steps, momentum=0.9, weight_decay=1e-4)


@pytest.fixture(scope="module")
def digits():
    return tasks.create("digits")


@pytest.fixture(scope="module")
def weights(digits):
    return fresh_weights(digits, 0)


def server_of(task, root=None, rounds_recipe=lambda _: recipe(), seed=0):
    return SimulatedServer(task, task.build_model(), root or split_root(task.test, 0)[0], rounds_recipe, seed=seed)


# Root data.


@settings(max_examples=50, deadline=None)
@given(count=st.integers(2, 400), seed=st.integers(0, 2**32), share=st.sampled_from([0.001, 0.01, 0.3, 1.0]))
def test_root_data_and_the_rest_partition_the_test_data(count, seed, share):
    test = Samples(torch.arange(count) * 10, torch.arange(count))
    root, rest = split_root(test, seed, share)
    assert len(root) == min(max(1, round(share * count)), count - 1)
    assert sorted([*root.y.tolist(), *rest.y.tolist()]) == list(range(count))
    for part in (root, rest):
        assert part.y.tolist() == sorted(part.y.tolist())
        assert (part.x == part.y * 10).all()


def test_root_data_is_one_percent_and_depends_on_the_seed(digits):
    first, again, other = (split_root(digits.test, seed)[0] for seed in (1, 1, 2))
    assert len(first) == 4
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)


def test_test_data_of_a_single_sample_cannot_be_divided():
    with pytest.raises(ConfigError, match="two samples"):
        split_root(Samples(torch.zeros(1), torch.zeros(1)), 0)


# Training on it.


def test_the_root_update_is_a_clients_training_on_the_root_data(digits, weights):
    root, _ = split_root(digits.test, 0)
    server = server_of(digits, root, lambda number: recipe(lr=0.1 / number))
    trained = server.root_update(weights, 2)
    changed = {name for name in weights if not torch.equal(trained[name], weights[name])}
    assert changed == set(weights)
    model = digits.build_model()
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    # One batch holds all four root samples, so their order has no influence.
    for _ in range(3):
        optimizer.zero_grad()
        digits.loss(model(digits.prepare(root.x)), root.y).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-6)


def test_a_root_update_depends_only_on_round_and_seed(digits, weights):
    root = digits.test.take(torch.arange(20))
    server = server_of(digits, root)
    first = server.root_update(weights, 1)
    server.root_update(weights, 2)
    assert same(first, server.root_update(weights, 1))
    assert not same(first, server.root_update(weights, 2))
    assert not same(first, server_of(digits, root, seed=1).root_update(weights, 1))


def test_the_servers_dropout_is_keyed_like_a_clients():
    class Dropping(Tokens):
        def build_model(self):
            return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))

        def prepare(self, x):
            return x.float()

    task = Dropping()
    start = fresh_weights(task, 0)
    server = server_of(task, task.test)
    torch.manual_seed(1)
    first = server.root_update(start, 1)
    torch.manual_seed(2)
    assert same(first, server.root_update(start, 1))


@pytest.mark.parametrize(("samples", "steps"), [(29, 2), (300, 20), (1, 2), (32, 2), (33, 4)])
def test_the_server_takes_as_many_steps_as_a_client(samples, steps, digits, weights):
    base = Recipe(lr=0.05, batch_size=32, epochs=2, steps=0, momentum=0.9, weight_decay=0)
    same_steps = for_as_many_steps(base, samples)
    assert same_steps.steps == steps
    data = Samples(digits.train.x[:samples], digits.train.y[:samples])
    client = Job(client=0, samples=data, recipe=base, seed=1)
    model = with_keyed_dropout(digits.build_model())
    as_client = train_locally(digits, model, weights, client)
    as_server = train_locally(digits, model, weights, Job(client=0, samples=data, recipe=same_steps, seed=1))
    assert same(as_client, as_server)


def test_a_recipe_in_steps_is_not_changed():
    assert for_as_many_steps(recipe(steps=7), 300) == recipe(steps=7)


# Running models.


class Tokens(Task):
    """Five token ids of a vocabulary of 9, three classes."""

    name = "tokens"
    summary = "token ids"
    models = ("mlp",)
    defaults = TrainingDefaults(lr=0.1)
    num_classes = 3
    stored = torch.int32

    def load_train(self):
        tokens = torch.arange(45).remainder(9).view(9, 5).to(self.stored)
        return Samples(tokens, torch.arange(9) % 3)

    load_test = load_backdoor_train = load_backdoor_test = load_train

    def build_model(self):
        return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))

    def prepare(self, x):
        return x.long()


def test_random_images_are_uniform_noise_from_black_to_white(digits):
    server = server_of(digits)
    inputs = server.random_inputs(2000, 7)
    assert inputs.shape == (2000, 1, 8, 8)
    assert inputs.dtype == digits.train.x.dtype
    prepared = digits.prepare(inputs)
    assert (prepared.min(), prepared.max()) == (0, 1)
    counts = torch.bincount(inputs.flatten().long(), minlength=17).float()
    assert (counts / counts.mean() - 1).abs().max() < 0.05
    assert torch.equal(inputs, server.random_inputs(2000, 7))
    assert not torch.equal(inputs, server.random_inputs(2000, 8))


def test_random_text_uses_every_token_of_the_vocabulary():
    inputs = server_of(Tokens()).random_inputs(300, 0)
    assert inputs.dtype == torch.int32
    assert torch.bincount(inputs.flatten().long()).tolist() == pytest.approx([1500 / 9] * 9, rel=0.3)


def test_random_inputs_of_a_task_with_real_numbers_cover_their_range():
    class Numbers(Tokens):
        stored = torch.float32

    inputs = server_of(Numbers()).random_inputs(500, 0)
    assert inputs.dtype == torch.float32
    assert 0 <= inputs.min() < 0.1
    assert 7.9 < inputs.max() <= 8


def test_probabilities_are_softmax_outputs_not_logits(digits, weights):
    server = server_of(digits)
    inputs = digits.test.x[:150]
    got = server.probabilities(weights, inputs)
    model = digits.build_model()
    model.load_state_dict(weights)
    logits = model(digits.prepare(inputs)).double()
    expected = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for row in logits.tolist()]
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    assert not got.requires_grad


def test_models_with_log_probabilities_as_outputs_give_the_same_probabilities():
    class Logarithmic(Tokens):
        def build_model(self):
            return nn.Sequential(OrderedDict([*super().build_model().named_children(), ("log", nn.LogSoftmax(1))]))

    plain, logarithmic = server_of(Tokens()), server_of(Logarithmic())
    start = fresh_weights(Tokens(), 0)
    inputs = plain.random_inputs(20, 0)
    torch.testing.assert_close(plain.probabilities(start, inputs), logarithmic.probabilities(start, inputs))


def test_models_are_run_in_evaluation_mode_also_from_numpy_arrays(digits, weights):
    server = server_of(digits)
    expected = server.probabilities(weights, digits.test.x[:5])
    server.root_update(weights, 1)
    assert server.model.training
    as_numpy = {name: value.double().numpy() for name, value in weights.items()}
    assert torch.equal(server.probabilities(as_numpy, digits.test.x[:5]), expected)
    assert not server.model.training


# The output layer.


class TiedByModule(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 4)
        self.decoder = nn.Linear(4, 9, bias=bias)
        self.decoder.weight = self.embedding.weight


class TiedByUse(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 4)
        self.norm = nn.LayerNorm(4)


@pytest.mark.parametrize(
    ("model", "classes", "weight", "bias"),
    [
        (LeNet(), 10, "fc2.weight", "fc2.bias"),
        (SimpleNet(), 10, "fc2.weight", "fc2.bias"),
        (ResNet18(), 10, "fc.weight", "fc.bias"),
        (LSTMClassifier(9, embedding_width=4, hidden_width=3, num_classes=9), 9, "output.weight", "output.bias"),
        (LSTMClassifier(9, embedding_width=4, hidden_width=3, num_classes=2), 2, "output.weight", "output.bias"),
        (TiedByModule(bias=True), 9, "decoder.weight", "decoder.bias"),
        (TiedByModule(bias=False), 9, "decoder.weight", None),
        (TiedByUse(), 9, "embedding.weight", None),
        (nn.Linear(4, 3, bias=False), 3, "weight", None),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)), 3, "1.weight", "1.bias"),
        (nn.Sequential(nn.Conv2d(2, 5, 1), nn.Flatten()), 5, "0.weight", "0.bias"),
    ],
)
def test_the_output_layer_is_found_in_the_model(model, classes, weight, bias):
    assert find_output_layer(model, classes) == OutputLayer(weight, bias)
    assert weight in model.state_dict()


def test_a_model_without_an_output_layer_says_so():
    with pytest.raises(ConfigError, match="7 rows"):
        find_output_layer(LeNet(), 7)


# Both rules on the digits task.


def test_fltrust_and_deepsight_run_on_the_simulators_server(digits, weights):
    model = with_keyed_dropout(digits.build_model())
    clients = {
        i: train_locally(
            digits,
            model,
            weights,
            Job(client=i, samples=digits.train.take(torch.arange(20 * i, 20 * i + 20)), recipe=recipe(), seed=i),
        )
        for i in range(5)
    }
    clients[5] = {name: 2 * weights[name] - clients[0][name] for name in weights}
    for rule in (FLTrust(), DeepSight(random_inputs=40, seed=0)):
        server = server_of(digits)
        assert server.output_layer == OutputLayer("fc2.weight", "fc2.bias")
        rule.attach(server)
        result = rule.aggregate(weights, clients)
        assert all(torch.isfinite(value).all() for value in result.weights.values())
        assert not same(result.weights, weights)
        if rule.name == "fltrust":
            assert result.verdicts[5].decision == "held_out"
            step = torch.sqrt(sum((result.weights[n] - weights[n]).double().square().sum() for n in weights))
            root = server.root_update(weights, 1)
            assert step <= torch.sqrt(sum((root[n] - weights[n]).double().square().sum() for n in weights))
