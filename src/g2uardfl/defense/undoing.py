"""Taking back what attackers brought in before they were recognised.

The steps of the last rounds are kept, so that a round in which an attacker was accepted can be undone. What honest
clients did in it is lost as well, as if nobody had been accepted. The longer ago, the coarser the memory: neighbouring
blocks of rounds become one, so that a handful of blocks reach back over many rounds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

_OF_ONE_LENGTH = 2
"""How many blocks of one length there are at most."""


@dataclass(frozen=True, eq=False)
class Block:
    """How far the model moved in some rounds, one after the other; in half precision, which takes back enough."""

    rounds: tuple[int, ...]
    step: Tensor


@dataclass
class Steps:
    """The steps of the last rounds, oldest first."""

    blocks: list[Block] = field(default_factory=list)

    def add(self, number: int, step: Tensor) -> None:
        """Remember the step of round `number`; of three blocks of one length the older two become one."""
        self.blocks.append(Block((number,), step.bfloat16()))
        length = 1
        while len(alike := [block for block in self.blocks if len(block.rounds) == length]) > _OF_ONE_LENGTH:
            place = self.blocks.index(alike[0])
            self.blocks[place : place + 2] = [_joined(*self.blocks[place : place + 2])]
            length = len(self.blocks[place].rounds)

    def forget(self, before: int) -> None:
        """Forget the blocks that end before round `before`."""
        self.blocks = [block for block in self.blocks if block.rounds[-1] >= before]

    def take(self, rounds: Collection[int]) -> list[Block]:
        """The blocks with any of these rounds, which are forgotten."""
        taken = [block for block in self.blocks if not set(rounds).isdisjoint(block.rounds)]
        self.blocks = [block for block in self.blocks if block not in taken]
        return taken


def _joined(older: Block, newer: Block) -> Block:
    return Block(older.rounds + newer.rounds, torch.add(older.step.float(), newer.step.float()).bfloat16())
