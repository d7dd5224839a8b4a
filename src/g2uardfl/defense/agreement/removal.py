"""How much of what attackers pull towards is removed from the model: norms and cosines of two mean updates.

`poison` is always the attackers' mean update minus the step of the accepted clients.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...core.numerics import Array, cosine

_OPPOSED_SHARE, _OPPOSED_LIMIT = 0.1, 10.0
"""Where accepted clients oppose the attackers, this share of the poison is removed in a round, up to so many usual
norms."""
_SMALL_PULLS = 3.0
"""Attackers with small updates may have so many of them removed in any case."""


def norm_of(vector: Tensor) -> float:
    """The Euclidean norm."""
    return float(torch.linalg.vector_norm(vector))


def cosine_of(one: Tensor, other: Tensor) -> float:
    """The cosine of two vectors; 0 where one of them is zero."""
    first, second = one.double(), other.double()
    product, squared, other_squared = (
        np.array(float(a @ b)) for a, b in ((first, second), (first,) * 2, (second,) * 2)
    )
    return float(cosine(product, squared, other_squared))


def mean_pairwise_cosine(poison: Tensor, accepted: Tensor, norms: Array) -> float:
    """The mean cosine between the parts of malicious updates that go beyond the `accepted` step.

    It follows from their `norms` and from the norm of their mean: the less similar vectors are, the shorter their mean.

    >>> round(mean_pairwise_cosine(torch.tensor([0.5, 0.5]), torch.zeros(2), np.array([1.0, 1.0])), 6)
    0.0
    """
    step, beyond = accepted.double(), poison.double()
    squared = float(beyond @ beyond)
    each = float(np.mean(norms**2)) - 2 * float((beyond + step) @ step) + float(step @ step)
    count = len(norms)
    return float(np.clip((count * squared / each - 1) / (count - 1), 0.0, 1.0)) if each > 0 and count > 1 else 1.0


def opposition(poison: Tensor, accepted: Tensor) -> float:
    """How far accepted clients undo what attackers do: the cosine between their steps, with its sign changed.

    Only what is in the model can be undone.

    >>> opposition(torch.tensor([2.0, 0.0]), torch.tensor([-1.0, 0.0]))
    1.0
    """
    return -cosine_of(accepted, poison + accepted)


def initial_poison(
    poison: float,
    usual: float,
    similarity: float,
    *,
    allowance: float,
    poisoned_pull: float,
    poisoned_similarity: float,
) -> float:
    """The estimated norm of the backdoor that was in the model before the guard started.

    Attackers whose backdoor is in the model have little left to learn, and each something else: their pull is small and
    their updates are dissimilar. The estimate is up to `allowance` usual norms; it is 0 for a pull of `poisoned_pull`
    usual norms or more, and for a similarity of `poisoned_similarity` or more.

    Parameters
    ----------
    poison, usual
        The norms of the poison and of a usual update.
    similarity
        `mean_pairwise_cosine` of the malicious updates.
    """
    if not usual > 0:
        return 0.0
    learnt = max(0.0, 1 - similarity / poisoned_similarity) * max(0.0, 1 - poison / usual / poisoned_pull)
    return allowance * usual * learnt


def opposed_removal(poison: float, usual: float) -> float:
    """The norm to remove where accepted clients undo the backdoor themselves.

    Their own step may be tiny, and the attackers' large: their data show how much is enough.
    """
    return min(_OPPOSED_SHARE * poison, _OPPOSED_LIMIT * usual)


def bounded_removal(
    poison: float, accepted: float, usual: float, left: float, *, share: float, bound: float, max_pull: float
) -> float:
    """The norm to remove in a round: `share` of the clipped poison, at most `bound` accepted steps.

    The larger the attackers' pull, the less of their backdoor is in the model: nothing is removed from a pull of
    `max_pull` usual norms on. In all no more is removed than what is `left`, and a few of the attackers' updates if
    these are small.

    Parameters
    ----------
    poison, accepted, usual
        The norms of the poison, of the accepted clients' step and of a usual update.
    left
        What may still be removed of the initial poison.
    """
    if not usual > 0:
        return 0.0
    allowed = left + _SMALL_PULLS * max(0.0, min(poison, usual - poison))
    wanted = share * max(0.0, 1 - poison / usual / max_pull) * min(poison, usual)
    return max(0.0, min(wanted, bound * accepted, allowed))
