"""Flower strategies that aggregate with g2uardfl: change one import, and the server has a guard.

The strategy is a shell. It keeps Flower's part (sampling, messages, metrics) as `FedAvg` does it, reads what clients
sent without trusting it, lets an `Aggregator` decide, and tells the operator what became of whom.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from .. import aggregators
from ..aggregators.base import AggregationResult, Aggregator, ClientId, Verdict
from ..core.errors import ConfigError, StateError
from ..core.layout import ModelLayout
from ..defense.guard import G2uardFL
from ..federation.audit import DECISIONS, AuditWriter
from .arrays import RecordWeights, encode
from .grid import careful
from .memory import Memory
from .replies import BadReplyError, Identity, Replies, Roll, alike, read_metrics

logger = logging.getLogger("flwr.g2uardfl")
"""Below Flower's own logger, so that its lines appear where Flower's do."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
_FEDAVG = tuple(inspect.signature(FedAvg).parameters)


class AggregatorStrategy(FedAvg):
    """Any of g2uardfl's rules as a Flower strategy.

    Parameters
    ----------
    aggregator
        A rule's name (`g2uardfl list defenses`), `package.module:ClassName`, or an `Aggregator`.
    *args, **settings
        Everything `FedAvg` takes, in its order or by name. Any other name is a setting of the rule.
    min_replies
        The fewest usable replies that may change the model. With fewer the round is kept: it counts, and the model
        stays as it was. None means `min_train_nodes`.
    identity
        Tells from a reply which client sent it (an int or a str); None takes the node's id. A node id outlasts a
        client's restart only where SuperNodes authenticate.
    authenticated_nodes
        Says that they do (`flower-superlink --enable-supernode-auth`), which silences the warning about it.
    state_path
        A file that holds rounds, memory and model after every round. A new strategy with the same path goes on from
        there.
    audit_path
        A file to which every verdict is appended, one JSON object a line; `g2uardfl report` makes a page of it.

    Examples
    --------
    >>> AggregatorStrategy("fedavg", fraction_train=0.5, min_replies=3).min_replies
    3
    """

    def __init__(
        self,
        aggregator: str | Aggregator,
        *args: Any,
        min_replies: int | None = None,
        identity: Identity | None = None,
        authenticated_nodes: bool = False,
        state_path: str | os.PathLike[str] | None = None,
        audit_path: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        own = {name: value for name, value in settings.items() if name not in _FEDAVG}
        super().__init__(*args, **{name: value for name, value in settings.items() if name in _FEDAVG})
        self.aggregator = _rule(aggregator, own)
        self.min_replies = self.min_train_nodes if min_replies is None else min_replies
        if self.min_replies < 1 and self.fraction_train > 0:
            raise ConfigError(f"min_replies={min_replies!r} is not allowed: it must be a whole number of at least 1")
        self.identity = identity
        self.authenticated_nodes = authenticated_nodes
        self.state_path = state_path
        self.rounds_done = 0
        """Rounds behind this federation, over all restarts."""
        self.rounds_kept = 0
        """How many of them left the model as it was for want of replies."""
        self.verdicts: dict[ClientId, Verdict] = {}
        """The last round's verdicts by client."""
        self.current_arrays: ArrayRecord | None = None
        """The global model that the clients of this round start from."""
        self._roll = Roll(identity)
        self._resumes = False
        if state_path is not None:
            self._resume(state_path)
        self._offset = self.rounds_done
        self._audit = None if audit_path is None else AuditWriter(audit_path, self.aggregator.name)

    def _resume(self, path: str | os.PathLike[str]) -> None:
        memory = Memory.load(path)
        if memory is None:
            return
        changed = memory.give_back(self.aggregator, path)
        self.rounds_done, self.rounds_kept = memory.rounds_done, memory.rounds_kept
        self.current_arrays, self._resumes = memory.model, True
        logger.info("%s: goes on after round %d from %s", self.aggregator.name, self.rounds_done, path)
        if changed:
            logger.warning("%s: settings differ from those before: %s", self.aggregator.name, ", ".join(changed))

    def summary(self) -> None:
        """Log the settings."""
        logger.info("\t├──> Rule: %s, from %d usable replies on", self.aggregator.name, self.min_replies)
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run `num_rounds` more rounds, as Flower's `start` does.

        After a restart with `state_path` the model that was saved takes the place of `initial_arrays`, and rounds are
        numbered on from the last one in configs, metrics and calls of `evaluate_fn`. Only the returned `Result` and
        Flower's own log count from 1. To end at a fixed round, pass `num_rounds=total - strategy.rounds_done`.
        """
        self._offset = self.rounds_done
        arrays = self._first_arrays(initial_arrays)
        if self.identity is None and not self.authenticated_nodes:
            logger.warning(
                "%s knows clients by their node ids. A client that restarts comes back as a new one with a neutral "
                "record, unless SuperNodes authenticate (flower-superlink --enable-supernode-auth). If they do, pass "
                "authenticated_nodes=True; else pass identity= to name clients yourself.",
                type(self).__name__,
            )
        offset = self._offset
        numbered = None if evaluate_fn is None else lambda number, model: evaluate_fn(offset + number, model)
        result = super().start(careful(grid), arrays, num_rounds, timeout, train_config, evaluate_config, numbered)
        if not result.arrays:
            # No round changed the model: Flower would answer with nothing at all.
            result.arrays = arrays
        return result

    def _first_arrays(self, given: ArrayRecord) -> ArrayRecord:
        layout = ModelLayout.of(RecordWeights(given))
        saved, self._resumes = self.current_arrays if self._resumes else None, False
        if saved is None:
            return given
        if ModelLayout.of(RecordWeights(saved)).signature() != layout.signature():
            raise StateError(f"{self.state_path} holds the state of another model: choose another state_path")
        logger.info("The model saved after round %d takes the place of the initial one", self.rounds_done)
        return saved

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as `FedAvg` does, and remember who was asked and what they were sent."""
        self.current_arrays = arrays
        messages = list(super().configure_train(self._offset + server_round, arrays, config, grid))
        self._roll.ask(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Judge a round's replies; None for the model where it stays as it was."""
        began = time.perf_counter()
        if self.current_arrays is None:
            raise StateError("aggregate_train came before configure_train: a rule compares with the model sent out")
        read = self._roll.sort(replies, self.weighted_by_key)
        self._roll.ask(())
        if not read.clients:
            return None, None
        arrays, verdicts, note = self._judge(self.current_arrays, read, self._offset + server_round)
        self.verdicts = verdicts
        self.rounds_done = self._offset + server_round
        if arrays is None:
            self.rounds_kept += 1
        else:
            self.current_arrays = arrays
        self._keep(read.nodes)
        seconds = time.perf_counter() - began
        level = logging.WARNING if arrays is None else logging.INFO
        logger.log(level, "%s", _line(self.aggregator.name, self.rounds_done, self.verdicts, seconds, note))
        return arrays, self._metrics(read, seconds)

    def _judge(
        self, model: ArrayRecord, read: Replies, number: int
    ) -> tuple[ArrayRecord | None, dict[ClientId, Verdict], str]:
        """The next model, or None where this one is kept, a verdict on every client, and a note about the round."""
        verdicts = {client: Verdict("invalid", reason) for client, reason in read.unusable.items()}
        if not read.usable:
            return None, verdicts, "No usable reply came, and the model was kept."
        result = self._aggregated(model, read, number)
        verdicts |= {client: _shortened(verdict) for client, verdict in result.verdicts.items()}
        arrays = None
        if result.decided:
            arrays = ArrayRecord({name: encode(value, model[name]) for name, value in result.weights.items()})
        return arrays, verdicts, result.note

    def _aggregated(self, model: ArrayRecord, read: Replies, number: int) -> AggregationResult:
        return self.aggregator.aggregate(
            RecordWeights(model),
            {client: RecordWeights(reply.arrays) for client, reply in read.usable.items()},
            {client: reply.num_examples for client, reply in read.usable.items()},  # type: ignore[misc]
            min_updates=self.min_replies,
            round_number=number,
        )

    def _keep(self, nodes: Mapping[ClientId, int]) -> None:
        """Write the audit, then the state: a round that counts as done is in the audit."""
        try:
            if self._audit is not None:
                self._audit.write(self.rounds_done, self.verdicts, nodes)
            if self.state_path is not None and self.current_arrays is not None:
                Memory(
                    self.rounds_done,
                    self.rounds_kept,
                    self.aggregator.name,
                    self.aggregator.state(),
                    self.current_arrays,
                ).save(self.state_path)
        except (OSError, StateError) as error:
            logger.error("round %d goes on UNSAVED: %s", self.rounds_done, error)

    def _metrics(self, read: Replies, seconds: float) -> MetricRecord:
        """The accepted clients' metrics, averaged, and the round's own."""
        accepted = [
            reply.content for client, reply in read.usable.items() if self.verdicts[client].decision == "accepted"
        ]
        record = self._averaged(accepted, self.train_metrics_aggr_fn) or MetricRecord()
        for decision in DECISIONS:
            name = f"g2uardfl-{decision.replace('_', '-')}"
            record[name] = sum(verdict.decision == decision for verdict in self.verdicts.values())
        record["g2uardfl-round"] = self.rounds_done
        record["g2uardfl-rounds-kept"] = self.rounds_kept
        record["g2uardfl-seconds"] = seconds
        return record

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `FedAvg` does, under the federation's own round number."""
        return super().configure_evaluate(self._offset + server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics that can be read; the others are left out and do not end the run."""
        received = list(replies)
        usable = [reply.content for reply in received if self._has_metrics(reply)]
        if len(usable) < len(received):
            logger.warning("aggregate_evaluate: left out %d of %d replies", len(received) - len(usable), len(received))
        return self._averaged(usable, self.evaluate_metrics_aggr_fn)

    def _has_metrics(self, reply: Message) -> bool:
        if reply.has_error() or not reply.has_content():
            return False
        try:
            read_metrics(list(reply.content.metric_records.values()), self.weighted_by_key)
        except BadReplyError:
            return False
        return True

    def _averaged(
        self, contents: list[RecordDict], average: Callable[[list[RecordDict], str], MetricRecord]
    ) -> MetricRecord | None:
        comparable = alike(contents)
        weights = [next(iter(content.metric_records.values()))[self.weighted_by_key] for content in comparable]
        if not any(weights):
            return None
        try:
            return average(comparable, self.weighted_by_key)
        except Exception:
            # What clients report may be anything; it must not cost the federation the round.
            logger.exception("The clients' metrics could not be aggregated")
            return None


class G2uardFLStrategy(AggregatorStrategy):
    """The G²uardFL defence as a Flower strategy.

    Parameters
    ----------
    *args, **settings
        Everything `FedAvg` takes, what `AggregatorStrategy` takes (`min_replies`, `identity`, `authenticated_nodes`,
        `state_path`, `audit_path`), and every field of `GuardConfig`.
    profile
        The guard's profile, "default" or "paper".
    seed
        Decides everything random about the guard.

    Examples
    --------
    >>> strategy = G2uardFLStrategy(fraction_train=0.5, min_replies=5, score_percentile=10.0)
    >>> strategy.fraction_train, strategy.guard.config.score_percentile
    (0.5, 10.0)
    """

    def __init__(self, *args: Any, profile: str = "default", seed: int = 0, **settings: Any) -> None:
        super().__init__("g2uardfl", *args, profile=profile, seed=seed, **settings)

    @property
    def guard(self) -> G2uardFL:
        """The guard inside, with its scores, graph and config."""
        return cast("G2uardFL", self.aggregator)


def _rule(aggregator: str | Aggregator, settings: Mapping[str, Any]) -> Aggregator:
    if not isinstance(aggregator, str):
        if settings:
            raise ConfigError(f"unknown setting {next(iter(settings))!r}: an aggregator that is made has its settings")
        return aggregator
    try:
        return aggregators.create(aggregator, **settings)
    except (ConfigError, TypeError):
        for name in settings:
            meant = difflib.get_close_matches(name, _FEDAVG, 1, 0.8)
            if meant:
                raise ConfigError(f"unknown setting {name!r}: did you mean {meant[0]}?") from None
        raise


def _shortened(verdict: Verdict, longest: int = 400) -> Verdict:
    """Reasons name arrays as clients call them: such a name may fit no line."""
    return replace(verdict, reason=_cut(verdict.reason, longest))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


def _line(rule: str, round_number: int, verdicts: Mapping[ClientId, Verdict], seconds: float, note: str) -> str:
    """What the log says about a round."""
    parts = []
    for decision in DECISIONS:
        about = {client: verdict for client, verdict in verdicts.items() if verdict.decision == decision}
        why = "" if decision == "accepted" or not about else f" ({_some(about)})"
        parts.append(f"{len(about)} {decision.replace('_', ' ')}{why}")
    return f"{rule} round {round_number}: {', '.join(parts)} [{seconds:.2f} s]{' ' if note else ''}{note}"


def _some(verdicts: Mapping[ClientId, Verdict], most: int = 2) -> str:
    shown = [f"{client}: {_cut(verdict.reason.rstrip('.'), 110)}" for client, verdict in list(verdicts.items())[:most]]
    rest = len(verdicts) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")
