"""Rounds whose clients arrive one by one: the server keeps their models in files, not in memory.

Each file is mapped into memory and deleted at once, so that no file remains, however the process ends; the
system reads its pages when a rule needs them, and drops them when memory is scarce.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.layout import ModelLayout, Weights
from .reading import ClientId
from .reports import AggregationResult

if TYPE_CHECKING:
    from .base import Aggregator

_ALIGNMENT = 64
"""The alignment of arrays in a file, in bytes, as in memory."""


class StreamedRound:
    """A round in progress; `Aggregator.begin_round` creates it.

    `finish` calls `aggregate`, so that the result is the same as if all messages had been passed together.
    """

    def __init__(self, rule: Aggregator, global_weights: Weights, folder: str | None) -> None:
        self._rule, self._global_weights, self._folder = rule, global_weights, folder
        self._layout = ModelLayout.of(global_weights)
        self._sent: dict[ClientId, Mapping[str, Any]] = {}
        self._examples: dict[ClientId, Any] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, client: ClientId, weights: Weights, num_examples: int | None = None) -> None:
        """Store the message of a client; ValueError if it is the second in this round.

        A message that does not fit the model makes its client "invalid" in the result, as in `aggregate`.
        """
        if client in self._sent:
            raise ValueError(f"client {client!r} has already sent its model in this round: begin a new round")
        try:
            arrays = self._layout.check(weights)
            contents = [value.cpu().reshape(-1).view(torch.uint8).numpy() for value in arrays.values()]
        except Exception as error:  # Reading a client's message can raise any exception.
            self._sent[client] = _Unreadable(error)
        else:
            self._sent[client] = _mapped(arrays, contents, self._folder)
        if num_examples is not None:
            self._examples[client] = num_examples

    def finish(self, **options: Any) -> AggregationResult:
        """Decide the round, with the keyword arguments of `Aggregator.aggregate`, and delete its messages."""
        sent, self._sent = self._sent, {}
        return self._rule.aggregate(self._global_weights, sent, self._examples or None, **options)


class _Unreadable(Mapping[str, Any]):
    """Replaces a message that could not be read; each access raises the same error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, name: str) -> Any:
        raise self._error

    def __contains__(self, name: object) -> bool:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        raise self._error


def _mapped(
    arrays: Mapping[str, Tensor], contents: Sequence[npt.NDArray[np.uint8]], folder: str | None
) -> dict[str, Tensor]:
    """The same arrays, in a file that is mapped into memory."""
    ends = np.cumsum([math.ceil(len(content) / _ALIGNMENT) * _ALIGNMENT for content in contents], dtype=int).tolist()
    starts = [0, *ends]
    with tempfile.NamedTemporaryFile(dir=folder, prefix="g2uardfl-") as file:
        for start, content in zip(starts, contents, strict=False):
            file.seek(start)
            file.write(content.data)
        file.truncate(max(starts[-1], 1))
        file.flush()
        mapped = torch.from_file(file.name, shared=True, size=max(starts[-1], 1), dtype=torch.uint8)
    return {
        name: mapped[start : start + value.nbytes].view(value.dtype).view(value.shape)
        for start, (name, value) in zip(starts, arrays.items(), strict=False)
    }
