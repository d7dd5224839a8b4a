"""A grid that tolerates replies that Flower cannot decode: only their senders are excluded from the round.

Flower's grid fetches all replies at once and decodes them in turn. One reply that makes the decoder raise (for example
an array whose shape is a string) ends the server app. Here each reply is decoded by itself.

The SuperLink deletes replies when it hands them over, so a batch cannot be requested twice. Therefore Flower's own
`pull_messages` runs on copies of the grid, whose connection first records the answer to one request for all replies,
and then answers with one recorded reply at a time. From a grid without such a connection, each reply is requested
separately.

Flower waits for a reply that its sender has announced but not yet uploaded, for up to two hours, even beyond the
timeout. Here such a reply is requested again later, without waiting for it.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from ..core.text import failure

_POLL_INTERVAL = 3.0
"""Seconds between two requests to the SuperLink, as in Flower's grid."""
_UNDECODABLE = 0
"""Flower's error code for unknown errors; it has none for replies that cannot be decoded."""
_CONNECTIONS = ("_client", "_grpc_stub")
"""The attribute of Flower's grids that holds their connection: over HTTP, and over gRPC in earlier versions."""


def tolerant(grid: Grid) -> Grid:
    """Wrap `grid` in a `TolerantGrid` if it is one of Flower's that receives messages over a network.

    A simulation never encodes messages, and a third party's grid may have another protocol.
    """
    return TolerantGrid(grid) if is_networked(grid) and not isinstance(grid, TolerantGrid) else grid


def is_networked(grid: Grid) -> bool:
    """Whether `grid` is one of Flower's that reaches clients over a network."""
    kind = type(grid)
    known = kind.__module__.startswith("flwr.") and kind.__name__ != "InMemoryGrid"
    return known or isinstance(grid, TolerantGrid)


class TolerantGrid(Grid):
    """Delegates to `grid`, and decodes replies one by one."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Any) -> None:
        """Delegate."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run that this grid belongs to."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Delegate."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Delegate."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Any:
        """Delegate."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Delegate."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Delegate."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, and wait for all replies or the timeout; an undecodable reply becomes an error reply."""
        sent = list(messages)
        accepted = set(self._grid.push_messages(sent))
        waiting = {message.metadata.message_id: message for message in sent if message.metadata.message_id in accepted}
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        replies: list[Message] = []
        announced: dict[str, _Announced] = {}
        while waiting and time.monotonic() < end:
            for message_id, reply in self._pull(waiting, announced):
                del waiting[message_id]
                replies.append(reply)
            if waiting:
                time.sleep(min(_POLL_INTERVAL, max(0.0, end - time.monotonic())))
        return replies

    def _pull(self, waiting: Mapping[str, Message], announced: dict[str, _Announced]) -> Iterator[tuple[str, Message]]:
        """The replies that are complete, with the ids of the messages that they answer; adds others to `announced`."""
        sent = dict(waiting)
        name = next((name for name in _CONNECTIONS if hasattr(getattr(self._grid, name, None), "PullMessages")), None)
        if name is None:
            for message_id, message in sent.items():
                for reply in self._decoded(self._grid, message_id, message, _network_errors("HTTPError")):
                    yield message_id, reply
            return
        missing = [message_id for message_id in sent if message_id not in announced]
        if missing:
            recorder = _Recorder(getattr(self._grid, name))
            list(_connected(self._grid, name, recorder).pull_messages(missing))
            announced |= {number: reply for number, reply in recorder.replies() if number in sent}
        for message_id, connection in list(announced.items()):
            grid = _connected(self._grid, name, connection)
            with suppress(_IncompleteError):
                # A status says that the SuperLink rejects what this client sent; the connection is sound.
                for reply in self._decoded(grid, message_id, sent[message_id], _network_errors("TransportError")):
                    yield message_id, reply
                del announced[message_id]

    def _decoded(
        self, grid: Grid, message_id: str, message: Message, fatal: tuple[type[BaseException], ...]
    ) -> list[Message]:
        """The reply to one message, if it has arrived; an error in place of one that cannot be decoded."""
        try:
            replies = list(grid.pull_messages([message_id]))
            if any(reply.metadata.reply_to_message_id != message_id for reply in replies[:1]):
                raise ValueError("it claims to answer another message")
            return replies[:1]
        except _IncompleteError:
            raise
        except fatal:
            raise
        except Exception as error:
            # A client chose the bytes that are decoded: this can raise almost anything.
            return [Message(Error(_UNDECODABLE, f"its reply cannot be decoded: {failure(error)}"), reply_to=message)]


class _Connection:
    """A connection that delegates to another one."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _Recorder(_Connection):
    """Requests replies and records the answer, but reports to Flower that none have arrived."""

    _answer: Any = None

    def PullMessages(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        self._answer = self._connection.PullMessages(request)
        return type(self._answer)()

    def replies(self) -> Iterator[tuple[str, _Announced]]:
        """For each recorded reply the id of the message that it answers, and a connection that knows only this reply.

        That id was checked by the SuperLink: it belongs to a message to the node that sent the reply.
        """
        if self._answer is None:
            return
        for reply, tree in zip(self._answer.messages_list, self._answer.message_object_trees, strict=True):
            alone = type(self._answer)(messages_list=[reply], message_object_trees=[tree])
            yield reply.metadata.reply_to_message_id, _Announced(self._connection, alone)


class _IncompleteError(Exception):
    """The sender of a reply has not uploaded all of it."""


class _Announced(_Connection):
    """Answers a request for replies with one that was recorded, and keeps those parts of it that have arrived."""

    def __init__(self, connection: Any, answer: Any) -> None:
        super().__init__(connection)
        self._answer = answer
        self._parts: dict[str, Any] = {}

    def PullMessages(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        return self._answer

    def PullObject(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        if request.object_id not in self._parts:
            part = self._connection.PullObject(request)
            if part.object_found and not part.object_available:
                raise _IncompleteError
            self._parts[request.object_id] = part
        return self._parts[request.object_id]


def _connected(grid: Grid, name: str, connection: _Connection) -> Grid:
    """A copy of `grid` with another connection."""
    copied = copy.copy(grid)
    setattr(copied, name, connection)
    return copied


def _network_errors(of_http: str) -> tuple[type[BaseException], ...]:
    """The exceptions of a lost connection or a stopped run, in the libraries that Flower has loaded."""
    found: list[type[BaseException]] = [OSError]
    for module, name in (("httpx", of_http), ("grpc", "RpcError")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)
