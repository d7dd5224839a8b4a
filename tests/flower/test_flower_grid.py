"""Replies that Flower itself cannot decode."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
pytest.importorskip("httpx", reason="this Flower does not use HTTP")
pytest.importorskip("flwr.supercore.inflatable", reason="this Flower does not use HTTP")

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

import g2uardfl
from g2uardfl.flower import G2uardFLStrategy, array_record
from g2uardfl.flower import grid as grids
from g2uardfl.flower.grid import TolerantGrid, tolerant
from helpers.flower import LocalGrid, client_weights, content, same_bits, sending, sends, silent
from helpers.models import odd_mlp


class Wire(LocalGrid):
    """A grid that encodes and decodes replies, as Flower's does over a network."""

    def __init__(self, nodes, ready_after=0):
        super().__init__(nodes)
        self.replies, self.pulls, self.ready_after = {}, 0, ready_after

    def push_messages(self, messages):
        for message in messages:
            replies = LocalGrid.send_and_receive(self, [message])
            if replies:
                self.replies[message.metadata.message_id] = replies[0]
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        self.pulls += 1
        found = [self.replies.pop(number) for number in list(message_ids) if number in self.replies]
        return [decoded(reply) for reply in found] if self.pulls > self.ready_after else []


def decoded(reply):
    objects = {number: thing.deflate() for number, thing in get_all_nested_objects(reply).items()}
    return inflate_object_from_contents(reply.object_id, objects)


def undecodable(message):
    """A reply that ends the server app of any of Flower's own strategies."""
    array = Array(np.zeros(3, np.float32))
    array.shape = ("three",)
    given = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"num-examples": 1})})
    given["arrays"]["0.weight"] = array
    return Message(given, reply_to=message)


def test_the_reply_breaks_flowers_decoder():
    reply = undecodable(Message(RecordDict(), 5, "train"))
    with pytest.raises(TypeError):
        decoded(reply)


def test_an_undecodable_reply_excludes_only_its_sender():
    model, clients = odd_mlp(), client_weights(odd_mlp())
    grid = TolerantGrid(Wire({5: undecodable, **sending(clients)}))
    strategy = G2uardFLStrategy(seed=0)
    replies = grid.send_and_receive(strategy.configure_train(1, array_record(model), ConfigRecord(), grid), timeout=9)
    arrays, _ = strategy.aggregate_train(1, replies)
    assert strategy.verdicts[5].decision == "invalid"
    assert "cannot be decoded" in strategy.verdicts[5].reason
    assert same_bits(arrays, g2uardfl.G2uardFL(seed=0).aggregate(model, clients).weights)


def test_missing_replies_are_requested_until_the_timeout(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(grids.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(grids.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    wire = Wire({1: sends(odd_mlp()), 2: silent})
    messages = [Message(RecordDict(), node, "train") for node in (1, 2)]
    replies = TolerantGrid(wire).send_and_receive(messages, timeout=10)
    assert [reply.metadata.src_node_id for reply in replies] == [1]
    assert clock[0] == pytest.approx(10)
    assert wire.pulls == 1 + 4, "the node that replied is not polled again, the other one every three seconds"


def test_messages_that_the_superlink_rejected_are_not_waited_for(monkeypatch):
    class Full(Wire):
        def push_messages(self, messages):
            return super().push_messages(messages)[:1]

    monkeypatch.setattr(grids.time, "sleep", lambda seconds: pytest.fail("there is nothing to wait for"))
    messages = [Message(RecordDict(), node, "train") for node in (1, 2)]
    replies = TolerantGrid(Full({1: sends(odd_mlp()), 2: silent})).send_and_receive(messages)
    assert [reply.metadata.src_node_id for reply in replies] == [1]


def test_a_lost_connection_is_not_a_bad_reply():
    class Broken(Wire):
        def pull_messages(self, message_ids):
            raise httpx.ConnectError("the SuperLink is gone")

    with pytest.raises(httpx.ConnectError):
        TolerantGrid(Broken({1: sends(odd_mlp())})).send_and_receive([Message(RecordDict(), 1, "train")], timeout=1)


def test_only_networked_grids_of_flower_are_wrapped():
    local = LocalGrid({})
    assert tolerant(local) is local
    for name, wrapped in (("InMemoryGrid", False), ("HttpGrid", True), ("GrpcGrid", True)):
        kind = type(name, (LocalGrid,), {"__module__": "flwr.superlink.grid"})
        assert isinstance(tolerant(kind({})), TolerantGrid) is wrapped


def test_everything_else_is_delegated():
    wire = Wire({3: sends(odd_mlp()), 4: sends(odd_mlp())})
    wire.anything = "at all"
    grid = TolerantGrid(wire)
    assert list(grid.get_node_ids()) == [3, 4]
    assert grid.anything == "at all"
    assert grid.run is None
    message = Message(content(odd_mlp()), 3, "train")
    (number,) = grid.push_messages([message])
    assert [reply.metadata.src_node_id for reply in grid.pull_messages([number])] == [3]
