"""The agreement graph: whose updates point the same way, over the rounds that are remembered.

A node is a submission: one client's update in one round. Honest clients learn many things, so near convergence their
updates are almost at right angles to each other; whoever plants a backdoor pulls the model one and the same way, in
this round and in the rounds before. The weight of the edge between two submissions says how much further their updates
agree than updates of the same two rounds usually do. In one round of ten clients that is often too little to tell;
over thirty rounds it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...aggregators.base import ClientId
from ...core.layout import Layer
from ...core.numerics import Array
from ...core.threads import in_parallel
from ...core.updates import SentUpdates, each_row

Sketches = npt.NDArray[np.float32]

_LOWEST = 0.1
"""Which share of the clients of a round is honest at least, but for very few rounds."""
_SMALLEST_DEVIATION = 0.01
"""Cosines that vary less than this are taken to vary this much."""
_LEAST, _MOST = -6.0, 12.0
"""How far a single layer may speak against or for agreement."""


def random_signs(size: int, seed: int) -> Tensor:
    """What `directions` multiplies the parameters by; only sketches with the same signs can be compared."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8) * 2 - 1).float()


def directions(
    updates: Tensor | SentUpdates, global_vector: Tensor, signs: Tensor, layers: Sequence[Layer], width: int
) -> Sketches:
    """(clients x layers x width): for each layer of each update a short unit vector, zero where the update is zero.

    Parameters are multiplied by random signs and summed up `width` apart (a count sketch), so that the cosine of two
    short vectors is that of the two long ones up to an error of about 1 / sqrt(width). What lies along the global model
    is taken out: weight decay pulls everybody that way, and those most who have nothing to learn.
    """

    def sketch(row: Tensor) -> Array:
        folded = torch.stack([_folded(row[it.columns], signs[it.columns], width) for it in layers])
        return _unit(folded.double().cpu().numpy())

    model = sketch(global_vector)
    sketches = np.stack(each_row(updates, sketch))
    along = np.sum(sketches * model, axis=-1, keepdims=True)
    return _unit(sketches - along * model).astype(np.float32)


def _unit(vectors: Array) -> Array:
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    scaled = vectors / np.where(largest > 1e-12 * largest.max(initial=0.0), largest, np.inf)
    lengths = np.linalg.norm(scaled, axis=-1, keepdims=True)
    result: Array = scaled / np.where(lengths > 0, lengths, 1.0)
    return result


def _folded(values: Tensor, signs: Tensor, width: int) -> Tensor:
    whole = len(values) // width * width
    result = (values[:whole].view(-1, width) * signs[:whole].view(-1, width)).sum(dim=0)
    result[: len(values) - whole] += values[whole:] * signs[whole:]
    return result


@dataclass
class Window:
    """The submissions of the last rounds, oldest first; the current round's come last.

    A round is remembered whole or not at all, as many as `limit` submissions allow, and always the current one.
    """

    limit: int
    clients: list[ClientId] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    sketches: Sketches = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.float32))
    accepted: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Which submissions were accepted."""

    def add(self, number: int, clients: Sequence[ClientId], sketches: Sketches) -> None:
        """Take in round `number` and forget the oldest rounds that no longer fit."""
        if not len(clients):
            return
        self.clients += clients
        self.rounds += [number] * len(clients)
        self.sketches = np.concatenate([self.sketches, sketches]) if len(self.sketches) else sketches
        self.accepted = np.concatenate([self.accepted, np.zeros(len(clients), dtype=bool)])
        surplus = len(self.clients) - max(self.limit, len(clients))
        if surplus > 0:
            oldest_kept = self.rounds[surplus - 1] + 1
            first = next(row for row, round_ in enumerate(self.rounds) if round_ >= oldest_kept)
            self.clients, self.rounds = self.clients[first:], self.rounds[first:]
            self.sketches, self.accepted = self.sketches[first:], self.accepted[first:]

    def note_accepted(self, accepted: npt.NDArray[np.bool_]) -> None:
        """Note which of the last submissions were accepted."""
        if len(accepted):
            self.accepted[-len(accepted) :] = accepted

    def forget(self, forgotten: npt.NDArray[np.bool_]) -> None:
        """Forget some of the submissions."""
        if not forgotten.any():
            return
        kept = np.flatnonzero(~forgotten)
        self.clients, self.rounds = [self.clients[row] for row in kept], [self.rounds[row] for row in kept]
        self.sketches, self.accepted = self.sketches[kept], self.accepted[kept]

    def people(self) -> npt.NDArray[np.int64]:
        """For each submission the number of its client, counted from 0."""
        numbers: dict[ClientId, int] = {}
        return np.array([numbers.setdefault(client, len(numbers)) for client in self.clients], dtype=np.int64)


def agreement(window: Window) -> Array:
    """(submissions x submissions): the weights of the agreement graph's edges.

    In each layer what the clients of two rounds agree on anyway (early in training that is much) is taken away; the
    rest is measured in robust standard deviations, and the layers are averaged. A client is not compared with itself:
    that it agrees with its own past says nothing.
    """
    people = window.people()
    same = people[:, None] == people[None, :]
    _, round_index, sizes = np.unique(window.rounds, return_inverse=True, return_counts=True)
    place = _places(round_index, sizes)

    def in_layer(rows: Tensor) -> Sketches:
        cosines: Sketches = (rows @ rows.T).numpy()
        cosines[same] = np.nan
        cosines -= _in_common(cosines, place, sizes)[round_index[:, None], round_index[None, :]]
        cosines /= max(_deviation(cosines), _SMALLEST_DEVIATION)
        return np.clip(cosines, _LEAST, _MOST, out=cosines)

    layers = torch.from_numpy(window.sketches.transpose(1, 0, 2).copy()).unbind()
    result = np.zeros(same.shape)
    for one in in_parallel(in_layer, layers):
        result += one
    result[same] = 0.0
    return result / len(layers)


def agree_on_average(sketches: Sketches) -> float:
    """The mean cosine of the clients' directions, over all pairs and layers; 0 where there is nobody to compare with.

    >>> agree_on_average(np.array([[[1, 0]], [[0, 1]]], dtype=np.float32))
    0.0
    """
    count = len(sketches)
    if count < 2:
        return 0.0
    together = float(np.mean(np.sum(np.sum(sketches, axis=0, dtype=np.float64) ** 2, axis=-1)))
    alone = float(np.mean(np.sum(np.sum(sketches.astype(np.float64) ** 2, axis=-1), axis=0)))
    return (together - alone) / (count * (count - 1))


def _places(round_index: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each submission sits when every round is given as many seats as the largest."""
    first = np.cumsum(sizes) - sizes
    result: npt.NDArray[np.int64] = round_index * sizes.max() + np.arange(len(round_index)) - first[round_index]
    return result


def _in_common(
    cosines: npt.NDArray[np.float32], place: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """(rounds x rounds): what the clients of two rounds agree on anyway, 0 where there are none.

    That is the median cosine, unless attackers are so many in these rounds that it lies between two of them. A client's
    own median lies there only if it is an attacker, so that the lowest tenth of these is honest. It lies below the
    median anyway, by about the same everywhere; where it lies deeper by a standard deviation, it is what counts.
    """
    rounds, seats = len(sizes), int(sizes.max())
    padded = np.full((rounds * seats, rounds * seats), np.nan, dtype=np.float32)
    padded[place[:, None], place[None, :]] = cosines
    by_rounds = padded.reshape(rounds, seats, rounds, seats)
    pairs = by_rounds.transpose(0, 2, 1, 3).reshape(rounds, rounds, seats * seats)
    medians = _quantile(pairs, 0.5)
    of_clients = _quantile(by_rounds, 0.5)
    lowest = _quantile(np.concatenate([of_clients.transpose(0, 2, 1), of_clients.transpose(2, 0, 1)], axis=2), _LOWEST)
    there = ~np.isnan(medians)
    lower = lowest + np.median((medians - lowest)[there]) if there.any() else lowest
    apart = np.abs(pairs - medians[:, :, None])
    # The deviation in these rounds or in all, whichever is more: early in training it is not the same everywhere.
    deviations = np.maximum(1.4826 * _quantile(apart, 0.5), _deviation(apart))
    return np.where(there, np.where(medians - lower > deviations, lower, medians), np.float32(0))


def _deviation(values: npt.NDArray[np.float32]) -> float:
    """The robust standard deviation of what is there, around 0; 0 if nothing is."""
    there = np.abs(values[~np.isnan(values)])
    return 1.4826 * float(np.median(there)) if len(there) else 0.0


def _quantile(values: npt.NDArray[np.float32], share: float) -> npt.NDArray[np.float32]:
    """The quantile along the last axis of what is there, NaN where nothing is; much faster than `numpy.nanquantile`."""
    ordered = np.sort(values, axis=-1)  # what is missing sorts last
    position = share * np.maximum(np.sum(~np.isnan(values), axis=-1, keepdims=True) - 1, 0)
    below = position.astype(np.int64)
    above = np.ceil(position).astype(np.int64)
    low, high = np.take_along_axis(ordered, below, axis=-1), np.take_along_axis(ordered, above, axis=-1)
    result: npt.NDArray[np.float32] = (low + (high - low) * (position - below).astype(np.float32))[..., 0]
    return result
