"""Going back to before attackers were accepted, once they are recognised.

The steps of the last rounds are kept, so that the model can return to where it was before the first of them came in.
What honest clients have done since is lost as well, but the model is one that there has been. The longer ago, the
coarser the memory: neighbouring blocks of rounds become one, so that a handful of blocks reach back over many rounds.
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
        # Those of a resumed guard come from a file, and the model may be on a GPU.
        self.blocks = [Block(block.rounds, block.step.to(step.device)) for block in self.blocks]
        self.blocks.append(Block((number,), step.bfloat16()))
        length = 1
        while len(alike := [block for block in self.blocks if len(block.rounds) == length]) > _OF_ONE_LENGTH:
            place = self.blocks.index(alike[0])
            self.blocks[place : place + 2] = [_joined(self.blocks[place : place + 2])]
            length = len(self.blocks[place].rounds)

    def forget(self, before: int) -> None:
        """Forget the blocks that end before round `before`."""
        self.blocks = [block for block in self.blocks if block.rounds[-1] >= before]

    def take_since(self, rounds: Collection[int]) -> Block | None:
        """All that was moved since the first of these rounds that is remembered, which is forgotten."""
        wanted = set(rounds)
        first = next((place for place, block in enumerate(self.blocks) if wanted & set(block.rounds)), None)
        if first is None:
            return None
        taken, self.blocks = self.blocks[first:], self.blocks[:first]
        return _joined(taken)


def _joined(blocks: list[Block]) -> Block:
    rounds = tuple(number for block in blocks for number in block.rounds)
    steps = torch.stack([block.step for block in blocks])
    return Block(rounds, steps.sum(dim=0, dtype=torch.float32).bfloat16())
