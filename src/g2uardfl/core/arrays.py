"""Conversion of NumPy and torch arrays to tensors, and rejection of anything else that a client may send."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .text import shortened

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of parameters; torch can store more, but not compute with them."""
_USUAL = frozenset(map(np.dtype, (np.float16, np.float32, np.float64, np.int64)))
"""The dtypes of NumPy arrays that torch reads without conversion."""
LONGEST_FORM = 40
"""Characters of an array's shape or dtype in the reason why a message is unusable."""


class BadWeightsError(ValueError):
    """A client's weights are unusable; the message completes a sentence that begins with "The client"."""


def as_tensor(value: object) -> Tensor:
    """An array as a tensor, without a copy if possible; raises `BadWeightsError` for anything else."""
    require_array(value)
    return converted(value)


def converted(value: Any) -> Tensor:
    """`as_tensor` of what `require_array` has accepted."""
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) is np.ndarray and value.dtype in _USUAL and value.flags.carray:
        return torch.from_numpy(value)
    array = np.asarray(value)
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind == "u" and dtype.itemsize > 1:
        dtype = np.dtype(np.int64)
    elif dtype == np.longdouble:
        dtype = np.dtype(np.float64)
    if dtype != array.dtype or any(stride < 0 for stride in array.strides) or not array.flags.writeable:
        array = array.astype(dtype, copy=True)
    return torch.from_numpy(array)


def require_array(value: object) -> None:
    """Raise `BadWeightsError` for anything that is not an array of numbers; does not read the numbers."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise BadWeightsError("is not a dense real tensor")
        if value.is_floating_point() and value.dtype not in _FLOATS:
            raise BadWeightsError(f"is a tensor of {dtype_name(value.dtype)}")
    elif not isinstance(value, np.ndarray | np.generic):
        raise BadWeightsError(f"is a {type(value).__name__}, not an array")
    elif value.dtype.kind not in "fiub":
        raise BadWeightsError(f"is an array of {shortened(str(value.dtype), LONGEST_FORM)}")


def dtype_name(dtype: object) -> str:
    """The name of a dtype of either library."""
    return str(dtype).removeprefix("torch.")
