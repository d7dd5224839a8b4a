"""Records: they hold what the guard decided on, change nothing, and are decided again with the same result."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from g2uardfl import G2uardFL, aggregators
from g2uardfl.core.errors import StateError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from g2uardfl.defense.observation import Observation
from g2uardfl.defense.profiles import find, names
from g2uardfl.defense.recording import Record, RoundRecorder, without
from helpers.federations import Federation, run_late_detection
from helpers.models import StandInServer, batch_norm_model, numpy_model, odd_mlp, perturbed, same

QUICK = {"pretrain_epochs": 5, "cluster_epochs": 5}
MEASURED = {name: set(find(name).observer.client_axes) for name in names()}
GUARDS = [
    pytest.param("paper", QUICK, id="paper"),
    pytest.param("paper", {**QUICK, "seed": 4, "score_update": "printed"}, id="paper, other settings"),
    pytest.param("default", {}, id="default"),
    pytest.param("default", {"seed": 4, "window": 40, "sketch_width": 96}, id="default, other settings"),
]


def sent_in(model, number, clients=10):
    """One of every four clients attacks, and the clients change from round to round."""
    ids = np.random.default_rng([7, number]).choice(20, clients, replace=False).tolist()
    return {
        f"client {i}" if i % 2 else i: perturbed(model, 1000 * number + i, shift=0.1 if i % 4 == 0 else 0.0)
        for i in ids
    }


def run(rule, rounds=6, model=None, clients=10, **options):
    model, results = odd_mlp() if model is None else model, []
    for number in range(1, rounds + 1):
        results.append(rule.aggregate(model, sent_in(model, number, clients), round_number=number, **options))
        model = results[-1].weights
    return results


def recorded(rule, rounds=6, run=run, **options):
    """The results of a run and its record."""
    recorder = RoundRecorder(**options)
    return run(rule, rounds, observers=[recorder]), recorder.record


def equal(first: Observation, second: Observation, only=None) -> bool:
    """Whether two observations are equal, measurements bit for bit."""
    measured = first.measured.keys() if only is None else only
    return (first.clients, first.layers) == (second.clients, second.layers) and all(
        np.array_equal(first[name], second[name]) and first[name].dtype == second[name].dtype for name in measured
    )


def loaded(record: Record, tmp_path) -> Record:
    record.save(tmp_path / "record")
    return Record.load(tmp_path / "record")


@pytest.fixture(scope="module")
def fedavg_record() -> Record:
    return recorded(aggregators.create("fedavg"), seed=3)[1]


@pytest.mark.parametrize("kept", [False, True], ids=["live", "loaded"])
@pytest.mark.parametrize(("profile", "settings"), GUARDS)
def test_a_record_holds_the_very_observations_that_the_guard_decided_on(profile, settings, kept, tmp_path):
    seen, recorder = [], RoundRecorder()
    guard = G2uardFL(profile, **{"seed": 0, **settings})
    run(guard, observers=[lambda _, outcome: seen.append(outcome.observation), recorder])
    record = loaded(recorder.record, tmp_path) if kept else recorder.record
    assert len(record.rounds) == len(seen) == 6
    for observation, own in zip(record.rounds, seen, strict=True):
        assert set(own.measured) == MEASURED[profile]
        assert set(observation.measured) == set().union(*MEASURED.values())
        assert equal(own, observation)


@pytest.mark.parametrize(("profile", "settings"), GUARDS)
@pytest.mark.parametrize(("rounds", "clients"), [(12, 8), (3, 2)])
def test_a_replay_gives_the_verdicts_of_the_run_and_the_same_memory(profile, settings, rounds, clients, tmp_path):
    guard = G2uardFL(profile, **{"seed": 0, **settings})
    results, record = recorded(guard, rounds, partial(run, clients=clients))
    again = G2uardFL(profile, **{"seed": 0, **settings})
    for result, observation in zip(results, loaded(record, tmp_path).rounds, strict=True):
        expected = {client: replace(verdict, weight=None) for client, verdict in result.verdicts.items()}
        assert again.judge(observation) == expected
    if clients > 5:
        assert len({verdict.decision for result in results for verdict in result.verdicts.values()}) > 1
    assert again.round == guard.round
    for part in ("construction", "clustering", "filtering"):
        saved, found = getattr(guard, part).state(), getattr(again, part).state()
        assert found.values == saved.values
        assert found.arrays.keys() == saved.arrays.keys()
        assert all(np.array_equal(found.arrays[name], array) for name, array in saved.arrays.items())


@pytest.mark.parametrize("run", [Federation().run, run_late_detection], ids=["returning clients", "changing clients"])
def test_a_replay_follows_a_run_whose_model_was_rolled_back(run):
    results, record = recorded(G2uardFL(seed=0), 12, run=run)
    assert "rolled_back" in {event.kind for result in results for event in result.report.events}
    again = G2uardFL(seed=0)
    for result, observation in zip(results, record.rounds, strict=True):
        expected = {client: replace(verdict, weight=None) for client, verdict in result.verdicts.items()}
        assert again.judge(observation) == expected


def test_a_record_of_another_rule_holds_what_the_guard_of_each_profile_would_have_seen():
    model, rule = odd_mlp(), aggregators.create("fedavg")
    recorder, guards = RoundRecorder(seed=3), {name: G2uardFL(name, seed=3) for name in names()}
    seen = {name: [] for name in names()}
    for number in range(1, 5):
        sent = sent_in(model, number)
        for name, guard in guards.items():
            keep = seen[name]
            guard.aggregate(model, sent, observers=[lambda _, outcome, keep=keep: keep.append(outcome.observation)])
        model = rule.aggregate(model, sent, observers=[recorder]).weights
    for name in names():
        assert all(equal(own, one) for own, one in zip(seen[name], recorder.record.rounds, strict=True))


@pytest.mark.parametrize("profile", names())
def test_a_record_of_another_rule_is_decided_by_the_guard_of_each_profile(profile):
    _, record = recorded(aggregators.create("fedavg"), 12, run=Federation().run)
    guard = G2uardFL(profile, seed=0)
    decisions = {verdict.decision for one in record.rounds for verdict in guard.judge(one).values()}
    assert {"accepted", "malicious"} <= decisions


def test_recorded_rounds_can_be_decided_with_other_settings(fedavg_record):
    strict, lenient = G2uardFL(seed=0, false_alarm_rate=0.5), G2uardFL(seed=0, max_malicious_share=1e-9)
    decisions = [
        {verdict.decision for observation in fedavg_record.rounds for verdict in guard.judge(observation).values()}
        for guard in (strict, lenient)
    ]
    assert "malicious" in decisions[0]
    assert decisions[1] == {"accepted"}


def test_a_recorder_can_be_limited_to_one_profile():
    for profile in names():
        _, record = recorded(aggregators.create("fedavg"), 2, profiles=[profile])
        assert all(set(one.measured) == MEASURED[profile] for one in record.rounds)


@pytest.mark.parametrize("profile", names())
def test_a_record_without_a_measurement_is_a_clear_error(fedavg_record, profile):
    for name in MEASURED[profile]:
        one = fedavg_record.rounds[0]
        lacking = replace(one, measured={key: value for key, value in one.measured.items() if key != name})
        with pytest.raises(StateError, match=f"this observation has no '{name}': record the rounds with a profile"):
            G2uardFL(profile, seed=0).judge(lacking)
    [other] = set(names()) - {profile}
    foreign = replace(one, measured={name: one[name] for name in MEASURED[other]})
    with pytest.raises(StateError, match="this observation has no"):
        G2uardFL(profile, seed=0).judge(foreign)


def test_rounds_that_kept_the_model_are_not_recorded():
    recorder, guard, model = RoundRecorder(), G2uardFL(seed=0), odd_mlp()
    for number, clients in enumerate((5, 2, 6), start=1):
        guard.aggregate(
            model, sent_in(model, number, clients), min_updates=4, round_number=number, observers=[recorder]
        )
    guard.aggregate(model, {1: {}, 2: None}, round_number=4, observers=[recorder])
    assert recorder.record.numbers == [1, 3]
    assert [len(one.clients) for one in recorder.record.rounds] == [5, 6]


def test_rounds_are_numbered_as_the_caller_counts_or_from_1():
    model = odd_mlp()
    for given, expected in (([7, 9], [7, 9]), ([None, None], [1, 2])):
        recorder = RoundRecorder()
        for number in given:
            aggregators.create("fedavg").aggregate(model, sent_in(model, 1), round_number=number, observers=[recorder])
        assert recorder.record.numbers == expected


def test_invalid_clients_are_not_recorded():
    model, recorder = odd_mlp(), RoundRecorder()
    sent = sent_in(model, 1)
    result = G2uardFL(seed=0).aggregate(model, {**sent, "broken": {}}, observers=[recorder])
    assert result.verdicts["broken"].decision == "invalid"
    assert set(recorder.record.rounds[0].clients) == set(sent)


def repeatable(name, **settings):
    """A rule that gives the same results each time it is created."""
    return aggregators.create(name, **({"seed": 0} if aggregators.find(name).takes_seed else {}), **settings)


@pytest.mark.parametrize("model", [odd_mlp, batch_norm_model, numpy_model])
@pytest.mark.parametrize("name", ["fedavg", "krum", "median", "foolsgold", "g2uardfl"])
def test_recording_changes_no_bit_of_a_run(name, model):
    plain = run(repeatable(name), 3, model())
    watched = run(repeatable(name), 3, model(), observers=[RoundRecorder()])
    for first, second in zip(plain, watched, strict=True):
        assert first.verdicts == second.verdicts
        assert first.report.events == second.report.events
        assert same(first.weights, second.weights)


@pytest.mark.parametrize("name", ["fedavg", "g2uardfl", "rfa"])
def test_recording_changes_no_bit_of_a_large_model(name):
    """Rules read such a model in blocks, and sums of blocks are rounded in an order of their own."""
    rng = np.random.default_rng(0)
    model = {"w": rng.normal(size=(600, 500)).astype(np.float32), "b": np.zeros(500, np.float32)}
    plain, watched, recorder = repeatable(name), repeatable(name), RoundRecorder()
    for _ in range(2):
        clients = {
            client: {
                key: (value + 0.01 * rng.normal(size=value.shape)).astype(np.float32) for key, value in model.items()
            }
            for client in range(12)
        }
        result = plain.aggregate(model, clients)
        assert same(result.weights, watched.aggregate(model, clients, observers=[recorder]).weights)
        model = result.weights


@pytest.mark.parametrize("name", ["fltrust", "deepsight"])
def test_rules_that_run_models_can_be_recorded(name):
    model, found = odd_mlp(), []
    for observers in ([], [RoundRecorder()]):
        rule = repeatable(name, **({"random_inputs": 64} if name == "deepsight" else {}))
        rule.attach(StandInServer(model))
        found.append(rule.aggregate(model, sent_in(model, 1), observers=observers))
    assert found[0].verdicts == found[1].verdicts
    assert same(found[0].weights, found[1].weights)
    assert len(observers[0].record.rounds) == 1


# The file.


def test_a_record_holds_every_number_exactly(fedavg_record, tmp_path):
    noted = Record(fedavg_record.rounds, list(range(11, 17)), [np.arange(10) % 3 == 0] * 6, {"task": "none", "seed": 3})
    again = loaded(noted, tmp_path)
    assert again.notes == noted.notes
    assert again.numbers == noted.numbers
    assert [truth.tolist() for truth in again.attacking] == [truth.tolist() for truth in noted.attacking]
    assert len(again.rounds) == 6
    assert all(equal(first, second) for first, second in zip(noted.rounds, again.rounds, strict=True))


def test_observations_name_clients_and_layers_in_the_order_of_the_round(fedavg_record):
    model = odd_mlp()
    for number, observation in zip(fedavg_record.numbers, fedavg_record.rounds, strict=True):
        clients = observation.clients
        assert set(clients) == set(sent_in(model, number))
        numbers = [client for client in clients if isinstance(client, int)]
        assert [*sorted(numbers), *sorted(set(clients) - set(numbers))] == list(clients)
        assert observation.layers == ("0", "2")
        assert observation["directions"].shape == (10, 2, 512)
        assert observation["shapes"].shape == (10, 2)
        assert observation["attributes"].shape == (10, 19 + 29 * 2)
        assert observation["uu"].shape == (2, 10, 10)


def test_numpy_integers_are_client_ids_that_can_be_recorded(tmp_path):
    model, recorder = odd_mlp(), RoundRecorder()
    sent = {np.int64(client): perturbed(model, client) for client in range(4)}
    aggregators.create("fedavg").aggregate(model, sent, observers=[recorder])
    assert loaded(recorder.record, tmp_path).rounds[0].clients == (0, 1, 2, 3)


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_a_record_which_holds_sketches_under_the_guards_secret_is_for_its_owner_only(tmp_path):
    before = os.umask(0o022)
    try:
        Record().save(tmp_path / "record")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "record").stat().st_mode) == 0o600


def test_an_empty_record_is_saved_and_loaded(tmp_path):
    again = loaded(Record(), tmp_path)
    assert (again.rounds, again.numbers, again.attacking, again.notes) == ([], [], [], {})


def test_the_ground_truth_is_added_by_round_number_and_client_id(fedavg_record):
    record = Record(fedavg_record.rounds[:2], [5, 6])
    first, second = (one.clients for one in record.rounds)
    record.add_truth({5: {first[0], first[3]}, 6: [], 7: ["nobody"]})
    assert np.flatnonzero(record.attacking[0]).tolist() == [0, 3]
    assert record.attacking[1].tolist() == [False] * len(second)
    assert len(record.attacking) == 2


def test_a_round_without_some_of_its_clients_is_that_of_the_others_alone(fedavg_record):
    one = fedavg_record.rounds[0]
    excluded = np.arange(10) % 3 == 0
    rest = without(one, excluded)
    kept = np.flatnonzero(~excluded)
    assert rest.clients == tuple(one.clients[row] for row in kept)
    for name in ("shapes", "directions", "attributes"):
        assert np.array_equal(rest[name], one[name][kept])
    assert np.array_equal(rest["gg"], one["gg"])
    assert np.array_equal(rest["gu"], one["gu"][:, kept])
    assert np.array_equal(rest["uu"], one["uu"][:, kept][:, :, kept])
    for profile in names():
        assert set(G2uardFL(profile, seed=0).judge(rest)) == set(rest.clients)


def test_a_record_of_an_earlier_version_knows_the_axes_of_the_built_in_measurements(fedavg_record, tmp_path):
    fedavg_record.save(tmp_path / "record")
    state = read_state(tmp_path / "record", "record")
    values = {name: value for name, value in state.values.items() if name != "client_axes"}
    write_state(tmp_path / "record", "record", SavedState(values, state.arrays))
    for earlier, one in zip(Record.load(tmp_path / "record").rounds, fedavg_record.rounds, strict=True):
        assert earlier.client_axes == one.client_axes
        assert equal(without(earlier, np.arange(10) < 4), without(one, np.arange(10) < 4))


def test_a_measurement_without_axes_cannot_be_cut_and_the_error_names_it(fedavg_record):
    one = fedavg_record.rounds[0]
    axes = {name: axes for name, axes in one.client_axes.items() if name != "uu"}
    with pytest.raises(StateError, match="does not say which axes of 'uu' run over clients"):
        without(replace(one, client_axes=axes), np.arange(10) < 4)


@pytest.mark.parametrize("missing", ["2.uu", "0.directions", "5.shapes", "clients", "layers", "measured", "numbers",
                                     "attacking", "notes"])  # fmt: skip
def test_a_file_that_lacks_something_is_a_clear_error(fedavg_record, missing, tmp_path):
    fedavg_record.save(tmp_path / "record")
    state = read_state(tmp_path / "record", "record")
    values, arrays = ({k: v for k, v in part.items() if k != missing} for part in (state.values, state.arrays))
    assert len(values) + len(arrays) == len(state.values) + len(state.arrays) - 1
    write_state(tmp_path / "record", "record", SavedState(values, arrays))
    with pytest.raises(StateError, match="incomplete record"):
        Record.load(tmp_path / "record")


def test_a_truncated_file_and_a_file_of_something_else_are_one_clear_error(fedavg_record, tmp_path):
    fedavg_record.save(tmp_path / "record")
    (tmp_path / "cut").write_bytes((tmp_path / "record").read_bytes()[:1000])
    G2uardFL(seed=0).save(tmp_path / "guard")
    for name, message in (("cut", "damaged"), ("guard", "not a record"), ("nothing", "not exist")):
        with pytest.raises(StateError, match=message):
            Record.load(tmp_path / name)


def test_observations_do_not_depend_on_when_the_guard_was_saved_and_loaded(tmp_path):
    whole = recorded(G2uardFL(seed=0, sketch_width=64), 6, run=Federation().run)[1]
    guard, recorder = G2uardFL(seed=0, sketch_width=64), RoundRecorder(profiles=["default"])
    model = None
    for first in (1, 4):
        results = Federation().run(guard, 3, model, first=first, observers=[recorder])
        model = results[-1].weights
        guard.save(tmp_path / "guard")
        guard = G2uardFL.load(tmp_path / "guard")
    assert recorder.record.numbers == list(range(1, 7))
    assert all(equal(one, other) for one, other in zip(recorder.record.rounds, whole.rounds, strict=True))
