"""What every server-side rule has in common: reading a round, refusing nonsense, saying what was decided.

A rule subclasses `Aggregator` and writes `combine`, which sees one `Round` of usable updates and answers with an
`Outcome`. Everything a hostile or broken client can send is dealt with here, once, before `combine` runs.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .numerics import Array, in_parallel, one_thread
from .settings import NoSettings, build
from .state_files import SavedState
from .updates import DoubtfulUpdateError, SentUpdates, weighted_mean, weighted_sum
from .weights import BadWeightsError, ModelLayout, Weights, largest_usable

logger = logging.getLogger("g2uardfl")

ClientId: TypeAlias = int | str
Decision: TypeAlias = Literal["accepted", "held_out", "malicious", "invalid"]


@dataclass(frozen=True)
class Verdict:
    """What was decided about one client in one round, and why.

    `decision` is "accepted", "held_out" (not used this time, nothing held against it), "malicious" (taken for an
    attacker) or "invalid" (its message could not be used at all).
    """

    decision: Decision
    reason: str
    """One plain sentence."""
    benign_score: float | None = None
    """The client's standing after this round, for rules that keep one."""
    cluster: int | None = None
    """The cluster it was assigned to this round."""
    distance: float | None = None
    """How far it lies from its cluster's centre."""
    weight: float | None = None
    """The weight its update carries in the new model, for rules that weigh clients."""

    @property
    def refused(self) -> bool:
        """Whether the client's update was kept out because of what it looked like."""
        return self.decision in ("malicious", "held_out")


@dataclass(frozen=True)
class AggregationResult:
    """The new global model, a verdict on every client that was named, and a sentence about the round."""

    weights: dict[str, Any]
    verdicts: dict[ClientId, Verdict]
    note: str = ""


@dataclass(frozen=True)
class Round:
    """The usable updates of one round. Clients are in a canonical order, whatever order they came in."""

    layout: ModelLayout
    global_vector: Tensor
    clients: tuple[ClientId, ...]
    sent: Tensor | SentUpdates
    """`updates` for rules that need only some columns at a time: `sent[:, columns]`."""
    num_examples: Array
    """How many samples each client says it trained on; ones where nobody asked."""

    @property
    def updates(self) -> Tensor:
        """(clients x parameters): each client's weights minus the global model's."""
        return self.sent if isinstance(self.sent, Tensor) else self.sent.matrix

    def update(self, row: int) -> Tensor:
        """One row of `updates`."""
        return self.sent[row] if isinstance(self.sent, Tensor) else self.sent.row(row)

    def weighted_sum(self, coefficients: Array) -> Tensor:
        """Σ_i c_i Δw_i, with one coefficient for each client."""
        return weighted_sum(self.sent, torch.from_numpy(coefficients).to(self.global_vector))

    def weighted_mean(self, shares: Array) -> Tensor:
        """Σ_i s_i Δw_i, faster, for shares that are not negative and sum to 1."""
        return weighted_mean(self.sent, shares)


@dataclass(frozen=True)
class Outcome:
    """A rule's answer to a round."""

    step: Tensor
    """What to add to the flattened global model."""
    shares: Array
    """For each client its share (not negative) in the average of running statistics and counters."""
    verdicts: dict[ClientId, Verdict]
    note: str = ""
    step_is_spare: bool = False
    """Whether nobody needs `step` any more, so that the new model may take its memory."""


class Aggregator(ABC):
    """A rule that turns client models into the next global model."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `g2uardfl list defenses`."""
    uses_num_examples: bool = False
    """Whether the rule trusts the sample counts that clients report; it may depend on the settings."""
    checked_on_the_way: ClassVar[bool] = False
    """Whether `combine` reads all of `round_.sent` in blocks before it changes anything of its own. Numbers are then
    checked as they are read, and not in a pass before."""
    takes_seed: ClassVar[bool] = False
    """Whether the rule draws random numbers and takes a `seed`."""
    Settings: ClassVar[type] = NoSettings
    """A frozen dataclass of the rule's settings, with the fields of `settings.py`."""

    def __init__(self, **params: Any) -> None:
        self.settings: Any = build(self.Settings, params)

    def aggregate(
        self,
        global_weights: Weights,
        client_weights: Mapping[ClientId, Weights],
        num_examples: Mapping[ClientId, int] | None = None,
    ) -> AggregationResult:
        """Combine the clients' models into the next global model.

        Parameters
        ----------
        global_weights
            The model the clients started from: an ordered mapping name -> NumPy array or torch tensor.
        client_weights
            Client id (an int or a str) -> a mapping like `global_weights`. A client that sends anything else is
            "invalid" in the verdicts and does not disturb the others.
        num_examples
            Client id -> number of training samples, for the rules that weigh by it.

        Returns
        -------
        AggregationResult
            `weights` in the names, kind, dtypes, shapes and device of `global_weights`, and `verdicts` by client.

        Raises
        ------
        ValueError
            For what the caller controls: no clients at all, an empty model, an id that is no int or str.
        """
        layout = ModelLayout.of(global_weights)
        self.accept_layout(layout)
        examples = num_examples if self.uses_num_examples else None
        if self.checked_on_the_way:
            with suppress(DoubtfulUpdateError):
                return self._aggregate(layout, global_weights, client_weights, examples, check=False)
        return self._aggregate(layout, global_weights, client_weights, examples, check=True)

    def _aggregate(
        self,
        layout: ModelLayout,
        global_weights: Weights,
        client_weights: Mapping[ClientId, Weights],
        num_examples: Mapping[ClientId, int] | None,
        check: bool,
    ) -> AggregationResult:
        round_, buffers, invalid = _read_round(layout, global_weights, client_weights, num_examples, check)
        if not round_.clients:
            note = "No client sent a usable update: the global model was kept."
            logger.warning(note)
            kept = layout.rebuild(global_weights, round_.global_vector, {})
            return AggregationResult(kept, _in_callers_order(client_weights, invalid), note)
        outcome = self.combine(round_)
        averaged = _average_buffers(buffers, outcome.shares)
        weights = layout.rebuild(global_weights, round_.global_vector, averaged, outcome.step, outcome.step_is_spare)
        return AggregationResult(
            weights, _in_callers_order(client_weights, {**outcome.verdicts, **invalid}), outcome.note
        )

    @abstractmethod
    def combine(self, round_: Round) -> Outcome:
        """Decide about one round of at least one usable update."""

    def accept_layout(self, layout: ModelLayout) -> None:  # noqa: B027 - only a rule with memory has to look
        """Called with the model's layout before a round is read; a rule with memory checks that it still fits."""

    def state(self) -> SavedState:
        """What the rule remembers between rounds; one without memory remembers nothing."""
        return SavedState()

    def restore(self, state: SavedState) -> None:  # noqa: B027 - a rule without memory has nothing to restore
        """Go on from what `state` returned."""


@dataclass(frozen=True)
class _Message:
    """What a client sent."""

    weights: dict[str, Tensor]
    examples: float


def _read_round(
    layout: ModelLayout,
    global_weights: Weights,
    client_weights: Mapping[ClientId, Weights],
    num_examples: Mapping[ClientId, int] | None,
    check: bool = True,
) -> tuple[Round, list[dict[str, Tensor]], dict[ClientId, Verdict]]:
    if not isinstance(client_weights, Mapping) or not client_weights:
        raise ValueError("no clients: pass a mapping of at least one client id to its weights")
    global_vector = layout.flatten(global_weights)
    # On a GPU all updates are read at once, so that there is no way on which to check them.
    check = check or global_vector.device.type != "cpu"
    with one_thread():
        global_norm = float(torch.linalg.vector_norm(global_vector)) if check else 0.0

    def opened(client: ClientId) -> _Message | Verdict:
        try:
            examples = 1.0 if num_examples is None else _checked_examples(num_examples.get(client))
            return _Message(layout.check(client_weights[client]), examples)
        except BadWeightsError as error:
            return _invalid(error)

    def checked(message: _Message | Verdict) -> dict[str, Tensor] | Verdict:
        if isinstance(message, Verdict):
            return message
        try:
            if check:
                _check_finite(layout, message.weights, global_vector, global_norm)
            return layout.buffer_values(message.weights)
        except BadWeightsError as error:
            return _invalid(error)

    messages = {client: opened(client) for client in sorted(client_weights, key=_canonical)}
    # Without the numbers there is too little to do for threads.
    each = in_parallel(checked, list(messages.values())) if check else map(checked, messages.values())
    found = dict(zip(messages, each, strict=True))
    invalid = {client: verdict for client, verdict in found.items() if isinstance(verdict, Verdict)}
    buffers = {client: values for client, values in found.items() if not isinstance(values, Verdict)}
    usable = [message for client, message in messages.items() if client in buffers and isinstance(message, _Message)]
    updates = SentUpdates(layout, global_vector, [message.weights for message in usable], check=not check)
    examples = np.array([message.examples for message in usable], dtype=np.float64)
    return Round(layout, global_vector, tuple(buffers), updates, examples), list(buffers.values()), invalid


def _invalid(error: BadWeightsError) -> Verdict:
    return Verdict("invalid", f"The client {error}.")


def _check_finite(layout: ModelLayout, weights: Weights, global_vector: Tensor, global_norm: float) -> None:
    """Raise `BadWeightsError` for an update that holds NaN or infinity, or is too long to be squared.

    No update is longer than the two models together, so that it has to be computed only where these are very long.
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
    raise BadWeightsError(f"sent an update of norm {norm:.1e}, which is beyond all reason")


def _checked_examples(value: object) -> float:
    if value is None:
        raise BadWeightsError("did not say how many samples it trained on")
    try:
        examples = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        examples = math.nan
    if not 0 <= examples < 1e15:
        raise BadWeightsError(f"says it trained on {value!r} samples")
    return examples


def _average_buffers(buffers: list[dict[str, Tensor]], shares: Array) -> dict[str, Tensor]:
    total = float(shares.sum())
    if not buffers or not buffers[0] or not total > 0:
        return {}
    weights = torch.from_numpy(shares / total)
    return {
        name: torch.tensordot(weights, torch.stack([values[name] for values in buffers]), dims=1) for name in buffers[0]
    }


def _canonical(client: ClientId) -> tuple[bool, ClientId]:
    """Sort key that depends on nothing but the id: numbers first, then names."""
    if isinstance(client, str):
        return True, client
    if isinstance(client, int | np.integer):
        return False, int(client)
    raise ValueError(f"client id {client!r} is a {type(client).__name__}: use an int or a str")


def _in_callers_order(
    client_weights: Mapping[ClientId, Weights], verdicts: Mapping[ClientId, Verdict]
) -> dict[ClientId, Verdict]:
    return {client: verdicts[client] for client in client_weights}
