"""A small language for hostile clients: what they send, in which rounds, and how many they are.

    Hostile(UNUSABLE["NaN"], rounds=every(2), many=4)

`campaign` lets them take part in a federation of honest clients. What they send is made from an honest submission and
the global model, so that one description serves every model, every rule, the library call and the Flower strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from g2uardfl.aggregators import Aggregator
from g2uardfl.aggregators.base import AggregationResult
from g2uardfl.contract.messages import UNUSABLE as UNUSABLE
from g2uardfl.contract.messages import WELL_FORMED as WELL_FORMED
from g2uardfl.contract.messages import Lie, Model
from helpers.models import perturbed

HONEST = 8


def always(number: int) -> bool:
    """In each round."""
    return True


def every(period: int) -> Callable[[int], bool]:
    """In one of so many rounds."""
    return lambda number: number % period == 0


def first(rounds: int) -> Callable[[int], bool]:
    """In the first rounds alone."""
    return lambda number: number <= rounds


def since(start: int) -> Callable[[int], bool]:
    """From a round on."""
    return lambda number: number >= start


@dataclass(frozen=True)
class Hostile:
    """Hostile clients: what each sends, in which rounds (numbered from 1), and how many they are."""

    sends: Lie
    rounds: Callable[[int], bool] = always
    many: int = 1


def messages(model: Model, number: int, hostile: Sequence[Hostile] = ()) -> dict[int | str, Any]:
    """What arrives in a round: honest submissions, and those of the hostile clients whose round it is."""
    sent: dict[int | str, Any] = {i: perturbed(dict(model), 1000 * number + i, size=0.05) for i in range(HONEST)}
    for kind, group in enumerate(hostile):
        for place in range(group.many if group.rounds(number) else 0):
            honest = perturbed(dict(model), 10**6 + 1000 * number + 100 * kind + place, size=0.05)
            sent[f"hostile {kind}-{place}"] = group.sends(honest, model)
    return sent


def campaign(
    rule: Aggregator, model: Model, hostile: Sequence[Hostile] = (), rounds: int = 3
) -> list[AggregationResult]:
    """The results of some rounds; every round begins with the model that the one before ended with."""
    results: list[AggregationResult] = []
    for number in range(1, rounds + 1):
        results.append(rule.aggregate(model, messages(model, number, hostile), round_number=number))
        model = results[-1].weights
    return results
