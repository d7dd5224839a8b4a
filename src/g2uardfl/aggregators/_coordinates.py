"""The values of each parameter in order, for rules that look at each parameter on its own."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_FEW = 16
"""Up to this many clients, whole rows are compared and exchanged; columns of more are sorted one by one."""


def in_order(block: Tensor) -> Tensor:
    """The values in each column of a (clients x columns) block, smallest first.

    >>> in_order(torch.tensor([[3.0, 7.0], [1.0, 9.0], [2.0, 8.0]]))
    tensor([[1., 7.],
            [2., 8.],
            [3., 9.]])
    """
    if len(block) <= _FEW:
        return _exchanged(block)
    if block.device.type != "cpu":
        return block.sort(dim=0).values
    # NumPy sorts many short rows several times faster than torch.
    columns = block.numpy().T.copy()
    columns.sort(axis=1)
    return torch.from_numpy(columns).T


def _exchanged(block: Tensor) -> Tensor:
    rows, spare = list(block.clone().unbind()), torch.empty_like(block[0])
    for i, j in merge_exchange(len(rows)):
        low, high = rows[i], rows[j]
        torch.minimum(low, high, out=spare)
        torch.maximum(low, high, out=high)
        rows[i], spare = spare, low
    return torch.stack(rows)


@cache
def merge_exchange(length: int) -> tuple[tuple[int, int], ...]:
    """Which pairs to compare, and to exchange where out of order, so that any `length` values end up in order.

    Batcher's merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M): the pairs do not depend on
    the values, so that all columns go through them together.

    >>> merge_exchange(3)
    ((0, 2), (0, 1), (1, 2))
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max((length - 1).bit_length() - 1, 0)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(length - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return tuple(pairs)
