"""A Flower federation in one process: a grid whose nodes are functions, and messages with any content."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from g2uardfl.flower import array_record, state_dict
from helpers.models import federation

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    pass
else:
    # Newer versions of Flower put these into each message that a process makes.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

Node = Callable[[Message], Message | list[Message] | None]
"""Answers a message with a reply, several, or none."""


class LocalGrid(Grid):
    """Delivers each message to a function and collects the replies."""

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
    """The content of a correct reply."""
    record = weights if isinstance(weights, ArrayRecord) else array_record(weights)
    return RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 10, **metrics})})


def sends(weights: Mapping[str, Any] | ArrayRecord, **metrics: Any) -> Node:
    """A node that replies with these weights."""
    return lambda message: Message(content(weights, **metrics), reply_to=message)


def answers(given: RecordDict) -> Node:
    """A node that replies with this content, valid or not."""
    return lambda message: Message(given, reply_to=message)


def silent(message: Message) -> None:
    """A node that does not reply."""


def named(weights: Mapping[str, Any], name: str) -> Node:
    """A node that replies with these weights and says its name."""
    given = content(weights)
    given["who"] = ConfigRecord({"name": name})
    return answers(given)


def reported_name(reply: Message) -> str:
    """The identity that a `named` node claims."""
    return str(reply.content["who"]["name"])


def client_weights(
    model: Mapping[str, Any], clients: int = 8, attackers: int = 2, seed: int = 0
) -> dict[int, dict[str, Any]]:
    """The weights of a small federation by node id; ids are as large as Flower's."""
    return {2**63 + 1000 + client: weights for client, weights in federation(model, clients, attackers, seed).items()}


def sending(weights: Mapping[int, Mapping[str, Any]]) -> dict[int, Node]:
    """Nodes that reply with the weights of their clients."""
    return {client: sends(own) for client, own in weights.items()}


def train_round(strategy: Any, arrays: ArrayRecord, nodes: Mapping[int, Node], server_round: int = 1) -> Any:
    """One round of training, as in Flower's `start`."""
    grid = LocalGrid(nodes)
    messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
    return strategy.aggregate_train(server_round, grid.send_and_receive(messages))


def same_bits(record: ArrayRecord, weights: Mapping[str, Any]) -> bool:
    """Whether a record holds exactly these weights."""
    found = state_dict(record)
    expected = {name: torch.as_tensor(value) for name, value in weights.items()}
    return found.keys() == expected.keys() and all(
        found[name].dtype == value.dtype and torch.equal(found[name], value) for name, value in expected.items()
    )


def arrays_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def raw(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (3,), stype: str = "numpy.ndarray") -> Array:
    return Array(dtype, shape, stype, data)


@contextmanager
def log_lines(name: str = "flwr.g2uardfl", preflight: bool = False) -> Iterator[list[str]]:
    """The lines that are logged in this context, those of the preflight only on request.

    Flower's logger does not always reach the root logger of pytest.
    """
    lines: list[str] = []

    def keep(record: logging.LogRecord) -> None:
        line = f"{record.levelname} {record.getMessage()}"
        if preflight or " preflight: " not in line:
            lines.append(line)

    handler = logging.Handler(logging.INFO)
    handler.emit = keep  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(handler)
