"""The barrier: which replies are usable, and the effect of invalid ones. It needs no framework."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl.core.text import quoted
from g2uardfl.federation import barrier
from g2uardfl.federation.barrier import BadReplyError, Barrier, Envelope, Request

ASKED = [Request(node, f"to {node}") for node in (1, 2, 3)]


def reply(node: int, text: str = "model", answers: str | None = None, **options) -> Envelope[str]:
    return Envelope(node, f"to {node}" if answers is None else answers, text, **options)


def read(text: str) -> str:
    if text == "nonsense":
        raise BadReplyError("sent nonsense")
    if text == "recursion":
        raise RecursionError("too\ndeep")
    return text.upper()


def sort(envelopes, identity=None, requests=ASKED):
    return Barrier(read, identity).sort(requests, envelopes)


def test_usable_replies_are_read_and_kept_by_client():
    replies = sort([reply(1, "a"), reply(2, "b"), reply(3, "c")])
    assert replies.usable == {1: "A", 2: "B", 3: "C"}
    assert not replies.unusable
    assert replies.nodes == {1: 1, 2: 2, 3: 3}
    assert replies.clients == [1, 2, 3]


@pytest.mark.parametrize(
    ("envelopes", "client", "reason"),
    [
        ([], 1, "It did not reply in time."),
        ([reply(1), reply(1)], 1, "It replied 2 times."),
        ([reply(1, answers="to 9")], 1, "It replied to the message of another round."),
        ([reply(8, answers="")], 8, "It replied without being asked."),
        ([reply(2, answers="to 1")], 1, "It replied in the name of another node."),
        ([reply(1, "nonsense")], 1, "It sent nonsense."),
        ([reply(1, "recursion")], 1, r"Its reply cannot be read (RecursionError: 'too\ndeep')."),
        (
            [reply(1, error="Traceback\n  a secret\nValueError: no\x00 data")],
            1,
            r"It failed: 'ValueError: no\x00 data'.",
        ),
        ([reply(1, error="")], 1, "It failed: ''."),
        ([reply(0, answers="to 1", error="node lost")], 1, "It failed: 'node lost'."),
    ],
)
def test_a_bad_reply_excludes_only_its_sender(envelopes, client, reason):
    replies = sort([*envelopes, reply(2, "b"), reply(3, "c")])
    assert replies.unusable == {client: reason} | ({} if client == 1 else {1: "It did not reply in time."})
    assert replies.usable == {2: "B", 3: "C"}


def test_a_late_reply_is_ignored_if_another_one_is_on_time():
    assert sort([reply(1, "old", answers="to 7"), reply(1, "a"), reply(2), reply(3)]).usable[1] == "A"


def test_a_reply_to_no_request_in_the_name_of_a_client_that_replies_or_is_silent_changes_nothing():
    replies = sort([reply(1, "a"), reply(1, "forged", answers=""), reply(2, "forged", answers=""), reply(3, "c")])
    assert replies.usable == {1: "A", 3: "C"}
    assert replies.unusable == {2: "It did not reply in time."}


def test_without_message_ids_the_senders_claim_identifies_the_node():
    replies = sort([reply(1, "a"), reply(2, "b"), reply(7)], requests=[Request(1, ""), Request(2, "")])
    assert replies.usable == {1: "A", 2: "B"}
    assert replies.unusable == {7: "It replied without being asked."}


def test_without_requests_every_reply_counts():
    assert sort([reply(4, "d")], requests=[]).usable == {4: "D"}


def test_a_client_behind_two_nodes_is_excluded_with_both():
    replies = sort([reply(1, "x"), reply(2, "x"), reply(3, "y")], identity=lambda text: text)
    assert replies.unusable == {"x": "It replied through 2 nodes."}
    assert replies.usable == {"y": "Y"}


def test_a_silent_node_keeps_the_name_of_its_last_reply():
    barrier = Barrier(read, lambda text: f"client {text}")
    barrier.sort(ASKED, [reply(1, "a"), reply(2, "b"), reply(3, "c")])
    replies = barrier.sort(ASKED, [reply(2, "b"), reply(3, "c")])
    assert replies.unusable == {"client a": "It did not reply in time."}


def test_the_longest_identities_are_usable():
    assert list(sort([reply(1)], identity=lambda text: "x" * 200, requests=ASKED[:1]).usable) == ["x" * 200]
    assert list(sort([reply(1)], identity=lambda text: 2**64 - 1, requests=ASKED[:1]).usable) == [2**64 - 1]


def test_only_so_many_names_are_remembered(monkeypatch):
    monkeypatch.setattr(barrier, "_MOST_NAMES", 2)
    sorter = Barrier(read, lambda text: f"client {text}")
    sorter.sort(ASKED, [reply(1, "a"), reply(2, "b"), reply(3, "c")])
    assert sorted(sorter.sort(ASKED, []).unusable, key=str) == [1, "client b", "client c"]
    for number in range(50):
        sorter.sort([Request(number, "")], [Envelope(number, "", "x")])
    assert len(sorter._names) == 2


def fails(text: str) -> str:
    raise KeyError("name\n" * 1000)


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (fails, "could not be identified"),
        (lambda text: [1, 2], "was identified as a list"),
        (lambda text: True, "was identified as a bool"),
        (lambda text: None, "was identified as a NoneType"),
        (lambda text: "x" * 201, "was identified by 201 characters, more than 200"),
        (lambda text: 2**64, "was identified by an integer of 65 bits"),
        (lambda text: -(10**5000), "was identified by an integer of"),
    ],
)
def test_a_client_that_cannot_be_identified_is_unusable_under_its_node_id(identity, reason):
    replies = sort([reply(1)], identity=identity, requests=ASKED[:1])
    assert reason in replies.unusable[1]
    assert len(replies.unusable[1]) < 300


@given(st.text(max_size=2000))
def test_a_clients_text_is_quoted_on_one_printable_line_of_limited_length(text):
    shown = quoted(text)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) <= 203


@given(st.permutations(range(6)))
def test_the_order_of_the_replies_does_not_matter(order):
    envelopes = [reply(1, "a"), reply(2, "b"), reply(2, "c"), reply(8), reply(3, "nonsense"), reply(5, answers="to 9")]
    shuffled = sort([envelopes[index] for index in order])
    assert shuffled == sort(envelopes)
    assert list(shuffled.unusable) == [2, 3, 5, 8]
