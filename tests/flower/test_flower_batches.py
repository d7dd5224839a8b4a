"""Flower's own grid over HTTP with a SuperLink in this process, which deletes replies when it hands them over."""

from __future__ import annotations

import math
import uuid
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
pytest.importorskip("flwr.superlink.grid.http_grid", reason="this Flower does not use HTTP")

import httpx
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from g2uardfl.flower import grid as grids
from g2uardfl.flower.grid import TolerantGrid
from helpers.flower import content, sends
from helpers.models import odd_mlp


class SuperLink:
    """Holds replies until they are requested."""

    def __init__(self):
        self.replies, self.objects, self.requests, self.confirmed = {}, {}, Counter(), []

    def store(self, reply, answers):
        proto = message_to_proto(remove_content_from_message(reply))
        proto.metadata.message_id = reply.object_id
        proto.metadata.reply_to_message_id = answers
        self.objects |= {number: thing.deflate() for number, thing in get_all_nested_objects(reply).items()}
        self.replies[answers] = (proto, get_object_tree(reply))

    def PullMessages(self, request):  # noqa: N802
        self.requests["PullMessages"] += 1
        found = [self.replies.pop(number) for number in request.message_ids if number in self.replies]
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in found], message_object_trees=[tree for _, tree in found]
        )

    def PullObject(self, request):  # noqa: N802
        known = request.object_id in self.objects
        data = self.objects.get(request.object_id, b"")
        return PullObjectResponse(object_found=known, object_available=known, object_content=data)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


class Loopback(HttpGrid):
    """Flower's grid; what it sends goes to functions, and their replies to the SuperLink."""

    def __init__(self, nodes):
        super().__init__(token="x")
        self.nodes, self._client, self._run = nodes, SuperLink(), Run.create_empty(1)

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            reply = self.nodes[message.metadata.dst_node_id](message)
            self._client.store(reply, message.metadata.message_id)
        return [message.metadata.message_id for message in messages]


def undecodable(message):
    """A reply that ends the server app of any of Flower's own strategies."""
    array = Array(np.zeros(3, np.float32))
    array.shape = ("three",)
    given = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"num-examples": 1})})
    given["arrays"]["0.weight"] = array
    return Message(given, reply_to=message)


def forged(message):
    """A reply that claims to answer the message to another node."""
    reply = Message(content(odd_mlp()), reply_to=message)
    reply.metadata.__dict__["_reply_to_message_id"] = "another"
    return reply


def exchange(nodes):
    """The replies by node, and the SuperLink."""
    grid = Loopback(nodes)
    messages = [Message(RecordDict(), node, "train") for node in nodes]
    replies = list(TolerantGrid(grid).send_and_receive(messages, timeout=1))
    node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    assert len(replies) == len(nodes)
    return {node_of[reply.metadata.reply_to_message_id]: reply for reply in replies}, grid._client


def test_flowers_own_grid_loses_all_replies_of_a_batch_with_a_bad_one():
    grid = Loopback({1: sends(odd_mlp()), 2: undecodable})
    numbers = grid.push_messages([Message(RecordDict(), node, "train") for node in (1, 2)])
    with pytest.raises(TypeError):
        grid.pull_messages(numbers)
    assert grid.pull_messages(numbers) == []


@pytest.mark.parametrize("bad", [(), (1,), (40,), (3, 4), tuple(range(1, 41))])
def test_any_number_of_bad_replies_takes_one_request_and_loses_no_good_reply(bad):
    nodes = {node: undecodable if node in bad else sends(odd_mlp()) for node in range(1, 41)}
    replies, superlink = exchange(nodes)
    assert superlink.requests["PullMessages"] == 1
    for node, reply in replies.items():
        assert reply.has_error() == (node in bad)
        if node not in bad:
            assert reply.content == content(odd_mlp())
        else:
            assert "cannot be decoded: TypeError" in reply.error.reason
    assert len(superlink.confirmed) == len(nodes)


def test_a_reply_that_claims_to_answer_the_message_to_another_node_is_bad():
    replies, _ = exchange({1: sends(odd_mlp()), 2: forged})
    assert not replies[1].has_error()
    assert "it claims to answer another message" in replies[2].error.reason


def test_only_the_reply_whose_objects_are_missing_is_bad():
    def incomplete(message):
        return Message(content({"w": np.full(3, 7.0)}), reply_to=message)

    grid = Loopback({1: sends(odd_mlp()), 2: incomplete})
    store = grid._client.store

    def storing(reply, answers):
        before = dict(grid._client.objects)
        store(reply, answers)
        if grid._client.replies.keys() - {answers}:
            grid._client.objects = before

    grid._client.store = storing
    replies = list(TolerantGrid(grid).send_and_receive([Message(RecordDict(), n, "train") for n in (1, 2)], timeout=1))
    assert [reply.has_error() for reply in replies] == [False, True]


@pytest.mark.parametrize(("uploaded", "order"), [(7.0, [1, 3, 2]), (math.inf, [1, 3])])
def test_a_reply_that_is_announced_but_not_uploaded_is_not_waited_for(monkeypatch, uploaded, order):
    clock = [0.0]
    monkeypatch.setattr(grids.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(grids.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    slow_object, arrives = [], {}

    class Slow(SuperLink):
        def PullMessages(self, request):  # noqa: N802
            known = [number for number in request.message_ids if arrives[number] <= clock[0]]
            return super().PullMessages(PullAppMessagesRequest(message_ids=known))

        def PullObject(self, request):  # noqa: N802
            self.requests[request.object_id] += 1
            if request.object_id in slow_object and clock[0] < uploaded:
                return PullObjectResponse(object_found=True, object_available=False)
            return super().PullObject(request)

    def node(message):
        number = message.metadata.dst_node_id
        reply = Message(content({"w": np.full(3, float(number))}, loss=float(number)), reply_to=message)
        slow_object.extend([reply.content["arrays"]["w"].object_id] if number == 2 else [])
        arrives[message.metadata.message_id] = {1: 0.0, 2: 0.0, 3: 4.0}[number]
        return reply

    grid = Loopback(dict.fromkeys((1, 2, 3), node))
    grid._client = Slow()
    messages = [Message(RecordDict(), number, "train") for number in (1, 2, 3)]
    replies = list(TolerantGrid(grid).send_and_receive(messages, timeout=20))
    assert [reply.content["arrays"]["w"].numpy()[0] for reply in replies] == order
    assert clock[0] == (9 if len(order) == 3 else 20)
    (slow,) = slow_object
    rest = {count for number, count in grid._client.requests.items() if number not in ("PullMessages", slow)}
    assert rest == {1}, "what has arrived is not asked for again"


def test_a_request_that_the_superlink_rejects_for_one_reply_loses_only_this_reply():
    replies = {}

    class Strict(SuperLink):
        def PullObject(self, request):  # noqa: N802
            if request.object_id == replies[2].object_id:
                answer = httpx.Response(400, request=httpx.Request("POST", "http://superlink"))
                raise httpx.HTTPStatusError("bad object id", request=answer.request, response=answer)
            return super().PullObject(request)

    def remembered(message):
        replies[message.metadata.dst_node_id] = Message(content(odd_mlp()), reply_to=message)
        return replies[message.metadata.dst_node_id]

    grid = Loopback({1: remembered, 2: remembered})
    grid._client = Strict()
    received = TolerantGrid(grid).send_and_receive([Message(RecordDict(), n, "train") for n in (1, 2)], timeout=1)
    assert [reply.has_error() for reply in received] == [False, True]


def test_a_lost_connection_is_not_a_bad_reply():
    class Lost(SuperLink):
        def PullObject(self, request):  # noqa: N802
            raise httpx.ConnectError("the SuperLink is gone")

    grid = Loopback({1: sends(odd_mlp())})
    grid._client = Lost()
    with pytest.raises(httpx.ConnectError):
        TolerantGrid(grid).send_and_receive([Message(RecordDict(), 1, "train")], timeout=1)
