"""A grid that tolerates replies that Flower cannot decode: they cost their senders the round, and nobody else.

Flower's grid fetches all replies at once and decodes them in turn. One reply that makes the decoder raise (for example
an array whose shape is a word) ends the server app. Here each reply is fetched by itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

_POLL_INTERVAL = 3.0
"""Seconds between two requests to the SuperLink, as in Flower's grid."""
_UNDECODABLE = 0
"""Flower's error code for unknown errors; it has none for replies that cannot be decoded."""


def tolerant(grid: Grid) -> Grid:
    """Wrap `grid` in a `TolerantGrid` if it is one of Flower's that receives messages over a network.

    A simulation never encodes messages, and a third party's grid may send and receive in its own way.
    """
    return TolerantGrid(grid) if is_networked(grid) and not isinstance(grid, TolerantGrid) else grid


def is_networked(grid: Grid) -> bool:
    """Whether `grid` is one of Flower's that reaches clients over a network."""
    kind = type(grid)
    known = kind.__module__.startswith("flwr.") and kind.__name__ != "InMemoryGrid"
    return known or isinstance(grid, TolerantGrid)


class TolerantGrid(Grid):
    """Delegates to `grid`, and fetches replies one by one."""

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
        while waiting and time.monotonic() < end:
            for message_id, message in list(waiting.items()):
                received = self._pull(message_id, message)
                replies += received
                if received:
                    del waiting[message_id]
            if waiting:
                time.sleep(min(_POLL_INTERVAL, max(0.0, end - time.monotonic())))
        return replies

    def _pull(self, message_id: str, message: Message) -> list[Message]:
        try:
            return list(self._grid.pull_messages([message_id]))
        except _network_errors():
            raise
        except Exception as error:
            # A client chose the bytes that are decoded: this can raise almost anything.
            return [Message(Error(_UNDECODABLE, f"its reply cannot be decoded: {error!r}"), reply_to=message)]


def _network_errors() -> tuple[type[BaseException], ...]:
    """The exceptions of a lost connection or a stopped run, in the libraries that Flower has loaded."""
    found: list[type[BaseException]] = [OSError]
    for module, name in (("httpx", "HTTPError"), ("grpc", "RpcError")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)
