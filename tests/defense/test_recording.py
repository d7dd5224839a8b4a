"""Records: what comes back from a file, a rule that does not notice being recorded, and rounds decided again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from g2uardfl import G2uardFL, aggregators
from g2uardfl.core.errors import StateError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from g2uardfl.defense.observation import SKETCH_WIDTH
from g2uardfl.defense.recording import Record, Recording
from helpers.models import StandInServer, batch_norm_model, numpy_model, odd_mlp, perturbed, same

MEASURED = ("attributes", "centred", "along_step", "step_squared", "shapes")
PRODUCTS = ("gg", "gu", "uu")
QUICK = {"pretrain_epochs": 5, "cluster_epochs": 5}


def sent_in(model, number, clients=10):
    """One of every four clients attacks, and not everybody is there every round."""
    ids = np.random.default_rng([7, number]).choice(20, clients, replace=False).tolist()
    return {
        f"client {i}" if i % 2 else i: perturbed(model, 1000 * number + i, shift=0.1 if i % 4 == 0 else 0.0)
        for i in ids
    }


def play(rule, rounds=6, model=None, clients=10):
    model = odd_mlp() if model is None else model
    results = []
    for number in range(1, rounds + 1):
        results.append(rule.aggregate(model, sent_in(model, number, clients)))
        model = results[-1].weights
    return results


@pytest.fixture(scope="module")
def record() -> Record:
    recording = Recording(aggregators.create("fedavg"), seed=3)
    play(recording)
    return recording.record


def decided(verdicts):
    return {client: verdict.decision for client, verdict in verdicts.items()}


def test_a_record_holds_each_round_in_the_order_it_came(record):
    model = odd_mlp()
    for number, observation in enumerate(record.rounds, start=1):
        assert set(observation.clients) == set(sent_in(model, number))
        assert observation.layers == ("0", "2")
        assert observation.directions.shape == (10, 2, SKETCH_WIDTH)
        assert observation.shapes.shape == (10, 2)


def test_a_record_comes_back_from_its_file_to_the_precision_it_is_kept_in(record, tmp_path):
    noted = Record(record.rounds, [np.arange(10) % 3 == 0] * 6, {"task": "none", "seed": 3})
    noted.save(tmp_path / "record")
    loaded = Record.load(tmp_path / "record")
    assert loaded.notes == noted.notes
    assert [truth.tolist() for truth in loaded.attacking] == [truth.tolist() for truth in noted.attacking]
    assert len(loaded.rounds) == len(noted.rounds)
    for first, second in zip(noted.rounds, loaded.rounds, strict=True):
        assert second.clients == first.clients
        assert second.layers == first.layers
        pairs = [(getattr(first, name), getattr(second, name)) for name in MEASURED]
        pairs += [(getattr(first.products, name), getattr(second.products, name)) for name in PRODUCTS]
        for kept, found in pairs:
            assert found.dtype == np.float64
            assert np.array_equal(found, np.asarray(kept).astype(np.float32).astype(np.float64))
        assert second.directions.dtype == np.float32
        np.testing.assert_allclose(second.directions, first.directions, rtol=1e-3, atol=1e-7)


def test_numbers_beyond_single_precision_come_back_finite(record, tmp_path):
    huge = np.array(record.rounds[0].centred)
    huge[0, 0, 0], huge[0, 0, 1] = 1e300, -1e300
    Record([replace(record.rounds[0], centred=huge)]).save(tmp_path / "record")
    found = Record.load(tmp_path / "record").rounds[0].centred
    assert np.isfinite(found).all()
    assert found[0, 0, 0] == np.finfo(np.float32).max
    assert found[0, 0, 1] == np.finfo(np.float32).min


def test_an_empty_record_comes_back_empty(tmp_path):
    Record().save(tmp_path / "record")
    loaded = Record.load(tmp_path / "record")
    assert (loaded.rounds, loaded.attacking, loaded.notes) == ([], [], {})


def test_the_truth_is_told_by_the_rounds_number_and_the_clients_id(record):
    told = Record(record.rounds[:2])
    first, second = told.rounds[0].clients, told.rounds[1].clients
    told.tell({1: {first[0], first[3]}, 2: [], 3: ["nobody"]})
    assert np.flatnonzero(told.attacking[0]).tolist() == [0, 3]
    assert told.attacking[1].tolist() == [False] * len(second)
    assert len(told.attacking) == 2


@pytest.mark.parametrize("missing", ["2.uu", "0.directions", "5.shapes"])
def test_a_record_that_lacks_an_array_is_one_clear_error(record, missing, tmp_path):
    record.save(tmp_path / "record")
    state = read_state(tmp_path / "record", "record")
    arrays = {name: array for name, array in state.arrays.items() if name != missing}
    write_state(tmp_path / "record", "record", SavedState(state.values, arrays))
    with pytest.raises(StateError, match="incomplete record"):
        Record.load(tmp_path / "record")


@pytest.mark.parametrize("missing", ["clients", "layers", "attacking", "notes"])
def test_a_record_that_lacks_a_value_is_one_clear_error(record, missing, tmp_path):
    record.save(tmp_path / "record")
    state = read_state(tmp_path / "record", "record")
    values = {name: value for name, value in state.values.items() if name != missing}
    write_state(tmp_path / "record", "record", SavedState(values, state.arrays))
    with pytest.raises(StateError, match="incomplete record"):
        Record.load(tmp_path / "record")


def test_a_truncated_file_and_a_file_of_something_else_are_one_clear_error(record, tmp_path):
    record.save(tmp_path / "record")
    (tmp_path / "cut").write_bytes((tmp_path / "record").read_bytes()[:1000])
    G2uardFL().save(tmp_path / "guard")
    for name, message in (("cut", "damaged"), ("guard", "not a record"), ("nothing", "not exist")):
        with pytest.raises(StateError, match=message):
            Record.load(tmp_path / name)


@pytest.mark.parametrize("model", [odd_mlp, batch_norm_model, numpy_model])
@pytest.mark.parametrize("name", ["fedavg", "krum", "median", "foolsgold", "g2uardfl"])
def test_a_rule_decides_the_same_while_it_is_recorded(name, model):
    settings = QUICK if name == "g2uardfl" else {}
    plain = play(aggregators.create(name, **settings), 3, model())
    recorded = play(Recording(aggregators.create(name, **settings)), 3, model())
    for first, second in zip(plain, recorded, strict=True):
        assert decided(first.verdicts) == decided(second.verdicts)
        assert first.note == second.note
        assert same(first.weights, second.weights)


@pytest.mark.parametrize("name", ["fedavg", "g2uardfl", "rfa"])
def test_a_large_model_gets_the_same_weights_to_the_bit_while_it_is_recorded(name):
    """Rules read such a model block by block, and sums of blocks are rounded in an order of their own."""
    rng = np.random.default_rng(0)
    model = {"w": rng.normal(size=(600, 500)).astype(np.float32), "b": np.zeros(500, np.float32)}
    plain, recorded = aggregators.create(name), Recording(aggregators.create(name))
    for _ in range(2):
        clients = {
            client: {
                key: (value + 0.01 * rng.normal(size=value.shape)).astype(np.float32) for key, value in model.items()
            }
            for client in range(12)
        }
        result = plain.aggregate(model, clients)
        assert same(result.weights, recorded.aggregate(model, clients).weights)
        model = result.weights


def test_a_recorded_rule_still_weighs_clients_by_their_samples():
    model = odd_mlp()
    sent = {client: perturbed(model, client) for client in range(3)}
    examples = {0: 1, 1: 2, 2: 7}
    plain = aggregators.create("fedavg").aggregate(model, sent, examples)
    recorded = Recording(aggregators.create("fedavg")).aggregate(model, sent, examples)
    assert [verdict.weight for verdict in plain.verdicts.values()] == pytest.approx([0.1, 0.2, 0.7])
    assert recorded.verdicts == plain.verdicts


@pytest.mark.parametrize("name", ["fltrust", "deepsight"])
def test_a_recorded_rule_still_has_its_server(name):
    model, found = odd_mlp(), []
    for wrapped in (False, True):
        rule = aggregators.create(name, **({"random_inputs": 64} if name == "deepsight" else {}))
        rule.attach(StandInServer(model))
        found.append((Recording(rule) if wrapped else rule).aggregate(model, sent_in(model, 1)))
    assert decided(found[0].verdicts) == decided(found[1].verdicts)


def test_a_recorded_rule_refuses_another_model_as_it_would_alone():
    recording = Recording(G2uardFL())
    recording.aggregate(odd_mlp(), sent_in(odd_mlp(), 1))
    with pytest.raises(ValueError, match="other parameters"):
        recording.aggregate(numpy_model(), sent_in(numpy_model(), 2))
    assert len(recording.record.rounds) == 1


def test_a_recorded_rule_is_saved_and_restored_as_it_would_alone():
    recording, restored = Recording(G2uardFL(seed=2)), Recording(G2uardFL())
    model = play(recording, 3)[-1].weights
    restored.restore(recording.state())
    first, second = (rule.aggregate(model, sent_in(model, 4)) for rule in (recording, restored))
    assert first.verdicts == second.verdicts
    assert same(first.weights, second.weights)


def test_clients_who_send_nonsense_are_not_recorded():
    model, recording = odd_mlp(), Recording(G2uardFL())
    sent = sent_in(model, 1)
    result = recording.aggregate(model, {**sent, "broken": {}})
    assert result.verdicts["broken"].decision == "invalid"
    assert set(recording.record.rounds[0].clients) == set(sent)


@pytest.mark.parametrize("kept", [False, True], ids=["at once", "from the file"])
@pytest.mark.parametrize(
    ("profile", "settings", "rounds", "clients"),
    [
        ("paper", QUICK, 5, 10),
        ("paper", {**QUICK, "seed": 4, "score_update": "signed"}, 5, 8),
        ("paper", QUICK, 2, 2),
        ("default", {}, 12, 10),
        ("default", {"seed": 4, "window": 40}, 12, 8),
        ("default", {}, 3, 2),
    ],
)
def test_recorded_rounds_are_decided_as_the_live_ones_were(profile, settings, rounds, clients, kept, tmp_path):
    # Records keep directions of this width: only then the live guard sees the same.
    settings = {**settings, "sketch_width": SKETCH_WIDTH}
    guard = G2uardFL(profile, **settings)
    recording = Recording(guard, seed=guard.config.seed)
    live = play(recording, rounds, clients=clients)
    record = recording.record
    if kept:
        record.save(tmp_path / "record")
        record = Record.load(tmp_path / "record")
    again = G2uardFL(profile, **settings)
    judged = [again.judge(observation) for observation in record.rounds]
    assert [decided(verdicts) for verdicts in judged] == [decided(result.verdicts) for result in live]
    for result, verdicts in zip(live, judged, strict=True):
        for client, verdict in verdicts.items():
            assert verdict.benign_score == pytest.approx(result.verdicts[client].benign_score, abs=0.01)
    if clients > 5:
        assert {"accepted", "malicious"} <= {one for verdicts in judged for one in decided(verdicts).values()}
    assert again.round == guard.round
    assert again.window.clients == guard.window.clients


def test_recorded_rounds_can_be_decided_with_other_settings(record):
    limits = ("least_evidence", "twin_agreement", "outlier_excess")
    strict, blind = G2uardFL(outlier_excess=0.5), G2uardFL(**dict.fromkeys(limits, 1e9))
    told = [
        {verdict.decision for observation in record.rounds for verdict in guard.judge(observation).values()}
        for guard in (strict, blind)
    ]
    assert "malicious" in told[0]
    assert told[1] == {"accepted"}
