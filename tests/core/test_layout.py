"""Model layouts: kinds of entries, layers, and conversion between models and flat vectors."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch

from g2uardfl.core.layout import BadWeightsError, ModelLayout, _on_cpu, as_tensor, largest_usable

F32 = np.float32


def zeros(*names: str) -> dict[str, np.ndarray]:
    return {name: np.zeros(2, F32) for name in names}


def grouped(weights) -> dict[str, list[str]]:
    """Layer -> the names of its parameters in the order of their columns."""
    layout = ModelLayout.of(weights)
    return {
        layer.name: [
            entry.name
            for entry in sorted(layout.parameters, key=lambda entry: entry.columns.start)
            if layer.columns.start <= entry.columns.start < layer.columns.stop
        ]
        for layer in layout.layers
    }


class Net(torch.nn.Module):
    """A model with all kinds of entries and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.norm = torch.nn.BatchNorm2d(2)
        self.lstm = torch.nn.LSTM(3, 2, num_layers=2, bidirectional=True)
        self.head = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1, bias=False))
        self.temperature = torch.nn.Parameter(torch.ones(()))


def test_weight_and_bias_of_a_module_form_one_layer():
    assert grouped(zeros("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")) == {
        "fc1": ["fc1.bias", "fc1.weight"],
        "fc2": ["fc2.bias", "fc2.weight"],
    }


def test_weight_and_bias_form_one_layer_when_they_are_not_adjacent():
    weights = zeros("a.weight", "b.weight", "a.bias", "b.bias")
    assert grouped(weights) == {"a": ["a.bias", "a.weight"], "b": ["b.bias", "b.weight"]}


def test_a_nested_module_is_a_separate_layer():
    assert list(grouped(zeros("block.0.weight", "block.1.weight", "block.scale"))) == ["block.0", "block.1", "block"]


def test_each_layer_of_an_lstm_is_a_separate_layer_with_both_directions():
    groups = grouped(dict(torch.nn.LSTM(3, 2, num_layers=2, bidirectional=True).state_dict()))
    assert sorted(len(names) for names in groups.values()) == [8, 8]
    for names in groups.values():
        assert len({"_l0" in name for name in names}) == 1


def test_names_without_a_dot_are_separate_layers_except_weight_and_bias():
    assert list(grouped(zeros("alpha", "beta"))) == ["alpha", "beta"]
    assert grouped(dict(torch.nn.Linear(2, 2).state_dict())) == {"model": ["bias", "weight"]}


def test_entries_of_a_torch_module_are_parameters_statistics_and_counters():
    kinds = {entry.name: entry.kind for entry in ModelLayout.of(Net().state_dict()).entries}
    assert {name for name, kind in kinds.items() if kind == "statistic"} == {"norm.running_mean", "norm.running_var"}
    assert {name for name, kind in kinds.items() if kind == "counter"} == {"norm.num_batches_tracked"}
    assert {name for name, kind in kinds.items() if kind == "parameter"} == set(dict(Net().named_parameters()))


def test_layers_of_a_torch_module_are_its_submodules():
    groups = grouped(Net().state_dict())
    assert groups["conv"] == ["conv.bias", "conv.weight"]
    assert groups["norm"] == ["norm.bias", "norm.weight"]
    assert groups["head.2"] == ["head.2.weight"]
    assert groups["temperature"] == ["temperature"]
    assert len(groups) == 7  # with head.0 and the two layers of the LSTM


def test_the_vector_contains_each_parameter_once_by_layer_and_no_buffers():
    state = Net().state_dict()
    layout = ModelLayout.of(state)
    expected = np.concatenate([state[name].numpy().ravel() for names in grouped(state).values() for name in names])
    assert np.array_equal(layout.flatten(state).numpy(), expected)
    assert layout.num_parameters == sum(parameter.numel() for parameter in Net().parameters())


def test_an_update_is_the_clients_vector_minus_the_global_vector():
    ours, theirs = Net().state_dict(), Net().state_dict()
    layout = ModelLayout.of(ours)
    update = torch.full((layout.num_parameters,), 7.0)
    layout.subtract(theirs, layout.flatten(ours), out=update)
    assert torch.equal(update, layout.flatten(theirs) - layout.flatten(ours))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_clients_may_send_any_floating_point_precision(dtype):
    model = {"a": np.full(3, 0.5, F32)}
    update = torch.empty(3)
    ModelLayout.of(model).subtract({"a": np.array([0.5, 1.0, -2.0], dtype)}, torch.full((3,), 0.5), out=update)
    assert update.tolist() == [0.0, 0.5, -2.5]


def test_layers_cover_all_columns_without_gaps_or_overlaps():
    layout = ModelLayout.of(Net().state_dict())
    covered = [column for layer in layout.layers for column in range(layer.columns.start, layer.columns.stop)]
    assert covered == list(range(layout.num_parameters))


def test_integer_and_boolean_arrays_of_any_name_are_counters():
    weights = {"a.weight": np.zeros(2, F32), "a.steps": np.array(3), "a.mask": np.array([True, False])}
    kinds = {entry.name: entry.kind for entry in ModelLayout.of(weights).entries}
    assert kinds == {"a.weight": "parameter", "a.steps": "counter", "a.mask": "counter"}


def test_an_empty_array_is_kept_and_has_no_columns():
    weights = {"a.weight": np.zeros(3, F32), "a.nothing": np.zeros((0, 4), F32)}
    layout = ModelLayout.of(weights)
    assert layout.num_parameters == 3
    assert layout.rebuild(weights, layout.flatten(weights), {})["a.nothing"].shape == (0, 4)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([np.float16], torch.float32),
        ([np.float32, np.float16], torch.float32),
        ([np.float32, np.float64], torch.float64),
    ],
)
def test_vectors_are_float32_unless_a_parameter_is_float64(dtypes, expected):
    assert ModelLayout.of({f"p{k}": np.zeros(2, dtype) for k, dtype in enumerate(dtypes)}).dtype == expected


def test_a_float64_running_mean_does_not_make_the_vectors_float64():
    assert ModelLayout.of({"a.weight": np.zeros(2, F32), "a.running_mean": np.zeros(2)}).dtype == torch.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_numpy_model_survives_flattening_and_rebuilding(dtype):
    rng = np.random.default_rng(0)
    weights = OrderedDict(
        [("b.weight", rng.normal(size=(2, 3)).astype(dtype)), ("a", rng.normal(size=()).astype(dtype))]
    )
    layout = ModelLayout.of(weights)
    built = layout.rebuild(weights, layout.flatten(weights), {})
    assert list(built) == list(weights)
    for name, value in weights.items():
        assert built[name].dtype == dtype
        assert np.array_equal(built[name], value)
        assert not np.shares_memory(built[name], value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_torch_model_survives_flattening_and_rebuilding(dtype):
    state = {
        name: value.to(dtype) if value.is_floating_point() else value for name, value in Net().state_dict().items()
    }
    layout = ModelLayout.of(state)
    built = layout.rebuild(state, layout.flatten(state), {})
    assert all(torch.equal(built[name], value) and built[name].dtype == value.dtype for name, value in state.items())
    assert all(built[name].data_ptr() != value.data_ptr() for name, value in state.items())


def test_values_outside_the_range_of_half_precision_are_clamped():
    weights = {"a": np.zeros(3, np.float16)}
    built = ModelLayout.of(weights).rebuild(weights, torch.tensor([1e6, -1e6, 2.0]), {})
    assert built["a"].tolist() == [65504.0, -65504.0, 2.0]


def test_averaged_counters_are_rounded_and_booleans_are_thresholded_at_one_half():
    weights = {"a": np.zeros(1, F32), "n": np.array([0, 0]), "on": np.array([True, False])}
    buffers = {"n": torch.tensor([2.4, 2.6]).double(), "on": torch.tensor([0.4, 0.6]).double()}
    built = ModelLayout.of(weights).rebuild(weights, torch.zeros(1), buffers)
    assert built["n"].tolist() == [2, 3]
    assert built["on"].tolist() == [False, True]


@pytest.mark.parametrize(("dtype", "sent", "highest"), [(np.int64, 2**63 - 1, 2**63 - 1), (np.int8, 300, 127)])
def test_a_counter_outside_its_range_is_clamped(dtype, sent, highest):
    weights = {"a": np.zeros(1, F32), "n": np.array([0], dtype)}
    layout = ModelLayout.of(weights)
    values = layout.buffer_values({"a": np.zeros(1, F32), "n": np.array([sent], np.int64)})
    assert int(layout.rebuild(weights, torch.zeros(1), values)["n"][0]) == pytest.approx(highest)


def test_buffers_without_an_average_are_kept():
    weights = {"a": np.zeros(1, F32), "running_mean": np.array([4.5], F32)}
    assert ModelLayout.of(weights).rebuild(weights, torch.ones(1), {})["running_mean"].tolist() == [4.5]


MODEL = {
    "fc.weight": np.ones((2, 2), F32),
    "bn.running_var": np.ones(2, F32),
    "bn.running_mean": np.ones(2, F32),
    "n": np.array(1),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": np.ones((2, 3), F32)}, r"'fc.weight' of shape \(2, 3\) instead of \(2, 2\)"),
        ({"fc.weight": np.ones((2, 2), np.int64)}, "'fc.weight' as int64 instead of float32"),
        ({"n": np.array(1.5)}, "'n' as float64 instead of int64"),
        ({"fc.weight": [[1.0, 1.0], [1.0, 1.0]]}, "'fc.weight' that is a list"),
        ({"fc.weight": np.ones((2, 2), complex)}, "'fc.weight' that is an array of complex128"),
        ({"fc.weight": np.full((2, 2), "x")}, "'fc.weight' that is an array of <U1"),
        ({"extra": np.ones(1, F32)}, "'extra', which the model does not have"),
    ],
)
def test_weights_that_do_not_fit_the_model_are_rejected_with_the_reason(change, message):
    with pytest.raises(BadWeightsError, match=message):
        ModelLayout.of(MODEL).check({**MODEL, **change})


def test_weights_with_a_missing_array_are_rejected_with_its_name():
    with pytest.raises(BadWeightsError, match=r"sent no 'fc\.weight'"):
        ModelLayout.of(MODEL).check({name: value for name, value in MODEL.items() if name != "fc.weight"})


@pytest.mark.parametrize("sent", [None, 3, [np.ones(2)], "weights"])
def test_anything_but_a_mapping_is_rejected(sent):
    with pytest.raises(BadWeightsError, match="instead of named arrays"):
        ModelLayout.of(MODEL).check(sent)


def test_weights_of_another_precision_or_library_are_accepted():
    layout = ModelLayout.of(MODEL)
    sent = {name: torch.from_numpy(value).double() for name, value in MODEL.items()} | {"n": torch.tensor(2)}
    layout.check(sent)
    assert layout.flatten(sent).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bn.running_mean", [np.nan, 0], "NaN or infinity in 'bn.running_mean'"),
        ("bn.running_var", [np.inf, 0], "NaN or infinity in 'bn.running_var'"),
        ("bn.running_var", [-1, 1], "negative variance in 'bn.running_var'"),
        ("bn.running_mean", [3e38, 0], "too large in 'bn.running_mean'"),
    ],
)
def test_invalid_running_statistics_are_rejected(name, value, message):
    with pytest.raises(BadWeightsError, match=message):
        ModelLayout.of(MODEL).buffer_values({**MODEL, name: np.array(value, F32)})


@pytest.mark.parametrize("model", [{}, None, [np.ones(2)]])
def test_an_empty_global_model_raises_an_error(model):
    with pytest.raises(ValueError, match="the global model is empty"):
        ModelLayout.of(model)


def test_a_global_model_without_parameters_raises_an_error():
    with pytest.raises(ValueError, match="no floating-point parameters"):
        ModelLayout.of({"steps": np.array(3), "bn.running_mean": np.zeros(2, F32), "none": np.zeros(0, F32)})


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_global_model_that_is_not_finite_raises_an_error(bad):
    with pytest.raises(ValueError, match="'a' holds NaN or infinity"):
        ModelLayout.of({"a": np.array([1.0, bad], F32)})


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[::-1],
        np.arange(6.0).astype(">f8"),
        np.arange(6, dtype=np.uint16),
        np.arange(6.0, dtype=np.longdouble),
        np.arange(12.0)[::2],
        np.broadcast_to(np.float32(3), (4,)),
        np.float32(2.5),
    ],
    ids=["reversed", "big-endian", "uint16", "longdouble", "strided", "read-only", "scalar"],
)
def test_arrays_with_unusual_memory_layouts_keep_their_values(array):
    assert as_tensor(array).double().numpy().tolist() == np.asarray(array, np.float64).tolist()


@pytest.mark.parametrize("tensor", [torch.zeros(2, dtype=torch.complex64), torch.zeros(2, 2).to_sparse()])
def test_complex_and_sparse_tensors_are_rejected(tensor):
    with pytest.raises(BadWeightsError, match="not a dense real tensor"):
        as_tensor(tensor)


def test_a_parameter_that_requires_a_gradient_is_detached():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not as_tensor(parameter).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_square_of_the_largest_usable_norm_does_not_overflow(dtype):
    limit = torch.tensor(largest_usable(dtype), dtype=dtype)
    assert bool(torch.isfinite(100 * limit * limit))
    assert limit > 1e15


def test_the_signature_depends_on_names_shapes_dtypes_and_kinds_only():
    base = {"a": np.zeros(2, F32)}
    others = [{"b": np.zeros(2, F32)}, {"a": np.zeros(3, F32)}, {"a": np.zeros(2)}, {**base, "n": np.array(1)}]
    signatures = [ModelLayout.of(model).signature() for model in [base, *others]]
    assert all(signatures[0] != other for other in signatures[1:])
    assert ModelLayout.of({"a": np.ones(2, F32)}).signature() == signatures[0]


def test_tensors_that_are_moved_together_keep_names_dtypes_shapes_and_values():
    tensors = {
        "mean": torch.randn(3, 2),
        "batches": torch.tensor(7),
        "variance": torch.rand(4),
        "half": torch.randn(2).half(),
        "none": torch.zeros(0, 5),
    }
    moved = _on_cpu(tensors)
    assert moved.keys() == tensors.keys()
    for name, value in tensors.items():
        assert moved[name].dtype == value.dtype
        assert torch.equal(moved[name], value)
