"""A round's replies, sorted into those that can be judged and those that cannot, each with its sender and a reason.

Everything here is about messages that strangers wrote: nothing they hold raises, and no text of theirs reaches a log
unquoted or at length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from ..aggregators.base import ClientId

Identity = Callable[[Message], ClientId]
"""Tells from a reply which client sent it."""

_MOST_EXAMPLES = 1e15
_LONGEST = 200


class BadReplyError(ValueError):
    """A reply cannot be used; the message is the second half of a sentence about its sender."""


@dataclass(frozen=True)
class Reply:
    """A reply that can be judged."""

    content: RecordDict
    arrays: ArrayRecord
    metrics: MetricRecord
    num_examples: float


@dataclass
class Replies:
    """Who answered a round with what."""

    usable: dict[ClientId, Reply] = field(default_factory=dict)
    unusable: dict[ClientId, str] = field(default_factory=dict)
    """Client -> one sentence about why its reply, or the lack of one, cost it its place."""
    nodes: dict[ClientId, int] = field(default_factory=dict)
    """Client -> the node it came from."""

    @property
    def clients(self) -> list[ClientId]:
        """Everybody who was asked or answered."""
        return [*self.usable, *self.unusable]


class Roll:
    """Who was asked this round, and by what name each node is known."""

    def __init__(self, identity: Identity | None = None) -> None:
        self._identity = identity
        self._names: dict[int, ClientId] = {}
        self._asked: Sequence[Message] = ()

    def ask(self, messages: Sequence[Message]) -> None:
        """Note the messages of a new round; they get their ids when Flower sends them."""
        self._asked = messages

    def sort(self, replies: Iterable[Message], weighted_by_key: str) -> Replies:
        """Sort a round's replies.

        A node that answers twice, late or unasked, one that fails and one that does not answer, a client behind two
        nodes: each loses its own place in the round and nobody else's.
        """
        asked = {message.metadata.dst_node_id for message in self._asked}
        sent = {message.metadata.message_id: message.metadata.dst_node_id for message in self._asked}
        sent.pop("", None)
        on_time: dict[int, list[Message]] = {}
        late: set[int] = set()
        for reply in replies:
            node, timely = _sender(reply, sent)
            if timely:
                on_time.setdefault(node, []).append(reply)
            else:
                late.add(node)
        found = [(*self._read(node, answers, asked, weighted_by_key), node) for node, answers in on_time.items()]
        for node in (late | asked) - on_time.keys():
            reason = "It replied to another round's message." if node in late else "It did not reply in time."
            found.append((self._names.get(node, node), reason, node))
        return _assembled(found)

    def _read(
        self, node: int, answers: list[Message], asked: set[int], weighted_by_key: str
    ) -> tuple[ClientId, Reply | str]:
        client = self._names.get(node, node)
        try:
            if asked and node not in asked:
                raise BadReplyError("replied without having been asked")
            if len(answers) > 1:
                raise BadReplyError(f"replied {len(answers)} times")
            _check_sender(answers[0], node)
            read = _read_content(answers[0], weighted_by_key)
            if self._identity is not None:
                client = self._names[node] = _identified(self._identity, answers[0])
        except BadReplyError as error:
            return client, f"It {error}."
        return client, read


def _sender(reply: Message, sent: Mapping[str, int]) -> tuple[int, bool]:
    """The node a reply stands for, and whether it answers a message of this round.

    The message that is answered tells more than the sender's own word: it also tells whom an error stands for that
    the SuperLink wrote in the place of a node it lost. `sent` is empty where Flower gave the messages no ids.
    """
    answered, source = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
    if answered in sent:
        return sent[answered], True
    return source if isinstance(source, int) else 0, not sent or not answered


def _check_sender(reply: Message, node: int) -> None:
    if reply.has_error():
        reason = str(reply.error.reason or f"error {reply.error.code}").strip().splitlines()
        raise BadReplyError(f"failed: {quoted(reason[-1] if reason else '')}")
    if reply.metadata.src_node_id != node:
        raise BadReplyError("replied in another node's place")


def _read_content(reply: Message, weighted_by_key: str) -> Reply:
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
        raise BadReplyError(f"did not say its {weighted_by_key!r}")
    if isinstance(examples, list) or not 0 <= examples < _MOST_EXAMPLES:
        raise BadReplyError(f"says its {weighted_by_key!r} is {quoted(examples)}")
    return records[0], float(examples)


def alike(contents: Iterable[RecordDict]) -> list[RecordDict]:
    """Those contents whose metrics have the most common names and lengths, so that they can be averaged."""
    records = list(contents)
    shapes = [_shape(next(iter(record.metric_records.values()))) for record in records]
    if not shapes:
        return []
    counts = Counter(shapes)
    usual = max(counts, key=lambda shape: (counts[shape], shape))
    return [record for record, shape in zip(records, shapes, strict=True) if shape == usual]


def _shape(record: MetricRecord) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, len(value) if isinstance(value, list) else -1) for name, value in record.items()))


def quoted(text: object) -> str:
    """A stranger's text as a literal that fits into a log line."""
    literal = ascii(text)
    return literal if len(literal) <= _LONGEST else f"{literal[:_LONGEST]}..."


def _identified(identity: Identity, reply: Message) -> ClientId:
    try:
        client = identity(reply)
    except Exception as error:
        # The hook reads what the client wrote.
        raise BadReplyError(f"could not be identified ({quoted(str(error))})") from error
    if not isinstance(client, int | str) or isinstance(client, bool):
        raise BadReplyError(f"was identified as a {type(client).__name__}, not as an int or a str")
    return client


def _assembled(found: Sequence[tuple[ClientId, Reply | str, int]]) -> Replies:
    """Replies by client; a client behind several nodes loses its place, for nobody can tell which one is it."""
    claims = Counter(client for client, _, _ in found)
    result = Replies()
    for client, outcome, node in sorted(found, key=lambda item: item[2]):
        result.nodes[client] = node
        if claims[client] > 1:
            result.unusable[client] = f"It replied through {claims[client]} nodes."
        elif isinstance(outcome, str):
            result.unusable[client] = outcome
        else:
            result.usable[client] = outcome
    return result
