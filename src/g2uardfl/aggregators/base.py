"""The interface of every aggregation rule, and the path that each round takes: read, decide, build the model.

A rule subclasses `Aggregator` and implements `combine`, which receives one `Round` of usable updates and returns an
`Outcome`. Malformed or hostile messages are rejected before `combine` runs (`reading.py`).
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core.errors import G2uardFLError
from ..core.layout import ModelLayout, Weights
from ..core.numerics import Array
from ..core.settings import NoSettings, build
from ..core.state_files import SavedState
from ..core.text import escaped
from ..core.threads import one_thread
from ..core.updates import SentUpdates, norms_and_peaks, weighted_mean, weighted_sum
from .buffers import robust_mean
from .reading import ClientId as ClientId
from .reading import read_messages
from .reports import WARNED_EVENTS as WARNED_EVENTS
from .reports import AggregationResult as AggregationResult
from .reports import Decision as Decision
from .reports import Edge as Edge
from .reports import Event as Event
from .reports import RoundReport as RoundReport
from .reports import Verdict as Verdict
from .reports import model_kept as model_kept
from .streaming import StreamedRound

logger = logging.getLogger("g2uardfl")


@dataclass(frozen=True)
class Round:
    """The usable updates of one round. Clients are in a canonical order, independent of the caller's."""

    layout: ModelLayout
    global_vector: Tensor
    """The parameters of the global model as one vector."""
    clients: tuple[ClientId, ...]
    sent: Tensor | SentUpdates
    """The updates, for rules that need only some columns at a time: `sent[:, columns]`."""
    num_examples: Array
    """The number of training samples that each client reports, capped against the median of the round; all 1 if the
    rule does not use it."""
    buffers: tuple[dict[str, Tensor], ...] = ()
    """Each client's statistics and counters."""
    global_weights: Weights = field(default_factory=dict)
    """The whole global model as it was passed in, for rules that run models."""
    client_weights: Mapping[ClientId, Weights] = field(default_factory=dict)
    """The whole model of each client as tensors, for rules that run models."""
    number: int | None = None
    """The caller's number of this round, for reports; with None, the rule counts rounds itself."""

    @property
    def updates(self) -> Tensor:
        """(clients x parameters): each client's weights minus the global model's."""
        return self.sent if isinstance(self.sent, Tensor) else self.sent.matrix

    def update(self, row: int) -> Tensor:
        """One row of `updates`."""
        return self.sent[row] if isinstance(self.sent, Tensor) else self.sent.row(row)

    @property
    def norms_and_peaks(self) -> Array:
        """(clients x 2): the norm and the largest absolute value of each update."""
        return norms_and_peaks(self.sent)

    def weighted_sum(self, coefficients: Array) -> Tensor:
        """Σ_i c_i Δw_i, with one coefficient for each client."""
        return weighted_sum(self.sent, torch.from_numpy(coefficients).to(self.global_vector))

    def weighted_mean(self, shares: Array) -> Tensor:
        """Σ_i s_i Δw_i, faster, for shares that are not negative and sum to 1."""
        return weighted_mean(self.sent, shares)


@dataclass(frozen=True)
class FlatModel:
    """A whole model: its parameters as one vector, and its statistics and counters by name."""

    vector: Tensor
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Outcome:
    """A rule's decision about a round."""

    step: Tensor
    """What to add to the flattened global model."""
    shares: Array
    """For each client its share (not negative) in the robust mean of statistics and counters."""
    verdicts: dict[ClientId, Verdict]
    note: str = ""
    """A remark about the round that is not the message of an event."""
    events: tuple[Event, ...] = ()
    restored: FlatModel | None = None
    """An earlier model that becomes the new one; `step` and `shares` are then ignored."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long the parts of the decision took."""
    observation: Any = None
    """The numbers that the decision was based on, for rules that can decide recorded rounds."""
    edges: tuple[Edge, ...] = ()
    """The strongest edges of the round's clients, for rules that build a graph of them."""


RoundObserver: TypeAlias = Callable[[Round, Outcome], None]
"""Called with each decided round and its outcome; it must not change either."""


class Aggregator(ABC):
    """A rule that turns client models into the next global model."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `g2uardfl list defenses`."""
    uses_num_examples: bool = False
    """Whether the rule trusts the sample counts that clients report; it may depend on the settings."""
    takes_seed: ClassVar[bool] = False
    """Whether the rule draws random numbers and takes a `seed`."""
    Settings: ClassVar[type] = NoSettings
    """A frozen dataclass of the rule's settings, with the fields of `settings.py`."""

    def __init__(self, **params: Any) -> None:
        self.settings: Any = build(self.Settings, params, type(self).__name__)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.configuration().items())
        return f"{type(self).__name__}({shown})"

    def configuration(self) -> dict[str, Any]:
        """All settings by name, as resolved."""
        return asdict(self.settings)

    @classmethod
    def setting_groups(cls) -> dict[str, list[type]]:
        """The dataclasses of all settings by the title of their group, for the reference."""
        return {"": [cls.Settings]}

    @one_thread()
    def aggregate(
        self,
        global_weights: Weights,
        client_weights: Mapping[ClientId, Weights],
        num_examples: Mapping[ClientId, int] | None = None,
        *,
        min_updates: int = 1,
        observers: Sequence[RoundObserver] = (),
        round_number: int | None = None,
        buffers: Sequence[str] = (),
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
            Client id -> number of training samples, for the rules that weigh by it. A number above eight times the
            median of the round counts as that much, if there are at least three clients (default: None).
        min_updates
            With fewer usable updates than this, the model is kept and the rule is not called (default: 1).
        observers
            Called with the round and its outcome once the new model is built (default: none).
        round_number
            The caller's number of this round, for reports (default: None, the rule counts rounds itself).
        buffers
            Shell patterns of floating-point arrays that are not parameters, such as `"codebook.*"`: they are aggregated
            like running statistics, and are not part of the updates that rules see (default: none).

        Returns
        -------
        AggregationResult
            `weights` in the names, kind, dtypes, shapes and device of `global_weights`, `verdicts` by client, and the
            `report` of the round.

        Raises
        ------
        ValueError
            For invalid arguments of the caller: no clients, an empty model, an id that is not an int or a str, or a
            pattern that matches no array.
        """
        began = time.perf_counter()
        layout = ModelLayout.of(global_weights, buffers)
        examples = num_examples if self.uses_num_examples else None
        round_, excluded, remark = _read_round(layout, global_weights, client_weights, examples, round_number)
        self.accept_layout(layout)
        read_at = time.perf_counter()
        outcome = self._outcome(round_, min_updates)
        decided_at = time.perf_counter()
        weights = _next_model(round_, outcome)
        built_at = time.perf_counter()

        decided = len(round_.clients) >= max(1, min_updates)
        verdicts = outcome.verdicts | excluded
        report = RoundReport(
            verdicts={client: verdicts[client] for client in client_weights},
            note=" ".join(filter(None, [*(event.message for event in outcome.events), outcome.note, remark])),
            events=outcome.events,
            seconds={
                "reading": read_at - began,
                **(outcome.seconds or {"decision": decided_at - read_at}),
                "building the model": built_at - decided_at,
            },
            edges=outcome.edges,
        )
        for event in outcome.events:
            logger.log(event.level, "%s: %s", self.name, escaped(event.message))
        for observe in observers if decided else ():
            observe(round_, outcome)
        return AggregationResult(weights, report, decided)

    def begin_round(self, global_weights: Weights, *, folder: str | None = None) -> StreamedRound:
        """A round whose clients are added one by one, as their messages arrive.

        Parameters
        ----------
        global_weights
            The model the clients start from.
        folder
            Where messages are stored until the round is finished (default: the system's folder for temporary files).

        Examples
        --------
        >>> from g2uardfl.aggregators import create
        >>> round_ = create("fedavg").begin_round({"w": np.zeros(1)})
        >>> round_.add("a", {"w": np.ones(1)}, num_examples=3)
        >>> round_.add("b", {"w": np.zeros(1)}, num_examples=1)
        >>> round_.finish().weights["w"]
        array([0.75])
        """
        return StreamedRound(self, global_weights, folder)

    def _outcome(self, round_: Round, min_updates: int) -> Outcome:
        """The rule's decision; if too few updates are usable, the rule is not called and the model is kept."""
        count = len(round_.clients)
        if count >= max(1, min_updates):
            outcome = self.combine(round_)
            if forgotten := [client for client in round_.clients if client not in outcome.verdicts]:
                raise G2uardFLError(
                    f"{self.name} gives no verdict on client {forgotten[0]!r}: combine() must return one for each"
                )
            return outcome
        why = f"{count} of {min_updates} required usable updates arrived" if count else "No client sent a usable update"
        event = model_kept(why)
        verdicts = {client: Verdict("held_out", f"Not used: {event.message}") for client in round_.clients}
        return Outcome(torch.zeros_like(round_.global_vector), np.zeros(count), verdicts, events=(event,))

    @abstractmethod
    def combine(self, round_: Round) -> Outcome:
        """Decide about one round of at least one usable update.

        Tensor operations use one thread here; `each_block` and `each_row` (`core.updates`) share work among all cores.
        """

    def accept_layout(self, layout: ModelLayout) -> None:  # noqa: B027 - only a rule with memory has to look
        """Called with the model's layout before a round is decided; a rule with memory checks that it still fits."""

    def weaknesses(self, clients: int) -> list[str]:
        """Warnings about the rule's settings in rounds of `clients` clients, one sentence each."""
        return []

    def state(self) -> SavedState:
        """What the rule remembers between rounds; empty for a rule without memory."""
        return SavedState()

    def restore(self, state: SavedState) -> None:  # noqa: B027 - a rule without memory has nothing to restore
        """Continue from what `state` returned; settings stay as they are."""


def _read_round(
    layout: ModelLayout,
    global_weights: Weights,
    client_weights: Mapping[ClientId, Weights],
    num_examples: Mapping[ClientId, int] | None,
    number: int | None,
) -> tuple[Round, dict[ClientId, Verdict], str]:
    """The round of usable updates, the verdicts on all other clients, and a remark for the note."""
    messages = read_messages(layout, global_weights, client_weights, num_examples)
    excluded = {
        **{client: Verdict("invalid", reason) for client, reason in messages.invalid.items()},
        **{client: Verdict("malicious", reason) for client, reason in messages.malicious.items()},
    }
    round_ = Round(
        layout,
        messages.global_vector,
        messages.clients,
        messages.updates,
        messages.num_examples,
        messages.buffers,
        global_weights,
        messages.weights,
        None if number is None else int(number),
    )
    return round_, excluded, messages.note


def _next_model(round_: Round, outcome: Outcome) -> dict[str, Any]:
    layout, like = round_.layout, round_.global_weights
    if outcome.restored is not None:
        return layout.rebuild(like, outcome.restored.vector.to(round_.global_vector), outcome.restored.buffers)
    flagged = [outcome.verdicts[client].decision == "malicious" for client in round_.clients]
    buffers = robust_mean(layout, like, round_.buffers, outcome.shares, ~np.array(flagged, dtype=bool))
    return layout.rebuild(like, round_.global_vector, buffers, outcome.step)
