"""Snapshots of earlier models, spaced over the window, so that the model can be rolled back to one that existed.

Older snapshots are sparser: of three spans of equal length the older two are merged. At most two spans of each of the
lengths 1, 2, 4, ... remain, so that 2 log2(R) models cover R rounds: eight for the thirty rounds of ten clients that
the default window holds. Each snapshot is a whole model, parameters (float32) and buffers, in memory and in the state.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...aggregators.base import FlatModel, Round
from ...core.layout import as_tensor
from ...core.state_files import SavedState

_PER_LENGTH = 2
"""At most this many spans have the same length."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The global model before some consecutive rounds."""

    rounds: tuple[int, ...]
    """The rounds between this snapshot and the next one, by the guard's count."""
    number: int
    """The caller's number of the first of them."""
    model: FlatModel


class Snapshots:
    """Earlier global models, oldest first."""

    def __init__(self) -> None:
        self.kept: list[Snapshot] = []

    def add(self, round_number: int, round_: Round) -> None:
        """Keep the model with which a round began."""
        layout, weights = round_.layout, round_.global_weights
        buffers = {entry.name: as_tensor(weights[entry.name]).clone() for entry in layout.buffers}
        number = round_number if round_.number is None else round_.number
        self.kept.append(Snapshot((round_number,), number, FlatModel(round_.global_vector, buffers)))
        length = 1
        while len(same := [one for one in self.kept if len(one.rounds) == length]) > _PER_LENGTH:
            place = self.kept.index(same[0])
            older, newer = self.kept[place : place + 2]
            joined = Snapshot(older.rounds + newer.rounds, older.number, older.model)
            self.kept[place : place + 2] = [joined]
            length = len(joined.rounds)

    def forget(self, before: int) -> None:
        """Drop the snapshots whose rounds all lie before round `before`."""
        self.kept = [one for one in self.kept if one.rounds[-1] >= before]

    def before(self, rounds: Collection[int]) -> Snapshot | None:
        """The latest model from before all of these rounds that are still covered."""
        wanted = set(rounds)
        return next((one for one in self.kept if wanted & set(one.rounds)), None)

    def drop_from(self, snapshot: Snapshot) -> None:
        """Drop this snapshot and all later ones."""
        self.kept = self.kept[: self.kept.index(snapshot)]

    def state(self) -> SavedState:
        """All snapshots."""
        values = {"snapshots": [[list(one.rounds), one.number, sorted(one.model.buffers)] for one in self.kept]}
        arrays: dict[str, npt.NDArray[Any]] = {}
        for place, one in enumerate(self.kept):
            arrays[f"{place}.vector"] = one.model.vector.cpu().numpy()
            for name, value in one.model.buffers.items():
                # NumPy has no bfloat16; float64 holds every value of the floating-point types.
                exact = value.double() if value.is_floating_point() else value
                arrays[f"{place}.buffer.{name}"] = exact.cpu().numpy()
        return SavedState(values, arrays)

    def restore(self, state: SavedState) -> None:
        """Continue with saved snapshots."""
        self.kept = []
        for place, (rounds, number, names) in enumerate(state.values["snapshots"]):
            buffers = {name: torch.from_numpy(np.array(state.arrays[f"{place}.buffer.{name}"])) for name in names}
            vector = torch.from_numpy(state.arrays[f"{place}.vector"])
            self.kept.append(Snapshot(tuple(rounds), int(number), FlatModel(vector, buffers)))
