"""Hostile clients against every rule, as replies to the Flower strategy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import ArrayRecord

from g2uardfl.flower import AggregatorStrategy, array_record, state_dict
from helpers.flower import Node, log_lines, sends, train_round
from helpers.hostile import HONEST, UNUSABLE, WELL_FORMED, Hostile, Lie, always, every, messages, since
from helpers.models import batch_norm_model, flat, same
from helpers.rules import RULES, WITH_MEMORY, make

LIBRARY_ONLY = {"a huge array", "a list", "a mapping that cannot be read"}
"""The encoder would write all 4 TB of the first, and turns the others into an honest submission."""


def sendable(lies: dict[str, Lie]) -> dict[str, Lie]:
    """The lies that Flower can put into a message; the others are for the library call alone."""
    model, possible = batch_norm_model(), {}
    for name, lie in lies.items():
        if name in LIBRARY_ONLY:
            continue
        try:
            array_record(lie(model, model))
        except Exception:
            continue
        possible[name] = lie
    return possible


UNUSABLE_REPLIES = sendable(UNUSABLE)


def nodes(model, number: int, hostile: list[Hostile]) -> dict[int, Node]:
    """Nodes 1 to 8 are honest; hostile ones follow."""
    return {node: sends(sent) for node, sent in enumerate(messages(model, number, hostile).values(), start=1)}


def campaign(rule: str, hostile: list[Hostile] = [], rounds: int = 3):  # noqa: B006 - never changed
    """The last model, and the verdicts of each round."""
    model, verdicts = batch_norm_model(), []
    strategy = AggregatorStrategy(make(rule, model), min_replies=3)
    record = array_record(model)
    for number in range(1, rounds + 1):
        arrays, metrics = train_round(strategy, record, nodes(state_dict(record), number, hostile), number)
        assert isinstance(arrays, ArrayRecord)
        assert metrics is not None
        record = arrays
        verdicts.append(strategy.verdicts)
    return state_dict(record), verdicts


honest_campaign = cache(campaign)
"""The same without hostile clients."""


def test_most_kinds_can_be_sent():
    assert len(UNUSABLE_REPLIES) >= 12
    assert len(sendable(WELL_FORMED)) >= 10


@pytest.mark.parametrize(
    ("rule", "rounds"),
    [
        *(pytest.param(rule, every(2), id=f"{rule}, every second") for rule in RULES),
        *(pytest.param(rule, always, id=f"{rule}, always") for rule in WITH_MEMORY),
        *(pytest.param(rule, since(3), id=f"{rule}, from the third on") for rule in WITH_MEMORY),
    ],
)
def test_unusable_replies_do_not_affect_other_clients(rule, rounds):
    expected, honest = honest_campaign(rule)
    with log_lines() as lines:
        model, verdicts = campaign(rule, [Hostile(lie, rounds) for lie in UNUSABLE_REPLIES.values()])
    assert same(model, expected)
    for found, alone in zip(verdicts, honest, strict=True):
        assert {node: found[node] for node in alone} == alone
        assert {found[node].decision for node in found.keys() - alone.keys()} <= {"invalid"}
    for line in lines:
        assert line.isprintable()
        assert len(line) < 3000


@pytest.mark.parametrize("rule", RULES)
def test_well_formed_replies_are_judged_and_no_round_is_lost(rule):
    hostile = [Hostile(lie) for lie in sendable(WELL_FORMED).values()][:6]
    model, verdicts = campaign(rule, hostile)
    assert np.isfinite(np.asarray(flat(model))).all()
    assert [len(one) for one in verdicts] == [HONEST + len(hostile)] * 3
    assert not same(model, batch_norm_model())
