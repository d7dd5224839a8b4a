"""Reads pickles of plain values and NumPy arrays without executing code from the file.

A pickle is a program that may call any function. Here, the few names that a pickled array needs are replaced by
stand-ins, which only collect its type, shape and bytes; all other names are rejected. NumPy's own constructors are
never called with data from the file. It is written by hand because the usual readers, such as `pandas.read_pickle` and
`numpy.load(allow_pickle=True)`, execute the program.
"""

from __future__ import annotations

import math
import pickle
from typing import IO, Any

import numpy as np

from ...core.errors import DataError

_ADMITTED_TYPES = frozenset({"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "b1"})
"""NumPy's codes of the admitted element types: integers, floating-point numbers and booleans."""


class _Dtype:
    """Stands in for `numpy.dtype`: a code such as `u1` and a byte order."""

    def __init__(self, code: object = "", *_: object) -> None:
        self.code = _text(code).lstrip("|<>=")
        self.byte_order = "="

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2:
            raise pickle.UnpicklingError("a type that NumPy did not write")
        self.byte_order = _text(state[1])

    def real(self) -> np.dtype[Any]:
        """The NumPy type; `UnpicklingError` if it is not an admitted type."""
        if self.code not in _ADMITTED_TYPES or self.byte_order not in ("|", "<", ">", "="):
            raise pickle.UnpicklingError(f"an array of type {self.code!r}")
        return np.dtype(self.code).newbyteorder(self.byte_order)  # type: ignore[arg-type]


class _Array:
    """Stands in for `numpy.ndarray` while the pickle is read."""

    def __init__(self, *_: object) -> None:
        self.value: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array that NumPy did not write")
        _, shape, dtype, is_fortran, content = state
        self.value = _build(content, dtype, shape, "F" if is_fortran else "C")


def _build(content: object, dtype: object, shape: object, order: object) -> np.ndarray[Any, Any]:
    """A new array from raw bytes, after checking that type, shape and size are consistent."""
    if not (isinstance(dtype, _Dtype) and isinstance(shape, tuple) and all(type(size) is int for size in shape)):
        raise pickle.UnpicklingError("an array that NumPy did not write")
    if not isinstance(content, (bytes, bytearray)):
        raise pickle.UnpicklingError("an array of objects")
    real = dtype.real()
    if len(content) != math.prod(shape) * real.itemsize:
        raise pickle.UnpicklingError("an array whose size does not match its shape")
    values = np.frombuffer(content, dtype=real).reshape(shape, order="F" if _text(order) == "F" else "C")
    return np.array(values, dtype=real.newbyteorder("="))


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(content: object, dtype: object, shape: object, order: object) -> _Array:
    array = _Array()
    array.value = _build(content, dtype, shape, order)
    return array


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """`codecs.encode` for Latin-1, in which Python 3 writes bytes with old pickle protocols."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("bytes in an unknown encoding")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """`bytes()`, which represents empty bytes in old pickle protocols."""
    return b""


def _text(value: object) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}
"""The admitted names, and what replaces them; NumPy 1 has modules in `core`, NumPy 2 in `_core`."""


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}") from None


def load_pickle(stream: IO[bytes], origin: str) -> Any:
    """The value in a pickle of dicts, lists, tuples, strings, bytes, numbers and NumPy arrays of numbers.

    Strings written by Python 2 are returned as bytes.

    Parameters
    ----------
    stream
        The content of the pickle.
    origin
        The name of the file, for messages.

    Raises
    ------
    DataError
        The pickle is damaged or contains anything else; no code from it was executed.
    """
    try:
        return _resolved(_RestrictedUnpickler(stream, encoding="bytes").load())
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        raise DataError(
            f"{origin} is rejected: only pickles of NumPy arrays and plain values are read ({error})"
        ) from error


def _resolved(value: Any) -> Any:
    """`value` with every stand-in replaced by its array."""
    if isinstance(value, _Array):
        if value.value is None:
            raise pickle.UnpicklingError("an array without content")
        return value.value
    if isinstance(value, dict):
        return {key: _resolved(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_resolved(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise pickle.UnpicklingError(f"a value of type {type(value).__name__}")
