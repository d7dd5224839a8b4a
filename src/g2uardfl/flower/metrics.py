"""The metrics that clients report, averaged without trusting them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from flwr.app import Message, MetricRecord, RecordDict

from ..federation.barrier import BadReplyError
from .replies import read_metrics

logger = logging.getLogger("flwr.g2uardfl")

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
"""Combines the metrics of several replies, weighted by the given key."""


def has_metrics(reply: Message, weighted_by_key: str) -> bool:
    """Whether the reply holds one usable `MetricRecord`."""
    if reply.has_error() or not reply.has_content():
        return False
    try:
        read_metrics(list(reply.content.metric_records.values()), weighted_by_key)
    except BadReplyError:
        return False
    return True


def averaged(contents: Iterable[RecordDict], weighted_by_key: str, average: MetricsFn) -> MetricRecord | None:
    """The metrics of `contents` combined by `average`; None where there is nothing to average.

    Contents whose metrics have other names or lengths than the most common ones are ignored.
    """
    comparable = _comparable(list(contents))
    if not any(_metrics(content)[weighted_by_key] for content in comparable):
        return None
    try:
        return average(comparable, weighted_by_key)
    except Exception:
        # Clients may report anything, and the operator's function may fail on it: the round goes on.
        logger.exception("The clients' metrics could not be aggregated")
        return None


def _comparable(contents: list[RecordDict]) -> list[RecordDict]:
    shapes = [_shape(_metrics(content)) for content in contents]
    counts = Counter(shapes)
    most_common = max(counts, key=lambda shape: (counts[shape], shape), default=None)
    return [content for content, shape in zip(contents, shapes, strict=True) if shape == most_common]


def _shape(record: MetricRecord) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, len(value) if isinstance(value, list) else -1) for name, value in record.items()))


def _metrics(content: RecordDict) -> MetricRecord:
    return next(iter(content.metric_records.values()))
