"""Reading a round: what clients sent becomes usable updates, or one sentence on why it is unusable.

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
from ..core.threads import in_parallel, one_thread
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
    """The whole model of each usable message, as it was checked: a client's mapping is read only once."""
    buffers: tuple[dict[str, Tensor], ...]
    """Statistics and counters of the usable messages."""
    invalid: dict[ClientId, str]
    """Client -> one sentence on why its message is unusable."""
    malicious: dict[ClientId, str]
    """Client -> one sentence on how its statistics or counters show that it lies."""
    note: str
    """A remark on clients whose statistics, counters or sample counts are suspicious."""


@dataclass(frozen=True)
class _Message:
    weights: dict[str, Tensor]
    examples: float


def read_messages(
    layout: ModelLayout,
    global_weights: Weights,
    client_weights: Mapping[ClientId, Weights],
    num_examples: Mapping[ClientId, int] | None = None,
    check: bool = True,
) -> Messages:
    """Sort the messages of a round; raises ValueError where there is none, or an id is no int or str.

    Parameters
    ----------
    check
        Whether to check all numbers now. Otherwise `Messages.updates` checks them while they are read (default: True).
    """
    if not isinstance(client_weights, Mapping) or not client_weights:
        raise ValueError("no clients: pass a mapping of at least one client id to its weights")
    global_vector = layout.flatten(global_weights)
    # On a GPU all updates are read at once, so that there is no later moment at which to check them.
    check = check or global_vector.device.type != "cpu"
    with one_thread():
        global_norm = float(torch.linalg.vector_norm(global_vector)) if check else 0.0

    def opened(client: ClientId) -> _Message | str:
        try:
            examples = 1.0 if num_examples is None else _checked_examples(num_examples.get(client))
            return _Message(layout.check(client_weights[client]), examples)
        except Exception as error:
            return _unusable(error)

    def checked(message: _Message | str) -> dict[str, Tensor] | str:
        if isinstance(message, str):
            return message
        try:
            if check:
                _check_finite(layout, message.weights, global_vector, global_norm)
            return layout.buffer_values(message.weights)
        except Exception as error:
            return _unusable(error)

    messages = {client: opened(client) for _, client in sorted(map(_canonical, client_weights))}
    # Without the check there is too little work for threads.
    each = in_parallel(checked, list(messages.values())) if check else map(checked, messages.values())
    found = dict(zip(messages, each, strict=True))
    invalid = {client: reason for client, reason in found.items() if isinstance(reason, str)}
    buffers = {client: values for client, values in found.items() if not isinstance(values, str)}
    outliers = {
        client: found
        for client, found in zip(buffers, screen(layout, list(buffers.values())), strict=True)
        if found is not None
    }
    if outliers and not check:
        # Messages that are invalid must not count among those that others are compared with.
        return read_messages(layout, global_weights, client_weights, num_examples)
    malicious = {client: f"Its {found}." for client, found in outliers.items() if found.flagged}
    outliers = {client: found for client, found in outliers.items() if not found.flagged}
    buffers = {client: values for client, values in buffers.items() if client not in malicious}
    usable = {client: it for client, it in messages.items() if client in buffers and isinstance(it, _Message)}
    weights = {client: message.weights for client, message in usable.items()}
    updates = SentUpdates(layout, global_vector, list(weights.values()), check=not check)
    reported = np.array([message.examples for message in usable.values()], dtype=np.float64)
    examples = capped(reported)
    bounded = [f"Client {client!r}: {found}; it counts only up to a limit." for client, found in outliers.items()]
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
    """Why a message is unusable. What reading it raises depends on the client, so that it can be any exception."""
    if isinstance(error, BadWeightsError):
        return f"The client {error}."
    return f"The client sent what cannot be read ({failure(error)})."


def _abbreviated(remarks: list[str]) -> str:
    rest = len(remarks) - _REMARKS
    return " ".join([*remarks[:_REMARKS], *([f"The same holds for {rest} more."] if rest > 0 else [])])


def _check_finite(layout: ModelLayout, weights: Weights, global_vector: Tensor, global_norm: float) -> None:
    """Raise `BadWeightsError` for an update that holds NaN or infinity, or is too large to be squared.

    The norm of an update is at most the sum of the two models' norms, so the update itself is computed only where
    these are very large.
    """
    largest = largest_usable(layout.dtype)
    if layout.norm(weights) + global_norm <= largest / 2:
        return
    update = torch.empty_like(global_vector)
    layout.subtract(weights, global_vector, out=update)
    if float(torch.linalg.vector_norm(update)) <= largest:
        return
    if not bool(torch.isfinite(update).all()):
        raise BadWeightsError("sent NaN, infinity or numbers too large for the model")
    norm = float(torch.linalg.vector_norm(update.double()))
    raise BadWeightsError(f"sent an update of norm {norm:.1e}, which is too large")


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
    """Sorts numbers before names, whatever order clients arrive in; NumPy's integers become Python's, for JSON."""
    if isinstance(client, str):
        return True, client
    if isinstance(client, int | np.integer):
        return False, int(client)
    raise ValueError(f"client id {client!r} is a {type(client).__name__}: use an int or a str")
