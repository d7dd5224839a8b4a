"""The metrics that clients report, averaged without trusting them, and those of the round itself."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from ..aggregators._shares import FEWEST_TO_COMPARE, capped, sample_shares
from ..aggregators.base import RoundReport
from ..core.numerics import Array
from ..core.text import failure
from ..federation.audit import DECISIONS
from .replies import read_metrics

logger = logging.getLogger("flwr.g2uardfl")

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
"""Combines the metrics of several replies, weighted by the given key."""

LEFT_OUT = "g2uardfl-metrics-left-out"
"""The clients of a round whose metrics are not finite."""
EVENTS = ("rolled_back", "eliminated", "model_kept")
"""Events in which the rule changes the model; each has a metric that is 1 in a round with the event."""
_REACH = 2.0
"""The distance from m to which a client's value is clipped, in multiples of r, as for running statistics."""


def has_metrics(reply: Message, weighted_by_key: str) -> bool:
    """Whether the reply holds one usable `MetricRecord`."""
    try:
        if reply.has_error() or not reply.has_content():
            return False
        read_metrics(list(reply.content.metric_records.values()), weighted_by_key)
    except Exception:
        # A client wrote this, so reading it can raise almost anything.
        return False
    return True


def averaged(contents: Iterable[RecordDict], weighted_by_key: str, average: MetricsFn) -> MetricRecord | None:
    """The metrics of `contents` combined by `average`; None if there is nothing to average.

    Contents with metrics that are not finite are left out and counted, and those whose metrics have other names or
    lengths than the most common ones are ignored. Sample counts are capped, whatever `average` is.
    """
    given = list(contents)
    finite = [content for content in given if _is_finite(_metrics(content))]
    if len(finite) < len(given):
        logger.warning("left out the metrics of %d of %d clients: not finite", len(given) - len(finite), len(given))
    comparable = _comparable(finite)
    counts = np.array([_metrics(content)[weighted_by_key] for content in comparable], dtype=np.float64)
    if not counts.any():
        return None
    try:
        trusted = map(_with_count, comparable, counts, capped(counts), [weighted_by_key] * len(counts))
        record = average(list(trusted), weighted_by_key)
    except Exception as error:
        # Clients may report anything, and the operator's function may fail on it: the round continues without metrics.
        logger.error("The clients' metrics could not be aggregated (%s)", failure(error))
        logger.debug("The operator's function failed", exc_info=True)
        return None
    if isinstance(record, MetricRecord):
        record[LEFT_OUT] = len(given) - len(finite)
    return record


def robust_average(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """The mean of each metric, weighted by samples, with each client's value clipped to within 2 r of m.

    m is the lower median of the clients, and r the smallest distance from m that covers a majority of them.
    Without false reports few values are that far away, and the result is close or equal to the weighted mean.
    """
    records = [_metrics(content) for content in contents]
    shares = sample_shares(np.array([record[weighted_by_key] for record in records], dtype=np.float64))
    result = MetricRecord()
    for name, first in records[0].items():
        values = np.array([record[name] for record in records], dtype=np.float64).reshape(len(records), -1)
        means = _bounded_mean(values, shares)
        if name != weighted_by_key and np.isfinite(means).all():
            result[name] = means.tolist() if isinstance(first, list) else float(means[0])
    return result


def add_round(record: MetricRecord, report: RoundReport, rounds_done: int, rounds_kept: int, seconds: float) -> None:
    """Add the number of clients with each decision, the events of the round, and the round's numbers."""
    for decision in DECISIONS:
        record[_name(decision)] = sum(verdict.decision == decision for verdict in report.verdicts.values())
    for kind in EVENTS:
        record[_name(kind)] = int(any(event.kind == kind for event in report.events))
    record["g2uardfl-round"] = rounds_done
    record["g2uardfl-rounds-kept"] = rounds_kept
    record["g2uardfl-seconds"] = seconds


def _name(word: str) -> str:
    return f"g2uardfl-{word.replace('_', '-')}"


def _bounded_mean(values: Array, shares: Array) -> Array:
    """(clients x numbers) -> one mean for each number.

    >>> float(_bounded_mean(np.array([[0.9], [0.9], [0.0]]), np.full(3, 1 / 3)).round(9)[0])
    0.9
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if len(values) >= FEWEST_TO_COMPARE:
            median = np.sort(values, axis=0)[(len(values) - 1) // 2]
            spread = np.sort(np.abs(values - median), axis=0)[len(values) // 2]
            values = np.clip(values, median - _REACH * spread, median + _REACH * spread)
        means: Array = shares @ values
    return means


def _is_finite(record: MetricRecord) -> bool:
    numbers = [number for value in record.values() for number in (value if isinstance(value, list) else [value])]
    try:
        return all(map(math.isfinite, numbers))
    except OverflowError:  # an integer beyond float64
        return False


def _with_count(content: RecordDict, reported: float, counted: float, weighted_by_key: str) -> RecordDict:
    """`content` with its sample count replaced by the capped one; the client's own record is not changed."""
    if counted == reported:
        return content
    ((name, record),) = content.metric_records.items()
    corrected = RecordDict(dict(content.items()))
    corrected[name] = MetricRecord({**record, weighted_by_key: counted})
    return corrected


def _comparable(contents: list[RecordDict]) -> list[RecordDict]:
    shapes = [_shape(_metrics(content)) for content in contents]
    counts = Counter(shapes)
    most_common = max(counts, key=lambda shape: (counts[shape], shape), default=None)
    return [content for content, shape in zip(contents, shapes, strict=True) if shape == most_common]


def _shape(record: MetricRecord) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, len(value) if isinstance(value, list) else -1) for name, value in record.items()))


def _metrics(content: RecordDict) -> MetricRecord:
    return next(iter(content.metric_records.values()))
