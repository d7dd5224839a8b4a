"""Flower's messages in the form that the barrier takes, and the content of a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from ..aggregators.base import ClientId
from ..core.text import quoted
from ..federation.barrier import BadReplyError, Envelope, Request

Identity = Callable[[Message], ClientId]
"""Identifies the client that sent a reply."""

_MAX_EXAMPLES = 1e15
"""More samples than any client has; larger counts would round the weights of the other clients to 0."""


@dataclass(frozen=True)
class Reply:
    """The content of a usable reply."""

    content: RecordDict
    arrays: ArrayRecord
    metrics: MetricRecord
    num_examples: float


def request(message: Message) -> Request:
    """A message that the server sent; Flower gives it its id when it sends it."""
    return Request(message.metadata.dst_node_id, message.metadata.message_id)


def envelope(reply: Message) -> Envelope[Message]:
    """A reply and what Flower says about it."""
    node, answers = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
    error = str(reply.error.reason or f"error {reply.error.code}") if reply.has_error() else None
    return Envelope(
        node if isinstance(node, int) else 0, answers if isinstance(answers, str) else "", message=reply, error=error
    )


def read_reply(reply: Message, weighted_by_key: str) -> Reply:
    """The content of a training reply; raises `BadReplyError`."""
    if not reply.has_content() or not isinstance(reply.content, RecordDict):
        raise BadReplyError("sent nothing")
    arrays, metrics = list(reply.content.array_records.values()), list(reply.content.metric_records.values())
    if len(arrays) != 1:
        raise BadReplyError(f"sent {len(arrays)} ArrayRecords instead of one")
    return Reply(reply.content, arrays[0], *read_metrics(metrics, weighted_by_key))


def read_metrics(records: Sequence[MetricRecord], weighted_by_key: str) -> tuple[MetricRecord, float]:
    """The one `MetricRecord` of a reply and the number of examples in it; raises `BadReplyError`."""
    if len(records) != 1:
        raise BadReplyError(f"sent {len(records)} MetricRecords instead of one")
    examples = records[0].get(weighted_by_key)
    if examples is None:
        raise BadReplyError(f"sent no {weighted_by_key!r}")
    if isinstance(examples, list) or not 0 <= examples < _MAX_EXAMPLES:
        raise BadReplyError(f"sent an impossible {weighted_by_key!r}: {quoted(examples)}")
    return records[0], float(examples)
