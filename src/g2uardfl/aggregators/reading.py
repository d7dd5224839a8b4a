"""Reading a round: each client's message becomes a usable update, or a sentence on why it is unusable.

Everything that a broken or hostile client can send is handled here, once for all rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core.layout import BadWeightsError, ModelLayout, Weights, largest_usable
from ..core.numerics import Array
from ..core.text import failure, quoted
from ..core.updates import SentUpdates
from ._shares import capped
from .buffers import screen

ClientId: TypeAlias = int | str
_REMARKS = 3
"""The number of suspicious clients that the note of a round names."""


@dataclass(frozen=True)
class Messages:
    """The messages of one round, sorted into usable and invalid ones; clients are in canonical order."""

    clients: tuple[ClientId, ...]
    """The senders of usable messages."""
    global_vector: Tensor
    updates: SentUpdates
    num_examples: Array
    """The sample counts, capped against their median."""
    weights: dict[ClientId, dict[str, Tensor]]
    """The whole model of each usable message, as it was checked, because a client's mapping is read only once."""
    buffers: tuple[dict[str, Tensor], ...]
    """Statistics and counters of the usable messages."""
    invalid: dict[ClientId, str]
    """Client -> one sentence on why its message is unusable."""
    malicious: dict[ClientId, str]
    """Client -> one sentence on how its statistics or counters show that they are false."""
    note: str
    """A remark on clients whose statistics, counters or sample counts are suspicious."""


@dataclass(frozen=True)
class _Message:
    weights: dict[str, Tensor]
    buffers: dict[str, Tensor]
    examples: float


def read_messages(
    layout: ModelLayout,
    global_weights: Weights,
    client_weights: Mapping[ClientId, Weights],
    num_examples: Mapping[ClientId, int] | None = None,
) -> Messages:
    """Sort the messages of a round; raises ValueError if there are none, or an id is not an int or a str."""
    if not isinstance(client_weights, Mapping) or not client_weights:
        raise ValueError("no clients: pass a mapping of at least one client id to its weights")
    global_vector = layout.flatten(global_weights)

    def opened(client: ClientId) -> _Message | str:
        try:
            examples = 1.0 if num_examples is None else _checked_examples(num_examples.get(client))
            weights = layout.check(client_weights[client])
            return _Message(weights, layout.buffer_values(weights), examples)
        except Exception as error:
            return _unusable(error)

    found = {client: opened(client) for _, client in sorted(map(_canonical, client_weights))}
    invalid = {client: reason for client, reason in found.items() if isinstance(reason, str)}
    messages = {client: message for client, message in found.items() if isinstance(message, _Message)}
    updates, unusable = _usable(layout, global_vector, {client: it.weights for client, it in messages.items()})
    invalid |= unusable
    buffers = {client: message.buffers for client, message in messages.items() if client not in invalid}
    outliers = {
        client: outlier
        for client, outlier in zip(buffers, screen(layout, list(buffers.values())), strict=True)
        if outlier is not None
    }
    malicious = {client: f"Its {outlier}." for client, outlier in outliers.items() if outlier.flagged}
    outliers = {client: outlier for client, outlier in outliers.items() if not outlier.flagged}
    buffers = {client: values for client, values in buffers.items() if client not in malicious}
    usable = {client: messages[client] for client in buffers}
    weights = {client: message.weights for client, message in usable.items()}
    if malicious:
        updates = SentUpdates(layout, global_vector, list(weights.values()))
    reported = np.array([message.examples for message in usable.values()], dtype=np.float64)
    examples = capped(reported)
    bounded = [f"Client {client!r}: {outlier}; its values are clipped." for client, outlier in outliers.items()]
    excessive = [
        f"Client {client!r} reports {count:.3g} samples, which count as {limit:.3g}."
        for client, count, limit in zip(usable, reported, examples, strict=True)
        if count > limit
    ]
    return Messages(
        tuple(buffers),
        global_vector,
        updates,
        examples,
        weights,
        tuple(buffers.values()),
        invalid,
        malicious,
        " ".join(filter(None, map(_abbreviated, (bounded, excessive)))),
    )


def _unusable(error: Exception) -> str:
    """Why a message is unusable. Its content depends on the client, so reading it can raise any exception."""
    if isinstance(error, BadWeightsError):
        return f"The client {error}."
    return f"The client sent a message that cannot be read ({failure(error)})."


def _abbreviated(remarks: list[str]) -> str:
    rest = len(remarks) - _REMARKS
    return " ".join([*remarks[:_REMARKS], *([f"The same holds for {rest} more."] if rest > 0 else [])])


def _usable(
    layout: ModelLayout, global_vector: Tensor, sent: Mapping[ClientId, Weights]
) -> tuple[SentUpdates, dict[ClientId, str]]:
    """The updates of all clients with usable numbers, and the reason for each other client."""
    unusable: dict[ClientId, str] = {}
    try:
        updates = SentUpdates(layout, global_vector, list(sent.values()))
        # The comparison is also False for NaN.
        for row in np.flatnonzero(~(updates.norm_bounds() <= largest_usable(layout.dtype) / 2)).tolist():
            if reason := _error(updates.row(row)):
                unusable[list(sent)[row]] = _unusable(reason)
    except Exception as error:
        if len(sent) == 1:
            return SentUpdates(layout, global_vector, []), dict.fromkeys(sent, _unusable(error))
        # Reading each client separately shows whose arrays cannot be read.
        for client, weights in sent.items():
            unusable |= _usable(layout, global_vector, {client: weights})[1]
        if not unusable:
            raise
    if not unusable:
        return updates, unusable
    rest, more = _usable(layout, global_vector, {client: sent[client] for client in sent if client not in unusable})
    return rest, unusable | more


def _error(update: Tensor) -> BadWeightsError | None:
    """Why an update is unusable: it holds NaN or infinity, or is too large to be squared; None if it is usable."""
    norm = float(torch.linalg.vector_norm(update.double()))
    if norm <= largest_usable(update.dtype):
        return None
    if math.isfinite(norm):
        return BadWeightsError(f"sent an update of norm {norm:.1e}, which is too large")
    return BadWeightsError("sent NaN, infinity or numbers too large for the model")


def _checked_examples(value: object) -> float:
    if value is None:
        raise BadWeightsError("did not say how many samples it trained on")
    try:
        examples = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        examples = math.nan
    if not 0 <= examples < 1e15:
        raise BadWeightsError(f"says it trained on {quoted(value)} samples")
    return examples


def _canonical(client: ClientId) -> tuple[bool, ClientId]:
    """Sorts numbers before names, in any order of arrival; NumPy's integers become Python's, for JSON."""
    if isinstance(client, str):
        return True, client
    if isinstance(client, int | np.integer):
        return False, int(client)
    raise ValueError(f"client id {client!r} is a {type(client).__name__}: use an int or a str")
