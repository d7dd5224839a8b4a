"""The barrier that collects the replies of a round: which are usable, who sent each, and why the others are not.

Clients write these messages, so their content is not trusted: a bad reply costs its sender the round and raises
nothing, and a client's text appears in logs only quoted and shortened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..aggregators.base import ClientId
from ..core.text import failure, quoted

Message = TypeVar("Message")
"""A message of the framework."""
Content = TypeVar("Content")
"""The content of a usable message."""


LONGEST_IDENTITY = 200
"""Characters of a client's identity, which is kept in the state and in every line of the audit; a public key in
hexadecimal digits has 182."""
_IDENTITY_BITS = 64
"""Bits of an identity that is an int; Flower's node ids have 64."""
_MOST_NAMES = 10_000
"""Nodes whose identity is remembered, for rounds in which they do not reply; the ones heard last are kept."""


class BadReplyError(ValueError):
    """A reply cannot be used; the message completes a sentence that begins with "It"."""


@dataclass(frozen=True)
class Request:
    """A message that the server sent in this round."""

    node: int
    message_id: str
    """Empty where the framework gives messages no ids."""


@dataclass(frozen=True)
class Envelope(Generic[Message]):
    """A reply that has not been read yet, and what the framework says about it."""

    node: int
    """The node that claims to have sent it."""
    answers: str
    """The id of the request that it answers; empty where the framework does not say."""
    message: Message
    error: str | None = None
    """The failure that was reported instead of a content."""


@dataclass
class Replies(Generic[Content]):
    """The replies of a round by client."""

    usable: dict[ClientId, Content] = field(default_factory=dict)
    unusable: dict[ClientId, str] = field(default_factory=dict)
    """Client -> the reason why there is no usable reply, as one sentence."""
    nodes: dict[ClientId, int] = field(default_factory=dict)
    """Client -> the node of its reply."""

    @property
    def clients(self) -> list[ClientId]:
        """Every client that was asked or replied."""
        return [*self.usable, *self.unusable]


class Barrier(Generic[Message, Content]):
    """Sorts the replies of each round, and remembers the name of each node.

    Parameters
    ----------
    read
        Reads the content of a message; raises `BadReplyError` where it is unusable.
    identity
        Identifies the client that sent a message (default: None, the node id).
    """

    def __init__(
        self, read: Callable[[Message], Content], identity: Callable[[Message], ClientId] | None = None
    ) -> None:
        self._read = read
        self._identity = identity
        self._names: dict[int, ClientId] = {}

    def sort(self, requests: Iterable[Request], envelopes: Iterable[Envelope[Message]]) -> Replies[Content]:
        """Sort the replies of one round.

        A node is excluded if it replies twice, late, unasked or not at all, if it fails, or if it claims to be another
        node. A client that replies through several nodes is excluded. All others stay in the round.
        """
        sent = list(requests)
        asked = {request.node for request in sent}
        node_of = {request.message_id: request.node for request in sent if request.message_id}
        on_time: dict[int, list[Envelope[Message]]] = {}
        late: set[int] = set()
        for envelope in envelopes:
            # The request identifies the node better than the sender's claim: the server of the framework may have
            # reported the failure of a node that it lost, and a reply to no request may claim to be anybody's.
            node = node_of.get(envelope.answers, envelope.node)
            if envelope.answers in node_of or not node_of:
                on_time.setdefault(node, []).append(envelope)
            elif envelope.answers:
                late.add(node)
            elif node not in asked:
                on_time[node] = [envelope]
        found: list[tuple[ClientId, Content | _Unusable, int]]
        found = [(*self._opened(node, replies, asked), node) for node, replies in on_time.items()]
        for node in (late | asked) - on_time.keys():
            reason = "It replied to the message of another round." if node in late else "It did not reply in time."
            found.append((self._names.get(node, node), _Unusable(reason), node))
        return _by_client(found)

    def _opened(
        self, node: int, replies: Sequence[Envelope[Message]], asked: set[int]
    ) -> tuple[ClientId, Content | _Unusable]:
        """The client behind a node, and the content of its reply or the reason why it is unusable."""
        client = self._names.get(node, node)
        try:
            if asked and node not in asked:
                raise BadReplyError("replied without being asked")
            if len(replies) > 1:
                raise BadReplyError(f"replied {len(replies)} times")
            (reply,) = replies
            if reply.error is not None:
                raise BadReplyError(f"failed: {quoted(_last_line(reply.error))}")
            if reply.node != node:
                raise BadReplyError("replied in the name of another node")
            content = self._read(reply.message)
            if self._identity is not None:
                client = _identified(self._identity, reply.message)
                self._remember(node, client)
        except BadReplyError as error:
            return client, _Unusable(f"It {error}.")
        except Exception as error:
            # A client wrote what is read here, so that reading it can raise almost anything.
            return client, _Unusable(f"Its reply cannot be read ({failure(error)}).")
        return client, content

    def _remember(self, node: int, client: ClientId) -> None:
        self._names.pop(node, None)
        self._names[node] = client
        if len(self._names) > _MOST_NAMES:
            del self._names[next(iter(self._names))]


@dataclass(frozen=True)
class _Unusable:
    reason: str


def _last_line(error: str) -> str:
    """The last line of a failure, where a traceback names the exception."""
    return (error.strip().splitlines() or [""])[-1]


def _identified(identity: Callable[[Message], ClientId], message: Message) -> ClientId:
    try:
        client = identity(message)
    except Exception as error:
        # The function reads what the client wrote, which can make it raise anything.
        raise BadReplyError(f"could not be identified ({quoted(str(error))})") from error
    if not isinstance(client, int | str) or isinstance(client, bool):
        raise BadReplyError(f"was identified as a {type(client).__name__}, not as an int or a str")
    if isinstance(client, str) and len(client) > LONGEST_IDENTITY:
        raise BadReplyError(f"was identified by {len(client)} characters, more than {LONGEST_IDENTITY}")
    if isinstance(client, int) and client.bit_length() > _IDENTITY_BITS:
        raise BadReplyError(f"was identified by an integer of {client.bit_length()} bits")
    return client


def _by_client(found: Sequence[tuple[ClientId, Content | _Unusable, int]]) -> Replies[Content]:
    """The replies by client, without clients behind several nodes: which of the nodes is genuine is unknown."""
    claims = Counter(client for client, _, _ in found)
    result: Replies[Content] = Replies()
    for client, outcome, node in sorted(found, key=lambda item: item[2]):
        result.nodes[client] = node
        if claims[client] > 1:
            result.unusable[client] = f"It replied through {claims[client]} nodes."
        elif isinstance(outcome, _Unusable):
            result.unusable[client] = outcome.reason
        else:
            result.usable[client] = outcome
    return result
