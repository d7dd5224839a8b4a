"""What every aggregator promises, whatever clients send."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import g2uardfl
from g2uardfl import aggregators
from g2uardfl.aggregators.context import NeedsServer
from g2uardfl.core.errors import ConfigError, StateError
from helpers.models import StandInServer, batch_norm_model, federation, numpy_model, odd_mlp, perturbed, same

NAMES = aggregators.names()
MODELS = {"mlp": odd_mlp, "batch norm": batch_norm_model, "numpy": numpy_model}
QUICK = {"pretrain_epochs": 5, "cluster_epochs": 5}


def make(name: str, model: dict | None = None) -> g2uardfl.Aggregator:
    rule = aggregators.create(name, **{"g2uardfl": QUICK, "deepsight": {"random_inputs": 64}}.get(name, {}))
    if isinstance(rule, NeedsServer):
        rule.attach(StandInServer(model or odd_mlp()))
    return rule


def with_value(client, value):
    broken = {
        name: array.clone() if isinstance(array, torch.Tensor) else array.copy() for name, array in client.items()
    }
    first = next(iter(broken))
    broken[first].reshape(-1)[0] = value
    return broken


def without_first(client):
    return dict(list(client.items())[1:])


def replace_first(client, function):
    first = next(iter(client))
    return {**client, first: function(client[first])}


BAD_CLIENTS = {
    "NaN": lambda client: with_value(client, float("nan")),
    "infinity": lambda client: with_value(client, float("-inf")),
    "a missing name": without_first,
    "an extra name": lambda client: {**client, "surprise": next(iter(client.values()))},
    "a wrong shape": lambda client: replace_first(client, lambda array: array.reshape(-1)[:-1]),
    "a wrong kind of number": lambda client: replace_first(client, lambda a: torch.ones(a.shape, dtype=torch.int64)),
    "complex numbers": lambda client: replace_first(client, lambda a: np.ones(tuple(a.shape), dtype=np.complex64)),
    "text in an array": lambda client: replace_first(client, lambda a: np.full(tuple(a.shape), "x")),
    "objects in an array": lambda client: replace_first(client, lambda a: np.full(tuple(a.shape), None)),
    "a list": lambda client: replace_first(client, lambda array: array.tolist()),
    "None in a mapping": lambda client: replace_first(client, lambda array: None),
    "norm 1e30": lambda client: with_value(client, 1e30),
    "an empty mapping": lambda client: {},
    "nothing": lambda client: None,
    "a string": lambda client: "weights",
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", BAD_CLIENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_sends_nonsense_is_invalid_and_the_others_go_on(name, kind, model):
    model = MODELS[model]()
    clients = federation(model)
    expected = make(name, model).aggregate(model, clients)
    clients[99] = BAD_CLIENTS[kind](perturbed(model, 99))
    result = make(name, model).aggregate(model, clients)
    assert result.verdicts[99].decision == "invalid"
    assert result.verdicts[99].reason.startswith("The client ")
    assert {c: v for c, v in result.verdicts.items() if c != 99} == expected.verdicts
    assert same(result.weights, expected.weights)


@pytest.mark.parametrize("value", [1e30, 2e18, float("inf")])
@pytest.mark.parametrize("name", NAMES)
def test_two_clients_whose_nonsense_cancels_are_both_invalid(name, value):
    model = odd_mlp()
    clients = federation(model)
    expected = make(name, model).aggregate(model, clients, dict.fromkeys(clients, 1))
    clients[98] = with_value(perturbed(model, 98), value)
    clients[99] = with_value(perturbed(model, 99), -value)
    result = make(name, model).aggregate(model, clients, dict.fromkeys(clients, 1))
    assert {result.verdicts[client].decision for client in (98, 99)} == {"invalid"}
    assert same(result.weights, expected.weights)


@pytest.mark.parametrize("name", NAMES)
def test_nonsense_from_a_client_that_carries_no_weight_is_still_invalid(name):
    model = odd_mlp()
    clients = federation(model)
    clients[99] = with_value(perturbed(model, 99), float("nan"))
    result = make(name, model).aggregate(model, clients, {**dict.fromkeys(clients, 5), 99: 0})
    assert result.verdicts[99].decision == "invalid"


@pytest.mark.parametrize("name", NAMES)
def test_a_negative_running_variance_is_invalid(name):
    model = batch_norm_model()
    clients = federation(model)
    clients[99] = {**perturbed(model, 99), "1.running_var": torch.full((4,), -1.0)}
    assert make(name, model).aggregate(model, clients).verdicts[99].decision == "invalid"


@pytest.mark.parametrize("name", NAMES)
def test_zero_updates_and_copies_of_another_client_are_handled(name):
    model = odd_mlp()
    clients = federation(model)
    clients["copy"] = clients[0]
    clients["idle"] = model
    result = make(name, model).aggregate(model, clients)
    assert all(verdict.decision in ("accepted", "held_out", "malicious") for verdict in result.verdicts.values())
    assert all(torch.isfinite(value).all() for value in result.weights.values())


@pytest.mark.parametrize("name", NAMES)
def test_another_float_precision_is_converted(name):
    model = odd_mlp()
    clients = federation(model)
    doubled = {**clients, 0: {key: value.double() for key, value in clients[0].items()}}
    assert same(
        make(name, model).aggregate(model, doubled).weights, make(name, model).aggregate(model, clients).weights
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_when_every_client_is_invalid_the_global_model_is_kept_and_that_is_said(name, model):
    model = MODELS[model]()
    result = make(name, model).aggregate(model, {1: {}, "two": None})
    assert same(result.weights, model)
    assert {verdict.decision for verdict in result.verdicts.values()} == {"invalid"}
    assert "global model was kept" in result.note


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clients", [{}, None, []])
def test_no_clients_at_all_is_the_callers_error(name, clients):
    with pytest.raises(ValueError, match="no clients"):
        make(name).aggregate(odd_mlp(), clients)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [{}, None, {"steps": np.array([3])}, {"w": np.array([np.nan])}, {"w": [1.0]}])
def test_a_global_model_without_sound_parameters_is_the_callers_error(name, model):
    with pytest.raises(ValueError, match="global model"):
        make(name, model).aggregate(model, {0: {}})


@pytest.mark.parametrize("name", NAMES)
def test_a_client_id_that_is_no_int_or_str_is_the_callers_error(name):
    with pytest.raises(ValueError, match="int or a str"):
        make(name).aggregate(odd_mlp(), {(1, 2): odd_mlp(1)})


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_setting_is_refused_by_name(name):
    with pytest.raises(ConfigError, match="nonsense"):
        aggregators.create(name, nonsense=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_the_result_has_the_names_kind_dtypes_and_shapes_of_the_global_model(name, model):
    model = MODELS[model]()
    result = make(name, model).aggregate(model, federation(model))
    assert list(result.weights) == list(model)
    for key, value in model.items():
        assert type(result.weights[key]) is type(value)
        assert result.weights[key].dtype == value.dtype
        assert result.weights[key].shape == value.shape
        assert result.weights[key] is not value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_every_float_precision_keep_it_and_stay_finite(name, dtype):
    model = {key: value.to(dtype) for key, value in odd_mlp().items()}
    clients = {i: {key: value.to(dtype) for key, value in perturbed(odd_mlp(), i).items()} for i in range(6)}
    result = make(name, model).aggregate(model, clients)
    assert all(value.dtype == dtype and torch.isfinite(value).all() for value in result.weights.values())
    assert not same(
        {key: value.double() for key, value in result.weights.items()},
        {key: value.double() for key, value in model.items()},
    )


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_left_as_they_were(name):
    model = odd_mlp()
    clients = federation(model)
    copies = {client: {key: value.clone() for key, value in weights.items()} for client, weights in clients.items()}
    make(name, model).aggregate(model, clients)
    assert same(model, odd_mlp())
    assert all(same(clients[client], copies[client]) for client in clients)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(7)), data=st.data())
def test_the_order_of_clients_changes_nothing(name, order, data):
    model = odd_mlp()
    clients = federation(model, 7, 2, seed=data.draw(st.integers(0, 5)))
    first, second = make(name, model), make(name, model)
    for _ in range(2):
        plain = first.aggregate(model, clients)
        shuffled = second.aggregate(model, {client: clients[client] for client in order})
        assert same(plain.weights, shuffled.weights)
        assert plain.verdicts == shuffled.verdicts


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(ids=st.lists(st.integers(-(2**63), 2**64) | st.text(max_size=5), min_size=1, max_size=7, unique=True))
def test_ids_may_be_any_ints_and_strings(name, ids):
    model = odd_mlp()
    result = make(name, model).aggregate(model, {client: perturbed(model, i) for i, client in enumerate(ids)})
    assert list(result.verdicts) == ids


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_results_are_finite_for_any_finite_input(name, data):
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)

    def model():
        return {
            "a.weight": np.array(data.draw(st.lists(numbers, min_size=4, max_size=4)), np.float32).reshape(2, 2),
            "a.bias": np.array(data.draw(st.lists(numbers, min_size=1, max_size=1)), np.float32),
        }

    result = make(name, model()).aggregate(model(), {i: model() for i in range(data.draw(st.integers(1, 5)))})
    assert all(np.isfinite(value).all() for value in result.weights.values())
    for verdict in result.verdicts.values():
        assert all(x is None or np.isfinite(x) for x in (verdict.benign_score, verdict.distance, verdict.weight))


def test_fedavg_is_the_mean_weighted_by_samples():
    model = numpy_model()
    clients = {i: perturbed(model, i) for i in range(4)}
    examples = {0: 1, 1: 5, 2: 0, 3: 10}
    result = aggregators.create("fedavg").aggregate(model, clients, examples)
    for name in model:
        slow = sum(examples[i] * clients[i][name].astype(np.float64) for i in range(4)) / 16
        np.testing.assert_allclose(result.weights[name], slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("examples", [-1, float("nan"), "many", None, 1e300])
def test_a_nonsense_number_of_samples_makes_a_client_invalid_where_samples_count(examples):
    model = odd_mlp()
    result = aggregators.create("fedavg").aggregate(model, federation(model, 3, 0), {0: 5, 1: examples, 2: 5})
    assert [verdict.decision for verdict in result.verdicts.values()] == ["accepted", "invalid", "accepted"]


def test_counters_and_running_statistics_are_averaged_over_accepted_clients_only():
    model = batch_norm_model()
    clients = {i: perturbed(model, i) for i in range(3)}
    result = aggregators.create("fedavg").aggregate(model, clients)
    slow = np.mean([clients[i]["1.running_mean"].numpy() for i in range(3)], axis=0)
    np.testing.assert_allclose(result.weights["1.running_mean"].numpy(), slow, rtol=1e-6)
    assert int(result.weights["1.num_batches_tracked"]) == 12
    assert result.weights["1.num_batches_tracked"].dtype == torch.int64


def test_running_variances_stay_positive_under_elimination():
    model = batch_norm_model()
    guard = g2uardfl.G2uardFL(elimination_rate=1.0, score_update="signed", **QUICK)
    for seed in range(4):
        model = guard.aggregate(model, federation(model, 8, 3, seed)).weights
        assert (model["1.running_var"] >= 0).all()


@pytest.mark.parametrize("count", [1, 2])
def test_with_fewer_than_three_clients_there_is_nothing_to_compare_and_the_clipped_mean_is_used(count):
    model = odd_mlp()
    clients = {i: perturbed(model, i, size=0.1 + i) for i in range(count)}
    result = g2uardfl.G2uardFL("paper").aggregate(model, clients)
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}
    assert all("nothing to compare with" in verdict.reason for verdict in result.verdicts.values())
    flat = {i: torch.cat([(clients[i][k] - model[k]).flatten() for k in model]).double() for i in clients}
    limit = np.median([float(update.norm()) for update in flat.values()])
    slow = sum(update * min(1.0, limit / float(update.norm())) for update in flat.values()) / count
    got = torch.cat([(result.weights[k] - model[k]).flatten() for k in model]).double()
    torch.testing.assert_close(got, slow, rtol=1e-4, atol=1e-5)


def test_a_saved_guard_goes_on_bit_for_bit(tmp_path):
    model = batch_norm_model()
    guard = g2uardfl.G2uardFL(profile="paper", seed=7, fade_absent=True, **QUICK)
    for number in range(3):
        clients = {f"c{number + i}" if i % 2 else number + i: weights for i, weights in federation(model).items()}
        model = guard.aggregate(model, clients).weights
    guard.save(tmp_path / "guard.state")
    loaded = g2uardfl.G2uardFL.load(tmp_path / "guard.state")
    assert loaded.config == guard.config
    for number in range(3):
        clients = federation(model, seed=number)
        first, second = guard.aggregate(model, clients), loaded.aggregate(model, clients)
        assert same(first.weights, second.weights)
        assert first.verdicts == second.verdicts
        model = first.weights


@settings(max_examples=10, deadline=None)
@given(
    rounds=st.lists(
        st.lists(st.integers(0, 12) | st.sampled_from(["a", "b"]), min_size=1, max_size=7, unique=True),
        min_size=2,
        max_size=5,
    ),
    when=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
def test_a_guard_saved_between_any_two_rounds_goes_on_bit_for_bit(tmp_path_factory, rounds, when, seed):
    path = tmp_path_factory.mktemp("state") / "guard"
    model = numpy_model()
    guard = kept = g2uardfl.G2uardFL(seed=seed, **QUICK)
    for number, ids in enumerate(rounds):
        clients = {client: perturbed(model, 100 * number + i) for i, client in enumerate(ids)}
        if number == min(when, len(rounds) - 1):
            guard.save(path)
            kept = g2uardfl.G2uardFL.load(path)
        first = guard.aggregate(model, clients)
        if kept is not guard:
            second = kept.aggregate(model, clients)
            assert same(first.weights, second.weights)
            assert first.verdicts == second.verdicts
        model = first.weights


def test_the_order_of_the_names_in_a_model_changes_nothing():
    model = batch_norm_model()
    plain, turned = g2uardfl.G2uardFL(**QUICK), g2uardfl.G2uardFL(**QUICK)
    for seed in range(2):
        clients = federation(model, seed=seed)
        first = plain.aggregate(model, clients)
        # The second guard sees the names in another order every round.
        names = sorted(model, reverse=seed == 0)
        second = turned.aggregate(
            {name: model[name] for name in names},
            {client: {name: weights[name] for name in names} for client, weights in clients.items()},
        )
        assert list(second.weights) == names
        assert all(torch.equal(first.weights[name], second.weights[name]) for name in names)
        assert first.verdicts == second.verdicts


def test_a_fresh_guard_can_be_saved_and_loaded(tmp_path):
    g2uardfl.G2uardFL(seed=3).save(tmp_path / "fresh")
    assert g2uardfl.G2uardFL.load(tmp_path / "fresh").config.seed == 3


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, 4000))
def test_a_truncated_state_file_is_one_clear_error(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("state")
    guard = g2uardfl.G2uardFL(**QUICK)
    guard.aggregate(odd_mlp(), federation(odd_mlp()))
    guard.save(folder / "guard")
    content = (folder / "guard").read_bytes()
    (folder / "cut").write_bytes(content[: min(cut, len(content) - 1)])
    with pytest.raises(StateError, match="damaged"):
        g2uardfl.G2uardFL.load(folder / "cut")


@pytest.mark.parametrize(("profile", "array"), [("paper", "last_updates"), ("default", "window_sketches")])
def test_an_altered_state_file_is_noticed(profile, array, tmp_path):
    guard = g2uardfl.G2uardFL(profile, **QUICK)
    guard.aggregate(odd_mlp(), federation(odd_mlp()))
    guard.save(tmp_path / "guard")
    content = bytearray((tmp_path / "guard").read_bytes())
    with zipfile.ZipFile(tmp_path / "guard") as archive:
        middle = archive.getinfo(f"{array}.npy").header_offset + 300
    content[middle] ^= 0xFF
    (tmp_path / "guard").write_bytes(content)
    with pytest.raises(StateError, match="damaged"):
        g2uardfl.G2uardFL.load(tmp_path / "guard")


def test_foreign_files_and_missing_files_are_one_clear_error(tmp_path):
    (tmp_path / "text").write_text("hello")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    np.save(tmp_path / "array.npy", np.ones(3))
    for name, message in (("text", "damaged"), ("other.npz", "damaged"), ("array.npy", "damaged"), ("no", "not exist")):
        with pytest.raises(StateError, match=message):
            g2uardfl.G2uardFL.load(tmp_path / name)


def test_a_failed_save_leaves_the_old_state_and_no_litter(tmp_path, monkeypatch):
    guard = g2uardfl.G2uardFL(seed=1)
    guard.save(tmp_path / "guard")

    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(StateError, match="No space left"):
        g2uardfl.G2uardFL(seed=2).save(tmp_path / "guard")
    assert [path.name for path in tmp_path.iterdir()] == ["guard"]
    assert g2uardfl.G2uardFL.load(tmp_path / "guard").config.seed == 1


def test_saving_into_a_folder_that_is_not_there_says_so(tmp_path):
    with pytest.raises(StateError, match="cannot write"):
        g2uardfl.G2uardFL().save(tmp_path / "no" / "guard")


def test_a_guard_refuses_another_model_than_the_one_it_watches():
    guard = g2uardfl.G2uardFL(**QUICK)
    guard.aggregate(odd_mlp(), federation(odd_mlp()))
    with pytest.raises(ValueError, match="other parameters"):
        guard.aggregate(numpy_model(), federation(numpy_model()))


def test_the_same_seed_gives_the_same_result_and_another_seed_another_start():
    model = odd_mlp()
    first, again, other = (
        g2uardfl.G2uardFL("paper", seed=seed, **QUICK).aggregate(model, federation(model)) for seed in (1, 1, 2)
    )
    assert first.verdicts == again.verdicts
    assert same(first.weights, again.weights)
    assert first.verdicts != other.verdicts


def test_global_random_generators_are_left_alone():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - the point is that nobody touches the global one
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    g2uardfl.G2uardFL(**QUICK).aggregate(odd_mlp(), federation(odd_mlp()))
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002


def test_a_refused_client_is_told_why_from_its_own_numbers():
    model = odd_mlp()
    guard = g2uardfl.G2uardFL("paper")
    reasons = []
    for seed in range(6):
        result = guard.aggregate(model, federation(model, 10, 3, seed))
        reasons += [verdict.reason for verdict in result.verdicts.values() if verdict.decision == "malicious"]
    assert reasons
    assert all(reason.endswith(".") and "of 10 clients" in reason and "deviations" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"score_step": 0}, ["score_step", "0", "above 0 and at most 1"]),
        ({"score_percentile": 120}, ["score_percentile", "120", "from 0 to 100"]),
        ({"latent_dim": 2.5}, ["latent_dim", "2.5", "whole number"]),
        ({"edge_scaling": "x"}, ["edge_scaling", "'x'", "'similarity', 'printed'"]),
        ({"eliminate": "no"}, ["eliminate", "'no'", "True or False"]),
        ({"score_stepp": 0.1}, ["score_stepp", "score_step"]),
        ({"profile": "best"}, ["profile", "'best'", "'paper', 'default'"]),
        ({"learning_rate": float("nan")}, ["learning_rate", "nan"]),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name_value_and_range(settings, words):
    with pytest.raises(ConfigError) as caught:
        g2uardfl.G2uardFL(**settings)
    assert all(word in str(caught.value) for word in words)


def test_an_aggregator_from_elsewhere_plugs_in_by_its_address():
    assert aggregators.create("g2uardfl.aggregators.fedavg:FedAvg").name == "fedavg"
    with pytest.raises(ConfigError, match="choose one of fedavg"):
        aggregators.create("nothing")
    with pytest.raises(ConfigError, match="cannot import"):
        aggregators.create("no_such_module:Thing")
    with pytest.raises(ConfigError, match="has no Thing"):
        aggregators.create("g2uardfl.aggregators.fedavg:Thing")
