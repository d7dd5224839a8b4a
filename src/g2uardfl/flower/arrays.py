"""Models in Flower's messages: an `ArrayRecord` of NumPy files, decoded without trusting the sender.

NumPy has no bfloat16. Such an array has the `dtype` "bfloat16" here and stores its two-byte numbers as opaque bytes
(`V2`), which is also what NumPy writes for the bfloat16 of JAX. `array_record` and `state_dict` convert torch models of
any dtype.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from ..core.errors import StateError
from ..core.layout import BadWeightsError, as_tensor
from ..core.state_files import SavedState
from ..core.text import failure, quoted, shortened

_NUMPY = "numpy.ndarray"
_BFLOAT16 = "bfloat16"
_OPAQUE = np.dtype("V2")
_MAX_DIMENSION = 2**40
"""Elements along one axis. No real array has more (4 TB in float32); an empty array can claim any number."""
_LONGEST_HEADER = 20_000
"""Bytes of a file that are searched for its header; NumPy accepts headers of up to 10,000 characters."""
_FLOATS = {np.dtype(np.float16): torch.float16, np.dtype(np.float32): torch.float32, np.dtype(float): torch.float64}


class RecordWeights(Mapping[str, Any]):
    """An `ArrayRecord` as weights: tensors of floats and NumPy arrays of anything else, none of them copied.

    Access to an array that cannot be read raises `BadWeightsError`; its sender is then invalid in this round.
    """

    def __init__(self, record: ArrayRecord) -> None:
        self._record = record

    def __getitem__(self, name: str) -> Tensor | npt.NDArray[Any]:
        return view(self._record[name])

    def __contains__(self, name: object) -> bool:
        return name in self._record

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


def view(array: Array) -> Tensor | npt.NDArray[Any]:
    """The content of an `Array`, which shares memory with the received bytes: it must not be written to.

    The header must account for every received byte, so that a few bytes that claim to be a huge array cost nothing.
    Reading raises `BadWeightsError` and nothing else.
    """
    try:
        with warnings.catch_warnings():
            # The parser of headers quotes what a client wrote, and torch warns of bytes that must not be written to.
            warnings.simplefilter("ignore")
            return _view(array)
    except BadWeightsError:
        raise
    except Exception as error:
        # A client wrote all of this, so reading it can raise almost anything.
        raise BadWeightsError(f"is damaged ({failure(error)})") from error


def decode(array: Array) -> Tensor:
    """The content of an `Array` as a tensor. Floats share memory with the received bytes."""
    return as_tensor(view(array))


def _view(array: Array) -> Tensor | npt.NDArray[Any]:
    if array.stype != _NUMPY:
        raise BadWeightsError(f"is stored as {quoted(array.stype, 40)}, not as {_NUMPY!r}")
    dtype, shape, fortran, start = _header(array.data)
    kind = torch.bfloat16 if array.dtype == _BFLOAT16 and dtype.itemsize == 2 else _FLOATS.get(dtype)
    if dtype.kind not in "fiub" and not (kind is torch.bfloat16 and dtype == _OPAQUE):
        raise BadWeightsError(f"is an array of {shortened(str(dtype), 40)}")
    # bool is a subclass of int, and True a valid size for NumPy.
    if not all(type(size) is int and 0 <= size < _MAX_DIMENSION for size in shape):
        raise BadWeightsError("is damaged: its header is not a valid shape")
    count = math.prod(shape)
    if count * dtype.itemsize != len(array.data) - start:
        raise BadWeightsError("is damaged: its size contradicts its header")
    if kind is None:
        values = np.frombuffer(array.data, dtype, count, start) if count else np.empty(0, dtype)
        return values.reshape(shape, order="F" if fortran else "C")
    if count and start % dtype.itemsize == 0:
        flat = torch.frombuffer(array.data, dtype=kind, count=count, offset=start)
    else:
        flat = torch.frombuffer(bytearray(array.data[start:]), dtype=kind) if count else torch.empty(0, dtype=kind)
    return flat.reshape(shape[::-1]).permute(*range(len(shape))[::-1]) if fortran and shape else flat.reshape(shape)


def encode(array: Tensor | npt.NDArray[Any], like: Array) -> Array:
    """An `Array` of the same numbers in the dtype of `like`."""
    value, stored_as = as_tensor(array), _header(like.data)[0]
    if value.dtype == torch.bfloat16:
        return _bfloat16(value, stored_as)
    return Array(value.cpu().numpy().astype(stored_as, copy=False))


def array_record(weights: Mapping[str, Any]) -> ArrayRecord:
    """A model of any dtypes as an `ArrayRecord`.

    Flower's own `ArrayRecord(model.state_dict())` rejects bfloat16; for other dtypes the results are equal.

    >>> record = array_record({"w": torch.ones(2, dtype=torch.bfloat16)})
    >>> record["w"].dtype, state_dict(record)["w"]
    ('bfloat16', tensor([1., 1.], dtype=torch.bfloat16))
    """
    return ArrayRecord({name: _encode_any(value) for name, value in weights.items()})


def state_dict(record: ArrayRecord) -> dict[str, Tensor]:
    """The tensors of an `ArrayRecord` for `load_state_dict`; the inverse of `array_record`."""
    return {name: decode(array).clone() for name, array in record.items()}


def saved_record(record: ArrayRecord) -> SavedState:
    """A record for a state file, without copying its bytes."""
    described = [[name, array.dtype, list(array.shape), array.stype] for name, array in record.items()]
    arrays = {str(index): np.frombuffer(array.data, np.uint8) for index, array in enumerate(record.values())}
    return SavedState({"arrays": described}, arrays)


def loaded_record(state: SavedState) -> ArrayRecord:
    """The record that `saved_record` was given."""
    record = ArrayRecord()
    try:
        for index, (name, dtype, shape, stype) in enumerate(state.values["arrays"]):
            record[name] = Array(dtype, tuple(shape), stype, state.arrays[str(index)].tobytes())
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the saved model is incomplete ({error}): restore it from a copy or start over") from error
    return record


def _encode_any(value: Any) -> Array:
    if not isinstance(value, Tensor):
        return Array(np.asarray(value))
    value = value.detach().cpu()
    return _bfloat16(value, _OPAQUE) if value.dtype == torch.bfloat16 else Array(value.numpy())


def _bfloat16(value: Tensor, stored_as: np.dtype[Any]) -> Array:
    file = BytesIO()
    np.save(file, value.contiguous().view(torch.int16).numpy().view(stored_as), allow_pickle=False)
    return Array(_BFLOAT16, tuple(value.shape), _NUMPY, file.getvalue())


def _header(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Dtype, shape, whether the array is in Fortran order, and the offset of its numbers."""
    file = BytesIO(data[:_LONGEST_HEADER])
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, fortran, dtype = readers[np.lib.format.read_magic(file)](file)
    except Exception as error:
        # A header is a Python literal that a client wrote: parsing it can raise almost anything.
        raise BadWeightsError("is not a NumPy file") from error
    return dtype, shape, fortran, file.tell()
