"""The interface of attacks in a run: which methods are called when, with what, and what is refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter

import pytest
import torch

from g2uardfl import attacks, tasks
from g2uardfl.attacks.base import Attack, Turn
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from helpers.attacking import SHORT, assert_close, enlisted, observed_rounds, short_run
from helpers.models import same
from helpers.processes import PATIENCE
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


@pytest.mark.slow
@pytest.mark.parametrize("name", attacks.names()[1:])
def test_a_run_repeated_gives_the_same_records_and_weights_and_another_seed_others(name):
    first, again, other = (short_run(attack=name, seed=seed, alpha=1.0) for seed in (3, 3, 4))
    records, records_again, other_records = (
        [without_times(record) for record in run.records] for run in (first, again, other)
    )
    assert records == records_again
    assert same(first.weights, again.weights)
    assert records != other_records


@pytest.mark.slow
@pytest.mark.parametrize("name", attacks.names()[1:])
def test_batched_training_gives_the_attack_of_the_loop(name):
    loop, batched = (short_run(attack=name, rounds=2, alpha=1.0, engine=engine) for engine in ("loop", "batched"))
    honest = short_run(attack="none", rounds=2, alpha=1.0)
    assert_close(batched.weights, loop.weights, atol=1e-4)
    assert max(float((loop.weights[key] - value).abs().max()) for key, value in honest.weights.items()) > 1e-3


@pytest.mark.parametrize("name", ["dba", "three_d_fed"])
def test_a_target_that_is_no_label_is_refused(name):
    with pytest.raises(ConfigError, match="target=10 is not a label of task digits"):
        enlisted(name, tasks.create("digits"), target=10)


@pytest.mark.parametrize("task", ["sentiment140", "reddit"])
@pytest.mark.parametrize("name", ["dba", "three_d_fed", "randomized(dba)"])
def test_a_text_task_is_refused_before_any_data_is_read(name, task):
    with pytest.raises(ConfigError, match=rf"draws on images, but task {task} has none: choose another"):
        Simulation(RunConfig(task=task, attack=name))


def test_a_refused_attack_is_one_line_and_status_2_on_the_command_line():
    program = [sys.executable, "-c", "from g2uardfl.cli import main; main()"]
    arguments = ["run", "--task", "sentiment140", "--attack", "dba", "--defense", "fedavg"]
    found = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=10 * PATIENCE)
    assert found.returncode == 2
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
