"""Conversion of models between mappings of named arrays and flat vectors.

A `ModelLayout` describes the global model. It classifies the entries as trainable parameters, statistics (of
normalisation layers, and arrays that the caller declares as buffers), or counters. It groups the parameters into the
model's layers (the weight and bias of a module are one layer, as are the two matrices of its adapter; each layer of an
LSTM is separate) and assigns consecutive columns of the flat vector to each layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from .arrays import LONGEST_FORM, converted, dtype_name, require_array
from .arrays import BadWeightsError as BadWeightsError
from .arrays import as_tensor as as_tensor
from .errors import ConfigError
from .numerics import empty
from .text import quoted, shortened
from .threads import for_each, one_thread

Weights = Mapping[str, Any]
"""An ordered mapping name -> NumPy array or torch tensor."""

Kind = Literal["parameter", "statistic", "counter"]

_VARIANCES = ("running_var", "moving_variance", "moving_var")
_STATISTICS = ("running_mean", "moving_mean", *_VARIANCES)
"""The last parts of the names of running statistics in the normalisation layers of torch, Keras and MXNet."""
_LONGEST_NAME = 60
"""Characters of an array's name in the reason why a message is unusable."""
_MOVED_COLUMNS = 1 << 20
"""The number of parameters that a thread of `rebuild` adds up at once."""
_RECURRENT = re.compile(r"_l(\d+)(_reverse)?$")
"""How the parameter names of torch's recurrent modules end: with the number of the layer, and the direction."""


_ADAPTER = re.compile(r"(^|\.)lora_(embedding_)?[AB](\.|$)")
"""What follows the module's name in the names of the two matrices of a low-rank adapter (LoRA)."""


@dataclass(frozen=True)
class Entry:
    """One array of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Kind
    columns: slice
    """The columns of a parameter in the flat vector; empty for any other kind."""

    @property
    def size(self) -> int:
        """The number of values in the array."""
        return math.prod(self.shape)

    @property
    def is_variance(self) -> bool:
        """Whether its values are variances, which are never negative."""
        return self.kind == "statistic" and self.name.endswith(_VARIANCES)

    @property
    def never_decreases(self) -> bool:
        """Whether its values count the batches that a normalisation layer has seen."""
        return self.kind == "counter" and self.name.endswith("num_batches_tracked")


@dataclass(frozen=True)
class Layer:
    """A layer of the model as in the paper: the parameters of one module."""

    name: str
    columns: slice
    """The columns of the layer in the flat vector."""

    @property
    def size(self) -> int:
        """The number of parameters in the layer."""
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True)
class ModelLayout:
    """The position of each parameter of a model in the flat vector.

    >>> import numpy as np
    >>> layout = ModelLayout.of({"fc.weight": np.ones((2, 3), np.float32), "fc.bias": np.ones(2, np.float32)})
    >>> [(layer.name, layer.size) for layer in layout.layers]
    [('fc', 8)]
    """

    entries: tuple[Entry, ...]
    layers: tuple[Layer, ...]
    dtype: torch.dtype
    """The dtype of flat vectors: float64 if any parameter is float64, else float32."""

    @staticmethod
    @one_thread()
    def of(weights: Weights, buffers: Sequence[str] = ()) -> ModelLayout:
        """The layout of a model; raises ValueError if the model is empty, not finite or without parameters.

        Arrays whose names match a shell pattern in `buffers` are statistics; a pattern without a match raises
        `ConfigError`.
        """
        if not isinstance(weights, Mapping) or not weights:
            raise ValueError("the global model is empty: pass a mapping of parameter names to arrays")
        tensors = {name: _global_tensor(name, value) for name, value in weights.items()}
        if (name := _not_finite(tensors)) is not None:
            raise ValueError(f"the global model's {name!r} holds NaN or infinity: start from a finite model")
        declared = _matching(tensors, buffers)
        kinds = {name: _kind(name, tensor, name in declared) for name, tensor in tensors.items()}
        by_layer: dict[str, list[str]] = {}
        # In alphabetical order, because saving and loading a model may change the order of its names.
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
        """The number of parameters, which is the size of the flat vector."""
        return int(self.layers[-1].columns.stop)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.entries)

    @cached_property
    def parameters(self) -> list[Entry]:
        """The trainable parameters that are not empty."""
        return [entry for entry in self.entries if entry.kind == "parameter" and entry.size]

    @cached_property
    def buffers(self) -> list[Entry]:
        """Non-empty statistics and counters, which are not part of the updates that rules see."""
        return [entry for entry in self.entries if entry.kind != "parameter" and entry.size]

    def signature(self) -> list[list[Any]]:
        """Names, shapes, dtypes and kinds as JSON values; equal for all rounds of a federation."""
        return sorted([entry.name, list(entry.shape), str(entry.dtype), entry.kind] for entry in self.entries)

    def flatten(self, weights: Weights) -> Tensor:
        """The parameters of `weights` as one flat vector, on the device of the first parameter."""
        device = as_tensor(weights[self.parameters[0].name]).device
        if device.type != "cpu":
            ordered = sorted(self.parameters, key=lambda entry: entry.columns.start)
            return torch.cat([as_tensor(weights[entry.name]).reshape(-1).to(device, self.dtype) for entry in ordered])
        vector = empty(self.num_parameters, dtype=self.dtype, device=device)

        def copy(entry: Entry) -> None:
            vector[entry.columns].copy_(as_tensor(weights[entry.name]).reshape(-1))

        for_each(copy, self.parameters)
        return vector

    def subtract(self, weights: Weights, global_vector: Tensor, out: Tensor) -> None:
        """Write a client's update, its parameters minus those of the global model, to `out`."""
        for entry in self.parameters:
            value = as_tensor(weights[entry.name]).to(out.device).reshape(-1)
            torch.sub(value, global_vector[entry.columns], out=out[entry.columns])

    def check(self, weights: object) -> dict[str, Tensor]:
        """A client's weights as tensors; raises `BadWeightsError` if names, shapes or kinds differ from the model's.

        All of these are compared before any array is converted, so that an array that is too large costs nothing.
        """
        if not isinstance(weights, Mapping):
            raise BadWeightsError(f"sent a {type(weights).__name__} instead of named arrays")
        missing = [entry.name for entry in self.entries if entry.name not in weights]
        if missing:
            raise BadWeightsError(f"sent no {_abbreviated(missing)}")
        extra = [name for name in weights if name not in self._names]
        if extra:
            raise BadWeightsError(f"sent {_abbreviated(extra)}, which the model does not have")
        return {entry.name: _checked(entry, weights) for entry in self.entries}

    def buffer_values(self, weights: Weights) -> dict[str, Tensor]:
        """A client's statistics and counters as they were sent; raises `BadWeightsError` if they are invalid."""
        values = {entry.name: as_tensor(weights[entry.name]) for entry in self.buffers}
        if any(value.device.type != "cpu" for value in values.values()):
            values = _on_cpu(values)
        for entry in self.buffers:
            value = values[entry.name]
            if not value.is_floating_point():
                continue
            if not bool(torch.isfinite(value).all()):
                raise BadWeightsError(f"sent NaN or infinity in {entry.name!r}")
            if bool((value.abs() > largest_usable(torch.float32)).any()):
                raise BadWeightsError(f"sent values that are too large in {entry.name!r}")
            if entry.is_variance and bool((value < 0).any()):
                raise BadWeightsError(f"sent a negative variance in {entry.name!r}")
        return values

    def rebuild(
        self, like: Weights, vector: Tensor, buffers: Mapping[str, Tensor], step: Tensor | None = None
    ) -> dict[str, Any]:
        """A model from flat parameters and buffers, in memory of its own.

        Parameters
        ----------
        like
            A model with the names, array types, dtypes and devices of the result. It supplies buffers that are missing
            from `buffers`.
        vector
            The parameters.
        buffers
            Statistics and counters by name.
        step
            A vector to add to `vector` (default: None).
        """
        moved = self._moved(vector, step)
        rebuilt: dict[str, Any] = {}
        for entry in self.entries:
            original = like[entry.name]
            if entry.name in moved:
                value = moved[entry.name].to(entry.dtype).reshape(entry.shape)
            elif entry.name in buffers:
                value = buffers[entry.name].clone()
                value = value if value.dtype == entry.dtype else _cast(value, entry.dtype)
            else:
                value = as_tensor(original).clone()
            if isinstance(original, Tensor):
                rebuilt[entry.name] = value.to(original.device)
            else:
                rebuilt[entry.name] = value.to("cpu").numpy().astype(original.dtype, copy=False)
        return rebuilt

    @torch.no_grad()
    def _moved(self, vector: Tensor, step: Tensor | None) -> dict[str, Tensor]:
        """For each parameter a new flat array of `vector` + `step`, within the range of the parameter's dtype."""
        moved = {}
        if vector.device.type != "cpu":
            whole = vector if step is None else (vector + step).clamp_(**_limits(vector.dtype))
            for entry in self.parameters:
                moved[entry.name] = value = whole[entry.columns].clone()
                if entry.dtype != vector.dtype:
                    value.clamp_(**_limits(entry.dtype))
            return moved

        def move(task: tuple[Entry, int]) -> None:
            entry, start = task
            out = moved[entry.name][start : start + _MOVED_COLUMNS]
            columns = slice(entry.columns.start + start, entry.columns.start + start + len(out))
            if step is None:
                out.copy_(vector[columns])
            else:
                torch.add(vector[columns], step[columns], out=out)
            out.clamp_(**_limits(entry.dtype))

        for entry in self.parameters:
            moved[entry.name] = empty(entry.size, dtype=vector.dtype, device=vector.device)
        for_each(move, [(entry, start) for entry in self.parameters for start in range(0, entry.size, _MOVED_COLUMNS)])
        return moved


def largest_usable(dtype: torch.dtype) -> float:
    """The largest accepted norm of an update: 1/16 of the root of the largest finite number.

    Its square leaves a factor of 256 before `dtype` overflows, for sums and products of updates.
    """
    return math.sqrt(torch.finfo(dtype).max) / 16


def _checked(entry: Entry, weights: Weights) -> Tensor:
    """A client's array as a tensor; raises `BadWeightsError` if it does not fit the model's."""
    try:
        value = weights[entry.name]
        require_array(value)
        is_float = value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"
        if value.shape == entry.shape and is_float == entry.dtype.is_floating_point:
            return converted(value)
    except BadWeightsError as error:
        raise BadWeightsError(f"sent {entry.name!r} that {error}") from error
    if value.shape != entry.shape:
        shown = shortened(str(tuple(value.shape)), LONGEST_FORM)
        raise BadWeightsError(f"sent {entry.name!r} of shape {shown} instead of {entry.shape}")
    raise BadWeightsError(f"sent {entry.name!r} as {dtype_name(value.dtype)} instead of {dtype_name(entry.dtype)}")


def _global_tensor(name: str, value: object) -> Tensor:
    try:
        return as_tensor(value)
    except BadWeightsError as error:
        raise ValueError(f"the global model's {name!r} {error}") from error


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors on the CPU, by one transfer for each dtype."""
    found: dict[str, Tensor] = {}
    for kind in dict.fromkeys((value.dtype, value.device) for value in tensors.values()):
        some = {name: value for name, value in tensors.items() if (value.dtype, value.device) == kind}
        together = torch.cat([value.reshape(-1) for value in some.values()]).cpu()
        parts = torch.split(together, [value.numel() for value in some.values()])
        found |= {name: part.view(value.shape) for (name, value), part in zip(some.items(), parts, strict=True)}
    return found


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor with NaN or infinity; None if there is none."""
    floats = {name: value for name, value in tensors.items() if value.is_floating_point()}
    norms = [
        torch.linalg.vector_norm(value, dtype=torch.promote_types(value.dtype, torch.float32)).double()
        for value in floats.values()
    ]
    # One transfer from a GPU. Norms are faster to compute, but they can overflow although all values are finite.
    if not norms or math.isfinite(torch.stack([norm.to(norms[0].device) for norm in norms]).sum()):
        return None
    return next((name for name, value in floats.items() if not bool(torch.isfinite(value).all())), None)


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value` in `dtype`, rounded for integers and clamped to the range of `dtype`; may overwrite `value`."""
    if dtype == torch.bool:
        return value >= 0.5
    if dtype.is_floating_point:
        return value.clamp_(**_limits(dtype)).to(dtype)
    low, high = float(torch.iinfo(dtype).min), float(torch.iinfo(dtype).max)
    # float64 cannot represent the largest int64 and rounds it up to 2^63, which is out of range.
    return value.round().clamp(low, min(high, math.nextafter(2.0**63, 0))).to(dtype)


def _limits(dtype: torch.dtype) -> dict[str, float]:
    """The range of a floating-point dtype, as arguments of `clamp_`."""
    return {"min": torch.finfo(dtype).min, "max": torch.finfo(dtype).max}


def _kind(name: str, tensor: Tensor, declared: bool) -> Kind:
    if not tensor.is_floating_point():
        return "counter"
    return "statistic" if declared or re.split("[./]", name)[-1] in _STATISTICS else "parameter"


def _matching(names: Mapping[str, Any], patterns: Sequence[str]) -> set[str]:
    """The names that match a shell pattern; raises `ConfigError` for a pattern without a match."""
    if isinstance(patterns, str):
        raise ConfigError(f"buffers={patterns!r} is not allowed: pass a list of patterns")
    found = {pattern: {name for name in names if fnmatchcase(name, pattern)} for pattern in patterns}
    for pattern, matches in found.items():
        if not matches:
            raise ConfigError(f"buffers: {pattern!r} matches no array of the model, which has {_abbreviated([*names])}")
    return set().union(*found.values())


def _layer_name(name: str) -> str:
    """The layer of a parameter: its module and, in a recurrent module, the number of the layer.

    >>> [_layer_name(f"decoder.1.q_proj.{matrix}") for matrix in ("lora_A.weight", "lora_B.default.weight", "bias")]
    ['decoder.1.q_proj', 'decoder.1.q_proj', 'decoder.1.q_proj']
    """
    if adapter := _ADAPTER.search(name):
        return name[: adapter.start()] or "model"
    module, _, leaf = name.rpartition(".")
    recurrent = _RECURRENT.search(leaf)
    if recurrent:
        return f"{module}.{recurrent[1]}" if module else recurrent[1]
    if module or leaf in ("weight", "bias"):
        return module or "model"
    return leaf


def _abbreviated(names: list[Any]) -> str:
    """At most three names, and the number of the others."""
    shown = ", ".join(quoted(name, _LONGEST_NAME) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
