"""Any aggregation rule of g2uardfl as a Flower strategy.

The strategy is a thin shell. Sampling, messages and metrics are those of Flower's `FedAvg`; `federation/` sorts the
replies, writes the audit and saves the state; an `Aggregator` decides about the clients and builds the model.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from ..aggregators.base import AggregationResult, Aggregator, ClientId, RoundObserver, RoundReport, Verdict, model_kept
from ..core.errors import ConfigError, StateError
from ..core.layout import ModelLayout
from ..core.text import shortened
from ..federation import log
from ..federation.audit import MAX_BYTES, AuditWriter
from ..federation.barrier import Barrier, Replies
from ..federation.preflight import weaknesses
from ..federation.state import FederationState, StateFile
from .arrays import RecordWeights, encode, loaded_record, saved_record
from .grid import is_networked, tolerant
from .metrics import MetricsFn, add_round, averaged, has_metrics, robust_average
from .replies import Identity, Reply, envelope, read_reply, request
from .rules import rule_of

logger = logging.getLogger("flwr.g2uardfl")
"""Below Flower's own logger, so that its lines appear where Flower's do."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
_LONGEST_REASON = 400
"""Characters of a verdict's reason. Reasons quote names that clients chose, which can have any length."""


class AggregatorStrategy(FedAvg):
    """Any aggregation rule of g2uardfl as a Flower strategy.

    Parameters
    ----------
    aggregator
        The name of a rule (`g2uardfl list defenses`), `package.module:ClassName`, or an `Aggregator`.
    fraction_train
        The fraction of nodes that train in a round, but at least `min_train_nodes` (default: 1.0).
    fraction_evaluate
        The fraction of nodes that evaluate in a round, but at least `min_evaluate_nodes` (default: 1.0).
    min_train_nodes
        The minimum number of nodes that train in a round (default: 2).
    min_evaluate_nodes
        The minimum number of nodes that evaluate in a round (default: 2).
    min_available_nodes
        The number of connected nodes that a round waits for (default: 2).
    weighted_by_key
        The key of the number of examples in each `MetricRecord` (default: "num-examples").
    arrayrecord_key
        The key of the model in the messages to clients (default: "arrays").
    configrecord_key
        The key of the configuration in the messages to clients (default: "config").
    train_metrics_aggr_fn
        Combines the training metrics of the accepted clients (default: None, a robust weighted mean).
    evaluate_metrics_aggr_fn
        Combines the evaluation metrics (default: None, a robust weighted mean).
    min_replies
        The minimum number of usable replies that change the model. With fewer, the round counts and the model is kept
        (default: None, half of the sampled clients).
    identity
        Identifies the client of a reply by an int or a str (default: None, the node id). A node id survives a restart
        of the client only if SuperNodes authenticate.
    authenticated_nodes
        Whether SuperNodes authenticate (`flower-superlink --enable-supernode-auth`); True silences the warning about
        restarts (default: False).
    state_path
        The file to which the number of rounds, the rule's state and the model are saved after every round. A new
        strategy with the same path resumes from it; a second process gets an error (default: None, nothing is saved).
    audit_path
        The file to which every verdict and round is appended as JSON; `g2uardfl report` turns it into a page. A second
        process gets an error (default: None).
    audit_max_bytes
        The size at which the audit is renamed to `audit_path.1`, `.2`, ... and a new file begins (default: 256 MiB).
    observers
        Called with each round that the rule decided, and its outcome (default: none).
    buffers
        Shell patterns of floating-point arrays that are not parameters, such as `"codebook.*"`: they are aggregated
        like running statistics, and are not part of the updates that rules see (default: none).
    **rule_settings
        The settings of the rule (`g2uardfl show NAME`), if it is given by name.

    Attributes
    ----------
    rounds_done : int
        The number of rounds so far, across all restarts.
    rounds_kept : int
        The number of these rounds that kept the model because too few replies were usable.
    report : RoundReport
        The report of the last round.

    Examples
    --------
    >>> AggregatorStrategy("fedavg", fraction_train=0.5, min_replies=3).min_replies
    3
    """

    def __init__(
        self,
        aggregator: str | Aggregator,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
        *,
        min_replies: int | None = None,
        identity: Identity | None = None,
        authenticated_nodes: bool = False,
        state_path: str | os.PathLike[str] | None = None,
        audit_path: str | os.PathLike[str] | None = None,
        audit_max_bytes: int = MAX_BYTES,
        observers: Sequence[RoundObserver] = (),
        buffers: Sequence[str] = (),
        **rule_settings: Any,
    ) -> None:
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn or robust_average,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or robust_average,
        )
        self.aggregator = rule_of(aggregator, rule_settings, inspect.signature(AggregatorStrategy).parameters)
        self.min_replies = min_replies
        if min_replies is not None and min_replies < 1:
            raise ConfigError(f"min_replies={min_replies!r} is not allowed: it must be a whole number of at least 1")
        self.identity = identity
        self.authenticated_nodes = authenticated_nodes
        self.state_path = state_path
        self.observers = observers
        self.buffers = buffers
        self.rounds_done = 0
        self.rounds_kept = 0
        self.report = RoundReport({})
        self.current_arrays: ArrayRecord | None = None
        """The global model that the clients of this round start from."""
        self._barrier = Barrier[Message, Reply](lambda reply: read_reply(reply, self.weighted_by_key), identity)
        self._requests: Sequence[Message] = ()
        self._resumes = False
        self._state = None if state_path is None else StateFile(state_path)
        saved = None if self._state is None else self._state.load()
        if saved is not None:
            self._resume(saved, state_path)
        self._offset = self.rounds_done
        self._audit: AuditWriter | None = None
        if audit_path is not None:
            follows = None if saved is None else saved.audit
            self._audit = AuditWriter(audit_path, self.aggregator.name, audit_max_bytes, follows)
            if self._audit.lacks_lines:
                logger.warning("%s lacks lines that %s knows of: see g2uardfl report", audit_path, state_path)

    @property
    def verdicts(self) -> dict[ClientId, Verdict]:
        """The verdicts of the last round by client."""
        return self.report.verdicts

    def _resume(self, saved: FederationState, path: str | os.PathLike[str] | None) -> None:
        changed = saved.restore(self.aggregator, path)
        self.rounds_done, self.rounds_kept = saved.rounds_done, saved.rounds_kept
        self.current_arrays, self._resumes = loaded_record(saved.model), True
        logger.info("%s: resumed after round %d from %s", self.aggregator.name, self.rounds_done, path)
        if changed:
            logger.warning("%s: settings changed since the last session: %s", self.aggregator.name, ", ".join(changed))

    def summary(self) -> None:
        """Log the settings."""
        fewest = "half of the" if self.min_replies is None else self.min_replies
        logger.info("\t├──> Rule: %s, at least %s replies must be usable", self.aggregator.name, fewest)
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

        After a restart with `state_path` the saved model replaces `initial_arrays`, and round numbers continue after
        the last one in configs, metrics and calls of `evaluate_fn`. Only the returned `Result` and Flower's own log
        count from 1. To end at a fixed round, pass `num_rounds=total - strategy.rounds_done`.
        """
        for file in (self._state, self._audit):
            if file is not None:
                file.lock.require()
        self._offset = self.rounds_done
        arrays = self._first_arrays(initial_arrays)
        offset = self._offset
        numbered = None if evaluate_fn is None else lambda number, model: evaluate_fn(offset + number, model)
        result = super().start(tolerant(grid), arrays, num_rounds, timeout, train_config, evaluate_config, numbered)
        if not result.arrays:
            # Flower returns no model if no round changed it.
            result.arrays = arrays
        return result

    def _first_arrays(self, given: ArrayRecord) -> ArrayRecord:
        layout = ModelLayout.of(RecordWeights(given), self.buffers)
        saved, self._resumes = self.current_arrays if self._resumes else None, False
        if saved is None:
            return given
        if ModelLayout.of(RecordWeights(saved), self.buffers).signature() != layout.signature():
            raise StateError(f"{self.state_path} holds the state of another model: choose another state_path")
        self.aggregator.accept_layout(layout)
        logger.info("The model saved after round %d replaces the initial model", self.rounds_done)
        return saved

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as `FedAvg` does, and remember the requests and the model that they carry."""
        self.current_arrays = arrays
        self._requests = list(super().configure_train(self._offset + server_round, arrays, config, grid))
        if server_round == 1 and self._requests:
            self._preflight(arrays, is_real=is_networked(grid))
        return self._requests

    def _preflight(self, arrays: ArrayRecord, is_real: bool) -> None:
        """Log the preflight check, once the number of clients in a round is known."""
        model = RecordWeights(arrays)
        for sentence in weaknesses(
            self.aggregator,
            model,
            layout=ModelLayout.of(model, self.buffers),
            clients=len(self._requests),
            min_replies=self._fewest(len(self._requests)),
            persistent_ids=self.identity is not None or self.authenticated_nodes,
            is_real=is_real,
        ):
            logger.warning("%s preflight: %s", self.aggregator.name, sentence)

    def _fewest(self, asked: int) -> int:
        """The number of usable replies that a round needs."""
        return max(1, (asked + 1) // 2) if self.min_replies is None else self.min_replies

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies of a round; None instead of a model keeps the current one."""
        began = time.perf_counter()
        if self.current_arrays is None:
            raise StateError("call configure_train before aggregate_train: a rule needs the model that was sent")
        received = self._barrier.sort(map(request, self._requests), map(envelope, replies))
        fewest = self._fewest(len(self._requests) or len(received.clients))
        self._requests = ()
        if not received.clients:
            return None, None
        number = self._offset + server_round
        arrays, self.report = self._decided(self.current_arrays, received, number, fewest)
        self.rounds_done = number
        if arrays is None:
            self.rounds_kept += 1
        else:
            self.current_arrays = arrays
        self._save(received.nodes)
        seconds = time.perf_counter() - began
        logger.log(log.level(self.report), "%s", log.line(self.aggregator.name, number, self.report, seconds))
        return arrays, self._metrics(received, seconds)

    def _decided(
        self, model: ArrayRecord, received: Replies[Reply], number: int, fewest: int
    ) -> tuple[ArrayRecord | None, RoundReport]:
        """The next model, or None where this one is kept, and a report with a verdict on every client."""
        verdicts = {client: Verdict("invalid", reason) for client, reason in received.unusable.items()}
        if not received.usable:
            kept = model_kept("No usable reply arrived")
            return None, RoundReport(verdicts, kept.message, (kept,))
        result = self._aggregated(model, received.usable, number, fewest)
        verdicts |= {
            client: replace(verdict, reason=shortened(verdict.reason, _LONGEST_REASON))
            for client, verdict in result.verdicts.items()
        }
        report = replace(result.report, verdicts=verdicts)
        if not result.decided:
            return None, report
        return ArrayRecord({name: encode(value, model[name]) for name, value in result.weights.items()}), report

    def _aggregated(
        self, model: ArrayRecord, usable: Mapping[ClientId, Reply], number: int, fewest: int
    ) -> AggregationResult:
        return self.aggregator.aggregate(
            RecordWeights(model),
            {client: RecordWeights(reply.arrays) for client, reply in usable.items()},
            {client: reply.num_examples for client, reply in usable.items()},  # type: ignore[misc]
            min_updates=fewest,
            observers=self.observers,
            round_number=number,
            buffers=self.buffers,
        )

    def _save(self, nodes: Mapping[ClientId, int]) -> None:
        """Write the audit, then the state: a round that counts as done is in the audit."""
        try:
            if self._audit is not None:
                self._audit.write(self.rounds_done, self.report, nodes)
            if self._state is not None and self.current_arrays is not None:
                model = saved_record(self.current_arrays)
                last = None if self._audit is None else self._audit.head
                state = FederationState.of(self.aggregator, model, self.rounds_done, self.rounds_kept, last)
                self._state.save(state)
        except (OSError, StateError) as error:
            logger.error("round %d was NOT SAVED: %s", self.rounds_done, error)

    def _metrics(self, received: Replies[Reply], seconds: float) -> MetricRecord:
        """The metrics of the accepted clients, averaged, and the round's own."""
        accepted = [
            reply.content for client, reply in received.usable.items() if self.verdicts[client].decision == "accepted"
        ]
        record = averaged(accepted, self.weighted_by_key, self.train_metrics_aggr_fn) or MetricRecord()
        add_round(record, self.report, self.rounds_done, self.rounds_kept, seconds)
        return record

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `FedAvg` does, with the federation's own round number."""
        return super().configure_evaluate(self._offset + server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of the usable replies; the others are ignored and do not end the run."""
        received = list(replies)
        usable = [reply.content for reply in received if has_metrics(reply, self.weighted_by_key)]
        if len(usable) < len(received):
            ignored = len(received) - len(usable)
            logger.warning("aggregate_evaluate: ignored %d of %d replies as unusable", ignored, len(received))
        return averaged(usable, self.weighted_by_key, self.evaluate_metrics_aggr_fn)
