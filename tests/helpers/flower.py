"""A Flower federation in one process: a grid whose nodes are functions, and messages that say what a test wants."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from g2uardfl.flower import array_record
from helpers.models import federation, perturbed

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    pass
else:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

Node = Callable[[Message], Message | list[Message] | None]
"""What a node makes of a message: a reply, several, or none."""


class LocalGrid(Grid):
    """Delivers each message to a function and collects what comes back."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.sent: list[Message] = []

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    run = property(lambda self: None)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies: list[Message] = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self.sent.append(message)
            answer = self.nodes[message.metadata.dst_node_id](message)
            replies += answer if isinstance(answer, list) else [] if answer is None else [answer]
        return replies


def content(weights: Mapping[str, Any] | ArrayRecord, **metrics: Any) -> RecordDict:
    """What a well-behaved client sends."""
    record = weights if isinstance(weights, ArrayRecord) else array_record(weights)
    return RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 10, **metrics})})


def sends(weights: Mapping[str, Any] | ArrayRecord, **metrics: Any) -> Node:
    """A node that answers with these weights."""
    return lambda message: Message(content(weights, **metrics), reply_to=message)


def answers(given: RecordDict) -> Node:
    """A node that answers with this content, whatever it is."""
    return lambda message: Message(given, reply_to=message)


def honest(model: Mapping[str, Any], clients: int = 8, attackers: int = 2, seed: int = 0) -> dict[int, dict[str, Any]]:
    """Weights of a small federation under ids as Flower gives them."""
    return {2**63 + 1000 + client: weights for client, weights in federation(model, clients, attackers, seed).items()}


def play(strategy: Any, arrays: ArrayRecord, nodes: Mapping[int, Node], server_round: int = 1) -> Any:
    """One round of training, as Flower's `start` does it."""
    grid = LocalGrid(nodes)
    messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
    return strategy.aggregate_train(server_round, grid.send_and_receive(messages))


def decisions(strategy: Any) -> dict[Any, str]:
    return {client: verdict.decision for client, verdict in strategy.verdicts.items()}


def arrays_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def raw(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (3,), stype: str = "numpy.ndarray") -> Array:
    return Array(dtype, shape, stype, data)


@contextmanager
def log_lines(name: str = "flwr.g2uardfl") -> Any:
    """What is logged meanwhile; Flower's logger may not reach the root that pytest listens to."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")
    logging.getLogger(name).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(handler)


__all__ = [
    "LocalGrid", "Node", "answers", "arrays_of", "content", "decisions", "honest", "log_lines", "perturbed", "play",
    "raw", "sends",
]  # fmt: skip
