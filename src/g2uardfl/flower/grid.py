"""A grid that outlives what clients send: a reply that Flower cannot even decode costs its sender the round, alone.

Flower's grid fetches all replies that have come and decodes them one after the other; a single one that makes the
decoder raise (an array whose shape is a word, say) ends the server app. Here each reply is fetched by itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

_PAUSE = 3.0
"""Seconds between two looks at the SuperLink, as in Flower's grid."""
_UNDECODABLE = 0


def careful(grid: Grid) -> Grid:
    """`grid` behind a `CarefulGrid` where its messages come over a network; any other grid as it is.

    In a simulation messages are never encoded, and somebody's own grid has its own way to send and receive.
    """
    kind = type(grid)
    networked = kind.__module__.startswith("flwr.") and kind.__name__ != "InMemoryGrid"
    return CarefulGrid(grid) if networked else grid


class CarefulGrid(Grid):
    """Passes everything on to `grid`, and fetches replies one by one."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Any) -> None:
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run this grid belongs to."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Pass on."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Pass on."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Any:
        """Pass on."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, and wait for every reply or until the time is up; what cannot be decoded becomes an error reply."""
        sent = list(messages)
        taken = set(self._grid.push_messages(sent))
        waiting = {message.metadata.message_id: message for message in sent if message.metadata.message_id in taken}
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        replies: list[Message] = []
        while waiting and time.monotonic() < end:
            for number, message in list(waiting.items()):
                come = self._pull(number, message)
                replies += come
                if come:
                    del waiting[number]
            if waiting:
                time.sleep(min(_PAUSE, max(0.0, end - time.monotonic())))
        return replies

    def _pull(self, number: str, message: Message) -> list[Message]:
        try:
            return list(self._grid.pull_messages([number]))
        except _network_errors():
            raise
        except Exception as error:
            # Decoding runs on bytes that a client chose: there is no end to what it can raise.
            return [Message(Error(_UNDECODABLE, f"its reply cannot be decoded: {error!r}"), reply_to=message)]


def _network_errors() -> tuple[type[BaseException], ...]:
    """What tells of a lost connection or a stopped run, not of a client's message; the libraries are Flower's."""
    found: list[type[BaseException]] = [OSError]
    for module, name in (("httpx", "HTTPError"), ("grpc", "RpcError")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)
