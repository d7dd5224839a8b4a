"""Replies that Flower itself cannot decode."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
pytest.importorskip("httpx", reason="this Flower does not use HTTP")

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

import g2uardfl
from g2uardfl.flower import G2uardFLStrategy, array_record, state_dict
from g2uardfl.flower import grid as grids
from g2uardfl.flower.grid import CarefulGrid, careful
from helpers.flower import LocalGrid, content, honest, sends
from helpers.models import odd_mlp


class Wire(LocalGrid):
    """A grid that encodes replies and decodes them again, as Flower's does over a network."""

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
    """Five lines in a ClientApp that end the server app of any strategy of Flower's own."""
    array = Array(np.zeros(3, np.float32))
    array.shape = ("three",)
    given = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"num-examples": 1})})
    given["arrays"]["0.weight"] = array
    return Message(given, reply_to=message)


def test_the_reply_really_breaks_flowers_decoder():
    reply = undecodable(Message(RecordDict(), 5, "train"))
    with pytest.raises(TypeError):
        decoded(reply)


def test_a_reply_that_cannot_be_decoded_costs_its_sender_alone_the_round():
    model, clients = odd_mlp(), honest(odd_mlp())
    grid = CarefulGrid(Wire({5: undecodable, **{c: sends(w) for c, w in clients.items()}}))
    strategy = G2uardFLStrategy()
    replies = grid.send_and_receive(strategy.configure_train(1, array_record(model), ConfigRecord(), grid), timeout=9)
    arrays, _ = strategy.aggregate_train(1, replies)
    assert strategy.verdicts[5].decision == "invalid"
    assert "cannot be decoded" in strategy.verdicts[5].reason
    wanted = g2uardfl.G2uardFL().aggregate(model, clients).weights
    assert all(np.array_equal(value, wanted[name]) for name, value in state_dict(arrays).items())


def test_replies_are_waited_for_until_the_time_is_up(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(grids.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(grids.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    wire = Wire({1: sends(odd_mlp()), 2: lambda message: None})
    messages = [Message(RecordDict(), node, "train") for node in (1, 2)]
    replies = CarefulGrid(wire).send_and_receive(messages, timeout=10)
    assert [reply.metadata.src_node_id for reply in replies] == [1]
    assert clock[0] == pytest.approx(10)
    assert wire.pulls == 1 + 4, "the node that answered is not asked again, the other one every three seconds"


def test_what_the_superlink_did_not_take_is_not_waited_for(monkeypatch):
    class Full(Wire):
        def push_messages(self, messages):
            return super().push_messages(messages)[:1]

    monkeypatch.setattr(grids.time, "sleep", lambda seconds: pytest.fail("there is nothing to wait for"))
    messages = [Message(RecordDict(), node, "train") for node in (1, 2)]
    replies = CarefulGrid(Full({1: sends(odd_mlp()), 2: lambda message: None})).send_and_receive(messages)
    assert [reply.metadata.src_node_id for reply in replies] == [1]


def test_a_lost_connection_is_not_taken_for_a_bad_reply():
    class Broken(Wire):
        def pull_messages(self, message_ids):
            raise httpx.ConnectError("the SuperLink is gone")

    with pytest.raises(httpx.ConnectError):
        CarefulGrid(Broken({1: sends(odd_mlp())})).send_and_receive([Message(RecordDict(), 1, "train")], timeout=1)


def test_only_flowers_networked_grids_are_wrapped():
    local = LocalGrid({})
    assert careful(local) is local
    for name, wrapped in (("InMemoryGrid", False), ("HttpGrid", True), ("GrpcGrid", True)):
        kind = type(name, (LocalGrid,), {"__module__": "flwr.superlink.grid"})
        assert isinstance(careful(kind({})), CarefulGrid) is wrapped


def test_everything_else_is_the_grids_own():
    wire = Wire({3: sends(odd_mlp()), 4: sends(odd_mlp())})
    wire.anything = "at all"
    grid = CarefulGrid(wire)
    assert list(grid.get_node_ids()) == [3, 4]
    assert grid.anything == "at all"
    assert grid.run is None
    message = Message(content(odd_mlp()), 3, "train")
    (number,) = grid.push_messages([message])
    assert [reply.metadata.src_node_id for reply in grid.pull_messages([number])] == [3]
