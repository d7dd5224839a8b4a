"""Models as mappings of arrays, and as rows of one (clients x parameters) matrix.

A `ModelLayout` is read off the global model once. It knows which entries are learnt parameters, which are running
statistics of a normalisation layer and which are counters; it groups the parameters into the model's layers (a
module's weight and bias together, each layer of an LSTM on its own) and gives every layer its own columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .numerics import empty
from .threads import one_thread

Weights = Mapping[str, Any]
"""An ordered mapping name -> NumPy array or torch tensor."""

Kind = Literal["parameter", "statistic", "counter"]

_STATISTICS = ("running_mean", "running_var")
_RECURRENT = re.compile(r"_l(\d+)(_reverse)?$")


class BadWeightsError(ValueError):
    """One client's weights cannot be used; the message is the second half of a sentence about that client."""


@dataclass(frozen=True)
class Entry:
    """One array of a model: what it is and, for a parameter, which columns of the matrix hold it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Kind
    columns: slice

    @property
    def size(self) -> int:
        """How many numbers the array holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """A layer of the model in the paper's sense, and its columns."""

    name: str
    columns: slice

    @property
    def size(self) -> int:
        """How many parameters the layer has."""
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True)
class ModelLayout:
    """Where each array of a model sits in the flattened vector.

    >>> layout = ModelLayout.of({"fc.weight": np.ones((2, 3), np.float32), "fc.bias": np.ones(2, np.float32)})
    >>> [(layer.name, layer.size) for layer in layout.layers]
    [('fc', 8)]
    """

    entries: tuple[Entry, ...]
    layers: tuple[Layer, ...]
    dtype: torch.dtype
    """The dtype of the flattened vectors: float32, or float64 where the model holds float64."""

    @staticmethod
    @one_thread()
    def of(weights: Weights) -> ModelLayout:
        """Read the layout off a model; raises ValueError when there is nothing to defend in it."""
        if not isinstance(weights, Mapping) or not weights:
            raise ValueError("the global model is empty: pass a mapping of parameter names to arrays")
        tensors = {}
        for name, value in weights.items():
            try:
                tensors[name] = as_tensor(value)
            except BadWeightsError as error:
                raise ValueError(f"the global model's {name!r} {error}") from error
            if tensors[name].is_floating_point() and not _is_finite(tensors[name]):
                raise ValueError(f"the global model's {name!r} holds NaN or infinity: start from a sound model")
        kinds = {name: _kind(name, tensor) for name, tensor in tensors.items()}
        by_layer: dict[str, list[str]] = {}
        # In alphabetical order: a model that was written and read again may come with its names in another order.
        for name in sorted(kinds):
            if kinds[name] == "parameter" and tensors[name].numel():
                by_layer.setdefault(_layer_name(name), []).append(name)
        if not by_layer:
            raise ValueError("the global model has no floating-point parameters: there is nothing to aggregate")
        columns, layers, position = {}, [], 0
        for layer, names in by_layer.items():
            start = position
            for name in names:
                columns[name] = slice(position, position + tensors[name].numel())
                position = columns[name].stop
            layers.append(Layer(layer, slice(start, position)))
        entries = tuple(
            Entry(name, tuple(tensor.shape), tensor.dtype, kinds[name], columns.get(name, slice(0, 0)))
            for name, tensor in tensors.items()
        )
        has_float64 = any(entry.dtype == torch.float64 for entry in entries if entry.kind == "parameter")
        return ModelLayout(entries, tuple(layers), torch.float64 if has_float64 else torch.float32)

    @property
    def num_parameters(self) -> int:
        """The length of a flattened model."""
        return int(self.layers[-1].columns.stop)

    @cached_property
    def parameters(self) -> list[Entry]:
        """The learnt parameters that hold at least one number."""
        return [entry for entry in self.entries if entry.kind == "parameter" and entry.size]

    @cached_property
    def buffers(self) -> list[Entry]:
        """Running statistics and counters, which are averaged but never compared, clipped or extrapolated."""
        return [entry for entry in self.entries if entry.kind != "parameter" and entry.size]

    def signature(self) -> list[list[Any]]:
        """What two rounds of one federation must have in common, in plain JSON."""
        return sorted([entry.name, list(entry.shape), str(entry.dtype), entry.kind] for entry in self.entries)

    def flatten(self, weights: Weights) -> Tensor:
        """The parameters of `weights` as one vector, on the device of the first of them."""
        device = as_tensor(weights[self.parameters[0].name]).device
        vector = empty(self.num_parameters, like=torch.empty(0, dtype=self.dtype, device=device))
        for entry in self.parameters:
            vector[entry.columns].copy_(as_tensor(weights[entry.name]).reshape(-1))
        return vector

    def subtract(self, weights: Weights, global_vector: Tensor, out: Tensor) -> None:
        """Write a client's update, its parameters minus the global model's, into `out`."""
        for entry in self.parameters:
            value = as_tensor(weights[entry.name]).to(out.device).reshape(-1)
            torch.sub(value, global_vector[entry.columns], out=out[entry.columns])

    def norm(self, weights: Mapping[str, Tensor]) -> float:
        """The length of the parameters of `weights`, roughly; infinity or NaN where its square does not fit."""
        lengths = [_norm(weights[entry.name]) for entry in self.parameters]
        return float(torch.linalg.vector_norm(torch.stack([length.to(lengths[0]) for length in lengths])))

    def check(self, weights: object) -> dict[str, Tensor]:
        """A client's mapping as tensors; raises `BadWeightsError` where names, shapes or kinds are not the model's."""
        if not isinstance(weights, Mapping):
            raise BadWeightsError(f"sent a {type(weights).__name__} instead of named arrays")
        names = {entry.name for entry in self.entries}
        missing = [entry.name for entry in self.entries if entry.name not in weights]
        if missing:
            raise BadWeightsError(f"sent no {_some(missing)}")
        extra = [name for name in weights if name not in names]
        if extra:
            raise BadWeightsError(f"sent {_some(extra)}, which the model does not have")
        tensors = {}
        for entry in self.entries:
            try:
                tensor = tensors[entry.name] = as_tensor(weights[entry.name])
            except BadWeightsError as error:
                raise BadWeightsError(f"sent {entry.name!r} that {error}") from error
            if tuple(tensor.shape) != entry.shape:
                raise BadWeightsError(f"sent {entry.name!r} of shape {tuple(tensor.shape)} instead of {entry.shape}")
            if tensor.is_floating_point() != entry.dtype.is_floating_point:
                raise BadWeightsError(f"sent {entry.name!r} as {_dtype(tensor.dtype)} instead of {_dtype(entry.dtype)}")
        return tensors

    def buffer_values(self, weights: Weights) -> dict[str, Tensor]:
        """A client's running statistics and counters in float64; raises `BadWeightsError` when they make no sense."""
        values = {}
        for entry in self.buffers:
            value = as_tensor(weights[entry.name]).to("cpu", torch.float64)
            if not bool(torch.isfinite(value).all()):
                raise BadWeightsError(f"sent NaN or infinity in {entry.name!r}")
            if entry.kind == "statistic" and bool((value.abs() > largest_usable(torch.float32)).any()):
                raise BadWeightsError(f"sent values beyond all reason in {entry.name!r}")
            if entry.name.endswith("running_var") and bool((value < 0).any()):
                raise BadWeightsError(f"sent a negative variance in {entry.name!r}")
            values[entry.name] = value
        return values

    def rebuild(
        self,
        like: Weights,
        vector: Tensor,
        buffers: Mapping[str, Tensor],
        step: Tensor | None = None,
        step_is_spare: bool = False,
    ) -> dict[str, Any]:
        """A model with the parameters of `vector` and the given buffers, in the names, kinds and dtypes of `like`.

        With `step` it is added to `vector` on the way, in the memory of `step` if that is spare.
        """
        moved = step if step is not None and step_is_spare else empty(len(vector), like=vector)
        moved = moved.copy_(vector) if step is None else torch.add(vector, step, out=moved)
        rebuilt: dict[str, Any] = {}
        for entry in self.entries:
            original = like[entry.name]
            if entry.kind == "parameter":
                value = _fit(moved[entry.columns], entry.dtype).reshape(entry.shape)
            elif entry.name in buffers:
                value = buffers[entry.name].clone()
                value = value if value.dtype == entry.dtype else _fit(value, entry.dtype)
            else:
                value = as_tensor(original).clone()
            if isinstance(original, Tensor):
                # Each in memory of its own: files of tensors do not like them to share it.
                rebuilt[entry.name] = value.to(original.device, copy=entry.kind == "parameter")
            else:
                rebuilt[entry.name] = value.to("cpu").numpy().astype(original.dtype, copy=False)
        return rebuilt


def as_tensor(value: object) -> Tensor:
    """View an array as a tensor without copying where that can be done; raises `BadWeightsError` for anything else."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.is_sparse or value.is_quantized:
            raise BadWeightsError("is not a dense real tensor")
        return value.detach()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise BadWeightsError(f"is an array of {array.dtype}")
        if not array.dtype.isnative or any(stride < 0 for stride in array.strides) or not array.flags.writeable:
            array = array.astype(array.dtype.newbyteorder("="), copy=True)
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        if array.dtype == np.longdouble and array.dtype != np.float64:
            array = array.astype(np.float64)
        return torch.from_numpy(array)
    raise BadWeightsError(f"is a {type(value).__name__}, not an array")


def largest_usable(dtype: torch.dtype) -> float:
    """The largest norm whose square still fits into `dtype`, with room to spare."""
    return math.sqrt(torch.finfo(dtype).max) / 16


def _norm(value: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(value, dtype=torch.promote_types(value.dtype, torch.float32))
    return norm


def _is_finite(value: Tensor) -> bool:
    # The sum of squares is quickly had, and finite only where all numbers are.
    return math.isfinite(_norm(value)) or bool(torch.isfinite(value).all())


def _fit(value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value` in `dtype`, rounded to whole numbers and inside its range where it has to be; `value` itself is lost."""
    if dtype == torch.bool:
        return value >= 0.5
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        return value.clamp_(limits.min, limits.max).to(dtype)
    whole = torch.iinfo(dtype)
    # The largest 64-bit integer is no double; the next double below it is.
    high = min(float(whole.max), math.nextafter(2.0**63, 0))
    return value.round().clamp(float(whole.min), high).to(dtype)


def _kind(name: str, tensor: Tensor) -> Kind:
    if not tensor.is_floating_point():
        return "counter"
    return "statistic" if name.rpartition(".")[2] in _STATISTICS else "parameter"


def _layer_name(name: str) -> str:
    """The layer a parameter belongs to: its module, and inside a recurrent module its numbered layer."""
    module, _, leaf = name.rpartition(".")
    recurrent = _RECURRENT.search(leaf)
    if recurrent:
        return f"{module}.{recurrent[1]}" if module else recurrent[1]
    if module or leaf in ("weight", "bias"):
        return module or "model"
    return leaf


def _some(names: list[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
