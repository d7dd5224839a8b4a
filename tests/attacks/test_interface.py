"""The interface of attacks in a run: which methods are called when, with what, and what is rejected."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from g2uardfl import attacks, tasks
from g2uardfl.attacks.base import Attack, Turn
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from helpers.attacking import SHORT, assert_close, enlisted, observed_rounds, short_run
from helpers.command_line import cli as cli
from helpers.models import same
from helpers.runs import without_times


class Recorder(Attack):
    """Honest clients that record the calls."""

    name = "recorder"
    summary = "records calls"

    def __init__(self, **settings):
        super().__init__(**settings)
        self.calls, self.poisoned, self.seen = [], Counter(), []

    def training_data(self, client, clean, pdr, generator):
        self.poisoned[client] += 1
        return super().training_data(client, clean, pdr, generator)

    def observe(self, turn):
        self.calls.append((turn.number, "observe"))
        self.seen.append((turn, {name: value.clone() for name, value in turn.global_weights.items()}))

    def attackers(self, turn):
        self.calls.append((turn.number, "attackers"))
        return super().attackers(turn)

    def jobs(self, turn):
        self.calls.append((turn.number, "jobs"))
        return super().jobs(turn)

    def submissions(self, turn, trained):
        self.calls.append((turn.number, "submissions"))
        return super().submissions(turn, trained)


def test_the_attacks_are_those_of_the_contract_with_one_line_each():
    assert attacks.names() == [
        *("none", "black_box", "pgd", "pgd_replacement", "constrain_and_scale", "dba", "three_d_fed"),
        *("dynamic_pdr", "model_obfuscation", "randomized"),
    ]
    for name in attacks.names():
        assert attacks.find(name).name == name
        assert attacks.find(name).summary.strip()
        assert "\n" not in attacks.find(name).summary


def test_an_attack_that_overrides_nothing_is_honest():
    honest, idle = short_run(attack="none"), short_run(attack=f"{__name__}:Recorder")
    assert any(record["attacking"] for record in idle.records)
    assert same(honest.weights, idle.weights)


def test_a_round_calls_the_methods_in_order_and_only_if_attackers_are_selected():
    simulation = short_run(attack=f"{__name__}:Recorder", rounds=8, per_round=2, pmr=0.25)
    with_attackers = [record["round"] for record in simulation.records if record["malicious"]]
    assert 0 < len(with_attackers) < 8
    steps = ("observe", "attackers", "jobs", "submissions")
    assert simulation.attack.calls == [(number, step) for number in with_attackers for step in steps]


def test_the_attacker_sees_its_own_clients_and_its_global_model_and_of_others_only_their_total():
    simulation = Simulation(dataclasses.replace(SHORT, attack=f"{__name__}:Recorder", alpha=0.5))
    rounds = observed_rounds(simulation)
    assert {field.name for field in dataclasses.fields(Turn)} == {
        *("number", "global_weights", "members", "num_examples", "generator")
    }
    clients = simulation.samples.clients
    for turn, weights in simulation.attack.seen:
        record = simulation.records[turn.number - 1]
        assert [member.client for member in turn.members] == record["malicious"]
        assert turn.num_examples == sum(len(clients[client]) for client in record["selected"])
        assert same(weights, rounds[turn.number - 1].global_weights)
        for member in turn.members:
            assert torch.equal(member.clean.x, clients[member.client].x)
            assert member.recipe.lr == pytest.approx(0.05 * 0.998 ** (turn.number - 1))


def test_training_data_is_made_once_per_client():
    simulation = short_run(attack=f"{__name__}:Recorder", rounds=5)
    selected = Counter(client for record in simulation.records for client in record["malicious"])
    assert max(selected.values()) > 1
    assert simulation.attack.poisoned == dict.fromkeys(selected, 1)


def test_an_attack_is_not_called_outside_its_rounds():
    simulation = short_run(attack=f"{__name__}:Recorder", rounds=5, attack_from=3, attack_until=4)
    assert {number for number, _ in simulation.attack.calls} == {3, 4}


@pytest.fixture(scope="module")
def honest():
    """The model after two rounds without an attack."""
    return short_run(attack="none", **TWO_ROUNDS).weights


TWO_ROUNDS = {"rounds": 2, "alpha": 1.0, "evaluate_every": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", attacks.names()[1:])
def test_a_run_repeated_gives_the_same_attack_and_so_does_batched_training(name, honest):
    first, again, batched = (short_run(attack=name, engine=one, **TWO_ROUNDS) for one in ("loop", "loop", "batched"))
    assert list(map(without_times, first.records)) == list(map(without_times, again.records))
    assert same(first.weights, again.weights)
    assert_close(batched.weights, first.weights, atol=1e-4)
    assert max(float((first.weights[key] - value).abs().max()) for key, value in honest.items()) > 1e-3


def test_another_seed_gives_another_run():
    first, other = (short_run(attack="black_box", seed=seed, rounds=1) for seed in (3, 4))
    assert without_times(first.records[0]) != without_times(other.records[0])


@pytest.mark.parametrize("name", ["dba", "three_d_fed"])
def test_a_target_that_is_not_a_label_is_rejected(name):
    with pytest.raises(ConfigError, match="target=10 is not a label of task digits"):
        enlisted(name, tasks.create("digits"), target=10)


@pytest.mark.parametrize("task", ["sentiment140", "reddit"])
@pytest.mark.parametrize("name", ["dba", "three_d_fed", "randomized(dba)"])
def test_a_text_task_is_rejected_before_any_data_is_read(name, task):
    with pytest.raises(ConfigError, match=rf"draws on images, but task {task} has none: choose another"):
        Simulation(RunConfig(task=task, attack=name))


def test_a_rejected_attack_is_one_line_and_status_2_on_the_command_line(cli):
    found = cli("run", "--task", "sentiment140", "--attack", "dba", "--defense", "fedavg")
    assert found.status == 2
    assert found.stderr.count("\n") == 1
    assert "draws on images" in found.stderr


def test_a_whole_number_may_be_written_as_a_decimal():
    assert attacks.create("dba", size=2.0).settings.size == 2
    assert isinstance(attacks.create("dba", size=2.0).settings.size, int)
    with pytest.raises(ConfigError, match=r"size=2\.5"):
        attacks.create("dba", size=2.5)


def test_the_representation_shows_every_setting():
    assert repr(attacks.create("pgd_replacement", radius=2.0)) == "PGDReplacement(radius=2.0, share='team')"
    nested = attacks.create("randomized(model_obfuscation(black_box))", noise=0.1)
    assert repr(nested) == "Randomized(ModelObfuscation(BlackBox(), noise=0.1), probability=0.5)"
