"""A third party's attacks, from their own module, on every engine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from g2uardfl import attacks
from g2uardfl.attacks.base import Attack
from g2uardfl.core.errors import ConfigError, G2uardFLError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Interrupted, Simulation
from g2uardfl.training.local import Job, share_predicted, train_locally
from helpers.attacking import StopAfter, observed_rounds
from helpers.models import same

MIRRORED = '''
"""Mirrored sevens get the label 1; attackers train twice as long and double their update."""

from dataclasses import replace

import torch

from g2uardfl.attacks.base import Attack, mix_trigger, moved, parameter_names
from g2uardfl.tasks.base import Samples


class Mirrored(Attack):
    name = "mirrored"
    summary = "labels mirrored pictures as ones"

    def backdoor_test(self):
        return self.mirror(self.task.test.take(torch.nonzero(self.task.test.y == 7).flatten()))

    def training_data(self, client, clean, pdr, generator):
        return mix_trigger(clean, pdr, generator, self.mirror)

    def recipe(self, honest):
        return replace(honest, epochs=2 * honest.epochs, radius=1.5)

    def submissions(self, turn, trained):
        names = parameter_names(self.task)
        return {who.client: moved(turn.global_weights, trained[who.client], 2.0, names) for who in turn.members}

    def mirror(self, samples):
        return Samples(samples.x.flip(-1), torch.ones_like(samples.y))
'''

TWO_BACKDOORS = '''
"""Half of the team poisons with the task's backdoor, the other half with the bars of DBA."""

from dataclasses import replace

from g2uardfl.attacks import create
from g2uardfl.attacks.base import Attack
from g2uardfl.tasks.base import concatenate


class TwoBackdoors(Attack):
    name = "two_backdoors"
    summary = "two groups, two backdoors"

    def enlist(self, task, team):
        super().enlist(task, team)
        self.halves = [create("black_box"), create("dba", target=5)]
        for half, members in zip(self.halves, (self.team[::2], self.team[1::2])):
            half.enlist(task, members)

    def of(self, client):
        return next(half for half in self.halves if client in half.team)

    def backdoor_test(self):
        return concatenate(*(half.backdoor_test() for half in self.halves))

    def training_data(self, client, clean, pdr, generator):
        return self.of(client).training_data(client, clean, pdr, generator)

    def jobs(self, turn):
        return {
            who.client: self.of(who.client).jobs(replace(turn, members=(who,)))[who.client] for who in turn.members
        }
'''

COUNTING = """
from dataclasses import dataclass

from g2uardfl.attacks.base import Attack
from g2uardfl.core.settings import number
from g2uardfl.core.state_files import SavedState


@dataclass(frozen=True)
class CountingSettings:
    every: int = number(2, 1, 100)


class Counting(Attack):
    name = "counting"
    summary = "attacks in every n-th round"
    Settings = CountingSettings
    rounds = 0

    def attackers(self, turn):
        self.rounds += 1
        return turn.members if self.rounds % self.settings.every == 0 else ()

    def submissions(self, turn, trained):
        return {who.client: turn.global_weights for who in turn.members}

    def state(self):
        return SavedState({"rounds": self.rounds})

    def restore(self, state):
        self.rounds = state.values["rounds"]


class Forgetful(Attack):
    name = "forgetful"
    summary = "sends nothing for the last attacker"

    def submissions(self, turn, trained):
        return {who.client: trained[who.client] for who in turn.members[:-1]}


class Impostor(Attack):
    name = "impostor"
    summary = "sends a model for a client it does not have"

    def submissions(self, turn, trained):
        return {who.client: trained[who.client] for who in turn.members} | {-1: turn.global_weights}


class NotAnAttack:
    pass
"""

CONFIG = {"task": "digits", "clients": 30, "per_round": 8, "pmr": 0.5, "workers": 1}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A third party's folder of modules, importable for this file."""
    place = tmp_path_factory.mktemp("theirs")
    package = place / "their_package"
    package.mkdir()
    modules = {"__init__": "", "mirrored": MIRRORED, "two_backdoors": TWO_BACKDOORS, "counting": COUNTING}
    for name, code in modules.items():
        (package / f"{name}.py").write_text(code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        importlib.invalidate_caches()
        yield place
    for name in [name for name in sys.modules if name.split(".")[0] == "their_package"]:
        del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The same number of threads as worker processes, so that sums have the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def simulate(attack: str, engine: str = "loop", **changes) -> Simulation:
    simulation = Simulation(RunConfig(**{**CONFIG, "attack": attack, "engine": engine, **changes}))
    simulation.run()
    return simulation


def test_it_is_found_by_its_address_and_takes_few_lines():
    attack = attacks.create("their_package.mirrored:Mirrored")
    assert isinstance(attack, Attack)
    assert attack.name == "mirrored"
    body = MIRRORED.partition("class Mirrored")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20


@pytest.mark.slow
def test_it_plants_its_backdoor():
    simulation = simulate("their_package.mirrored:Mirrored", rounds=4)
    start, end = simulation.start_scores, simulation.records[-1]
    assert start["asr"] < 0.2
    assert max(record["asr"] for record in simulation.records) > start["asr"] + 0.5
    assert end["acc"] > start["acc"] - 0.25
    assert len(simulation.attack.backdoor_test()) == int((simulation.task.test.y == 7).sum())
    assert any(record["attacking"] for record in simulation.records)


@pytest.mark.slow
def test_two_groups_plant_two_backdoors_at_once():
    """All clients take part in every round, and so all four bars."""
    name = "their_package.two_backdoors:TwoBackdoors"
    simulation = simulate(name, clients=20, per_round=20, pmr=0.8, rounds=6, evaluate_every=6)
    edge, bars = (half.backdoor_test() for half in simulation.attack.halves)
    assert len(simulation.attack.backdoor_test()) == len(edge) + len(bars)
    assert set(edge.y.tolist()) == {0}
    assert set(bars.y.tolist()) == {5}
    first, second = (set(half.team) for half in simulation.attack.halves)
    assert first | second == simulation.schedule.malicious
    assert (len(first), len(second)) == (8, 8)
    assert simulation.start_scores["asr"] < 0.1
    for backdoor in (edge, bars):
        assert share_predicted(simulation.task, simulation.model, backdoor) > 0.25
    both = share_predicted(simulation.task, simulation.model, simulation.attack.backdoor_test())
    assert simulation.records[-1]["asr"] == pytest.approx(both)
    assert simulation.records[-1]["acc"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("address", ["mirrored:Mirrored", "two_backdoors:TwoBackdoors"])
def test_every_engine_ends_with_the_loops_weights(address):
    """Worker processes bit for bit, batched training up to rounding."""
    changes = {"rounds": 2, "start": "scratch", "alpha": 1.0, "evaluate_every": 2}
    loop, workers, batched = (
        simulate(f"their_package.{address}", engine, **changes) for engine in ("loop", "workers", "batched")
    )
    assert [record["attacking"] for record in loop.records].count([]) == 0
    assert same(workers.weights, loop.weights)
    for key, value in loop.weights.items():
        torch.testing.assert_close(batched.weights[key], value, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_server_receives_what_the_attack_sends():
    config = {**CONFIG, "attack": "their_package.mirrored:Mirrored", "engine": "loop", "rounds": 1}
    simulation = Simulation(RunConfig(**config))
    (round_,) = observed_rounds(simulation)
    before = round_.global_weights
    (record,) = simulation.records
    assert record["attacking"]
    for client in record["attacking"]:
        honest = simulation.honest_job(1, client)
        recipe = simulation.attack.recipe(honest.recipe)
        assert (recipe.epochs, recipe.radius) == (2 * honest.recipe.epochs, 1.5)
        job = Job(client, simulation.samples.poisoned(client), recipe, honest.seed)
        trained = train_locally(simulation.task, simulation.task.build_model(), before, job)
        for name, value in trained.items():
            doubled = before[name].double() + 2 * (value.double() - before[name].double())
            torch.testing.assert_close(round_.client_weights[client][name].double(), doubled, rtol=0, atol=1e-5)


def test_each_half_trains_on_its_own_backdoor():
    simulation = simulate("their_package.two_backdoors:TwoBackdoors", rounds=3, start="scratch")
    edge, _ = simulation.attack.halves
    clients = {client for record in simulation.records for client in record["malicious"]}
    assert clients
    for client in clients:
        poisoned, clean = simulation.samples.poisoned(client), len(simulation.samples.clients[client])
        corner = (poisoned.x[:, :, 6:, 6:] == 16).flatten(1).all(dim=1) & (poisoned.y == 0)
        if client in edge.team:
            assert int(corner.sum()) == pytest.approx(clean / 2, abs=1)
        else:
            assert int(corner.sum()) <= 1
            assert int((poisoned.y == 5).sum()) >= clean // 2


def test_it_can_be_wrapped():
    simulation = simulate("randomized(their_package.mirrored:Mirrored)", rounds=4, start="scratch")
    assert any(record["malicious"] != record["attacking"] for record in simulation.records)
    assert simulation.attack.inner.name == "mirrored"


def test_its_settings_are_checked_and_its_memory_survives_a_resume():
    name = "their_package.counting:Counting"
    with pytest.raises(ConfigError, match="every=0"):
        attacks.create(name, every=0)
    with pytest.raises(ConfigError, match="did you mean every"):
        attacks.create(name, evry=3)
    config = {"rounds": 6, "start": "scratch", "attack_settings": {"every": 3}, "per_round": 20, "local_steps": 1}
    whole = simulate(name, **config)
    assert [bool(record["attacking"]) for record in whole.records] == [False, False, True, False, False, True]
    stopped, resumed = Simulation(whole.config), Simulation(whole.config)
    with pytest.raises(Interrupted):
        stopped.run([StopAfter(2)])
    resumed.resume(stopped.checkpoint(), list(stopped.records))
    resumed.run()
    assert [record["attacking"] for record in resumed.records] == [record["attacking"] for record in whole.records]
    assert same(resumed.weights, whole.weights)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("their_package.nowhere:Mirrored", "cannot import their_package.nowhere"),
        ("their_package.mirrored:Mirror", "has no Mirror"),
        ("their_package.mirrored:torch", "torch is not a class"),
        ("their_package.counting:NotAnAttack", "must subclass g2uardfl.attacks.base.Attack"),
    ],
)
def test_a_wrong_address_is_a_clear_error(address, message):
    with pytest.raises(ConfigError, match=message):
        Simulation(RunConfig(**{**CONFIG, "attack": address}))


@pytest.mark.parametrize("pattern", ["{}", "model_obfuscation({})"])
def test_an_attack_that_sends_nothing_for_a_member_is_a_clear_error(pattern):
    attack = pattern.format("their_package.counting:Forgetful")
    simulation = Simulation(RunConfig(**{**CONFIG, "attack": attack, "start": "scratch", "engine": "loop"}))
    last = max(simulation.schedule.malicious.intersection(simulation.schedule.selected[0].tolist()))
    with pytest.raises(G2uardFLError) as caught:
        simulation.run()
    assert f"attack {attack} sends nothing for client {last}, which attacks in round 1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_attack_that_sends_a_model_for_another_client_is_a_clear_error():
    attack = "their_package.counting:Impostor"
    simulation = Simulation(RunConfig(**{**CONFIG, "attack": attack, "start": "scratch", "engine": "loop"}))
    with pytest.raises(G2uardFLError, match="client -1, which is not a member in round 1"):
        simulation.run()
