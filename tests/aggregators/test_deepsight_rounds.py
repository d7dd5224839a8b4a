"""DeepSight's output layer, degenerate rounds, random inputs and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from g2uardfl.aggregators.context import OutputLayer
from g2uardfl.aggregators.deepsight import DeepSight, division_differences
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.state_files import read_state, write_state
from helpers.deepsight import CLASSES, LinearServer, deepsight, head_clients, head_model
from helpers.models import flat, same
from helpers.processes import PATIENCE
from helpers.rounds import decisions


def test_an_output_layer_without_bias_is_compared_by_its_weight():
    model = head_model(bias=False)
    clients = head_clients(model, 10, 6)
    rule = deepsight(LinearServer(bias=None), min_cluster_size=5, min_samples=3)
    result = rule.aggregate(model, clients)
    assert decisions(result) == "a" * 10 + "h" * 6


def test_whole_models_are_run_with_their_running_statistics():
    model = {**head_model(), "norm.running_mean": torch.zeros(2)}
    clients = head_clients(head_model(), 4, 0)
    clients = {i: {**weights, "norm.running_mean": torch.full((2,), float(i))} for i, weights in clients.items()}
    seen = []

    class Watching(LinearServer):
        def probabilities(self, weights, inputs):
            seen.append(float(weights["norm.running_mean"][0]))
            return super().probabilities(weights, inputs)

    deepsight(Watching(), input_sets=1).aggregate(model, clients)
    assert seen == [0, 0, 1, 2, 3]


def test_without_a_server_it_is_a_clear_error():
    with pytest.raises(ConfigError, match=r"deepsight needs .* attach\(\)") as caught:
        DeepSight().aggregate(head_model(), head_clients(head_model(), 3, 0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("weight", "bias", "words"),
    [
        ("fc.weight", None, "'fc.weight'.*not a parameter.*head.weight"),
        ("head.weight", "fc.bias", "'fc.bias'.*not a parameter"),
        ("head.bias", None, "not an output layer"),
        ("body.weight", "head.bias", "not an output layer"),
    ],
)
def test_a_server_that_names_another_output_layer_is_the_callers_error(weight, bias, words):
    class Wrong(LinearServer):
        @property
        def output_layer(self):
            return OutputLayer(weight, bias)

    with pytest.raises(ConfigError, match=words):
        deepsight(Wrong()).aggregate(head_model(), head_clients(head_model(), 3, 0))


def test_a_single_client_is_accepted_without_running_models():
    model, server = head_model(), LinearServer()
    clients = head_clients(model, 0, 1)
    result = deepsight(server).aggregate(model, clients)
    assert decisions(result) == "a"
    assert not server.inputs
    torch.testing.assert_close(flat(result.weights), flat(clients[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_few_clients_can_only_be_one_cluster_and_the_note_says_so(count):
    model = head_model()
    result = deepsight(min_cluster_size=5).aggregate(model, head_clients(model, count, 0))
    assert decisions(result) == "a" * count
    assert f"only all {count} together" in result.note


def test_copies_of_one_client_are_accepted():
    model = head_model()
    result = deepsight().aggregate(model, dict.fromkeys(range(8), head_clients(model, 1, 0)[0]))
    assert decisions(result) == "a" * 8


def test_zero_updates_keep_the_model():
    model = head_model()
    result = deepsight().aggregate(model, dict.fromkeys(range(8), model))
    assert same(result.weights, model)
    assert [event.kind for event in result.report.events] == ["model_kept"]
    assert result.note == "No cluster was accepted: the global model was kept."


def test_a_zero_update_among_others_is_handled():
    model = head_model()
    clients = {**head_clients(model, 9, 0), 9: model}
    result = deepsight().aggregate(model, clients)
    assert "it has 0 threshold exceedings" in result.verdicts[9].reason
    assert flat(result.weights).isfinite().all()


def test_a_model_with_nan_outputs_does_not_affect_the_other_clients():
    model = head_model()
    clients = {**head_clients(model, 9, 0), 9: {name: value + 1e17 for name, value in model.items()}}

    class Overflowing(LinearServer):
        def probabilities(self, weights, inputs):
            found = super().probabilities(weights, inputs)
            return found * float("nan") if float(weights["head.bias"][0]) > 1e16 else found

    result = deepsight(Overflowing()).aggregate(model, clients)
    assert flat(result.weights).isfinite().all()
    assert (flat(result.weights) - flat(model)).abs().max() < 1


def test_a_class_of_probability_0_in_the_global_model_causes_no_division_by_zero():
    class Certain(LinearServer):
        def probabilities(self, weights, inputs):
            found = torch.zeros(len(inputs), CLASSES)
            found[:, 0] = 1
            return found if "global" in weights else found.roll(1, dims=1)

    ddifs = division_differences(Certain(), {"global": 1}, [{}, {"global": 1}], classes=CLASSES, count=4, seed=[0])
    assert torch.from_numpy(ddifs).isfinite().all()
    assert ddifs[0, 1] > 1e30
    assert ddifs[1].tolist() == [1, 0, 0, 0, 0, 0]


def test_inputs_depend_on_the_seed_the_round_and_the_set():
    model = head_model()
    clients = head_clients(model, 6, 0)
    servers = [LinearServer() for _ in range(3)]
    rules = [deepsight(server, seed=seed) for server, seed in zip(servers, (1, 1, 2), strict=True)]
    for rule in rules:
        rule.aggregate(model, clients)
        rule.aggregate(model, clients)
    first, again, other = (server.seeds for server in servers)
    assert first == again
    assert len(set(first)) == 6
    assert not set(first) & set(other)


def test_a_restored_rule_draws_the_inputs_of_the_next_round(tmp_path):
    model, rule = head_model(), deepsight(seed=3)
    rule.aggregate(model, head_clients(model, 8, 2))
    write_state(tmp_path / "state", "deepsight", rule.state())
    again = deepsight(seed=3)
    again.restore(read_state(tmp_path / "state", "deepsight"))
    first, second = (each.aggregate(model, head_clients(model, 8, 2, 1)) for each in (rule, again))
    assert rule.server.seeds[3:] == again.server.seeds
    assert same(first.weights, second.weights)
    assert first.verdicts == second.verdicts


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
rule = DeepSight(input_sets=1, seed=0)
rule.attach(Server())
before = peak()
rule.aggregate(model, clients)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_an_output_layer_of_50_000_classes_takes_less_memory_than_the_probabilities_of_one_model():
    """2,000 inputs x 50,000 classes are 381 MiB per model; batches of 64 MiB of two models are in memory at a time."""
    run = subprocess.run(
        [sys.executable, "-c", WIDE_HEAD], capture_output=True, text=True, check=True, timeout=10 * PATIENCE
    )
    grown = float(run.stdout)
    assert 64 < grown < 380
