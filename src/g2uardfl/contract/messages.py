"""What hostile clients send, made from an honest submission and the global model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..core.layout import as_tensor

Model = Mapping[str, Any]
Lie = Callable[[dict[str, Any], Model], Any]
"""What a hostile client sends, from an honest submission and the global model."""


class Raising(dict[str, Any]):
    """A mapping whose content cannot be read."""

    def __getitem__(self, name: str) -> Any:
        """Fail."""
        raise RuntimeError(f"no {name} for you\n")


class Lying:
    """An object that claims to be an array."""

    shape, dtype = (3,), np.dtype("float32")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise MemoryError("too large")


def first_name(weights: Model) -> str:
    """The first trainable array."""
    return next(name for name, value in weights.items() if as_tensor(value).is_floating_point())


def with_first(change: Callable[[Any], Any]) -> Lie:
    """An honest submission in which the first array is replaced."""
    return lambda honest, model: {**honest, first_name(honest): change(honest[first_name(honest)])}


def with_entry(value: float) -> Lie:
    """An honest submission with one number changed."""

    def changed(array: Any) -> Any:
        copied = array.clone() if isinstance(array, torch.Tensor) else array.copy()
        copied.reshape(-1)[0] = value
        return copied

    return with_first(changed)


def scaled(factor: float) -> Lie:
    """An honest update, so many times as large."""

    def lie(honest: dict[str, Any], model: Model) -> dict[str, Any]:
        return {
            name: (model[name] + factor * (value - model[name])).astype(value.dtype)
            if isinstance(value, np.ndarray)
            else (model[name] + factor * (value - model[name])).to(value.dtype)
            for name, value in honest.items()
        }

    return lie


UNUSABLE: dict[str, Lie] = {
    "NaN": with_entry(float("nan")),
    "infinity": with_entry(float("-inf")),
    "norm 1e30": with_entry(1e30),
    "a missing name": lambda honest, _: dict(list(honest.items())[1:]),
    "an extra name": lambda honest, _: {**honest, "surprise\n\x1b[31m": next(iter(honest.values()))},
    "a name of a megabyte": lambda honest, _: {**honest, "x" * 10**6: next(iter(honest.values()))},
    "a name that is not a string": lambda honest, _: {**honest, 7: next(iter(honest.values()))},
    "a wrong shape": with_first(lambda array: array.reshape(-1)[:-1]),
    "a huge array": with_first(lambda array: np.broadcast_to(np.float32(1), (2**40,))),
    "one more axis": with_first(lambda array: array[None]),
    "a wrong kind of number": with_first(lambda array: torch.ones(tuple(array.shape), dtype=torch.int64)),
    "complex numbers": with_first(lambda array: np.ones(tuple(array.shape), dtype=np.complex64)),
    "text in an array": with_first(lambda array: np.full(tuple(array.shape), "x")),
    "objects in an array": with_first(lambda array: np.full(tuple(array.shape), None)),
    "a sparse tensor": with_first(lambda array: torch.ones(tuple(array.shape)).to_sparse()),
    "a tensor without memory": with_first(lambda array: torch.ones(tuple(array.shape), device="meta")),
    "an object that claims to be an array": with_first(lambda array: Lying()),
    "a list": with_first(lambda array: array.tolist()),
    "None in a mapping": with_first(lambda array: None),
    "an empty mapping": lambda honest, _: {},
    "a mapping that cannot be read": lambda honest, _: Raising(honest),
    "nothing": lambda honest, _: None,
    "a string": lambda honest, _: "weights",
}
"""Unusable messages: the sender is invalid, and no other client is affected."""

WELL_FORMED: dict[str, Lie] = {
    "the model unchanged": lambda honest, model: dict(model),
    "a copy": lambda honest, model: honest,
    "a thousandth of an update": scaled(1e-3),
    "a hundred times an update": scaled(100.0),
    "the opposite of an update": scaled(-1.0),
    "the largest norm that is read": with_entry(1e17),
    "subnormal numbers": with_entry(1e-40),
    "one array far away": with_first(lambda array: array + 50),
    "an array of zeros": with_first(lambda array: array * 0),
    "a read-only array": with_first(lambda array: np.broadcast_to(np.float32(0.5), tuple(array.shape))),
    "an array in Fortran order": with_first(lambda array: np.asfortranarray(np.asarray(array))),
    "half precision": with_first(lambda array: torch.as_tensor(np.asarray(array)).half()),
}
"""Usable but extreme messages: a rule must judge them without an exception, a lost round or a model that is not
finite."""
