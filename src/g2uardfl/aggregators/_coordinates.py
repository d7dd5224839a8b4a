"""Sorting the clients' values of each parameter, for rules that work coordinate by coordinate."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_NETWORK_CLIENTS = 16
"""Up to this many clients a sorting network compares whole rows; columns of more clients are sorted one by one. The
network is several times faster for few clients, and up to 16 the tests can check every case (zero-one principle)."""
_NETWORK_COLUMNS = 1 << 12
"""Fewer columns than this are sorted one by one on a CPU: the calls of a network would take longer than its work."""


def sorted_columns(block: Tensor) -> Tensor:
    """The values in each column of a (clients x columns) block in ascending order.

    >>> sorted_columns(torch.tensor([[3.0, 7.0], [1.0, 9.0], [2.0, 8.0]]))
    tensor([[1., 7.],
            [2., 8.],
            [3., 9.]])
    """
    on_cpu = block.device.type == "cpu"
    if len(block) <= _NETWORK_CLIENTS and (block.shape[1] >= _NETWORK_COLUMNS or not on_cpu):
        return _network_sorted(block)
    if not on_cpu:
        return block.sort(dim=0).values
    # NumPy sorts many short rows several times faster than torch.
    columns = block.numpy().T.copy()
    columns.sort(axis=1)
    return torch.from_numpy(columns).T


def _network_sorted(block: Tensor) -> Tensor:
    rows, spare = list(block.clone().unbind()), torch.empty_like(block[0])
    for i, j in merge_exchange(len(rows)):
        low, high = rows[i], rows[j]
        torch.minimum(low, high, out=spare)
        torch.maximum(low, high, out=high)
        rows[i], spare = spare, low
    return torch.stack(rows)


@cache
def merge_exchange(count: int) -> tuple[tuple[int, int], ...]:
    """The pairs of positions to compare, and to swap if out of order, to sort any `count` values.

    Batcher's merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M). The pairs do not depend on
    the values, so all columns are sorted together.

    >>> merge_exchange(3)
    ((0, 2), (0, 1), (1, 2))
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max((count - 1).bit_length() - 1, 0)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(count - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return tuple(pairs)
