"""Preflight check before the first round: one sentence for each condition that weakens the protection."""

from __future__ import annotations

import math

import torch

from ..aggregators.base import Aggregator
from ..core.layout import ModelLayout, Weights, as_tensor

_MIN_ENTRIES = 5000
"""Smaller matrices are ignored: their kurtosis is too noisy."""
_KURTOSES = 1.8, 3.0
"""The kurtosis of a uniform and of a normal distribution, from which untrained weights are drawn."""
_TOLERANCE, _STANDARD_ERRORS = 0.05, 4.0
"""How far, and by how many standard errors more, the kurtosis of untrained weights may differ from these. Training
makes the tails heavier: 6 to 7 for the matrices of the `digits` model after 30 epochs, 1.8 before."""


def weaknesses(
    rule: Aggregator,
    model: Weights,
    *,
    layout: ModelLayout,
    clients: int,
    min_replies: int,
    persistent_ids: bool,
    is_real: bool = False,
) -> list[str]:
    """One sentence for each condition under which the rule protects less than it could.

    Parameters
    ----------
    rule
        The aggregation rule.
    model
        The model before the first round.
    layout
        Its layout, which says what is treated as a buffer.
    clients
        How many clients are asked in a round.
    min_replies
        How many usable replies a round needs.
    persistent_ids
        Whether a client keeps its id when it restarts.
    is_real
        Whether clients are reached over a network, and not simulated (default: False).
    """
    found = rule.weaknesses(clients)
    if not persistent_ids:
        found.append(
            "Clients are identified by node id, and nodes may not authenticate: a client that restarts gets a new id "
            "and a neutral reputation. Use flower-superlink --enable-supernode-auth and authenticated_nodes=True, or "
            "identity=."
        )
    if is_real and rule.takes_seed and rule.configuration().get("seed") is not None:
        found.append(
            "A fixed seed is set: a client that knows it can hide its attack from the guard. Leave it out, and begin "
            "with a new state_path."
        )
    if min_replies >= clients:
        found.append(
            f"min_replies={min_replies} is the number of clients in a round: one failing client stops the training. "
            "Use about half."
        )
    if is_untrained(model):
        found.append(
            "The model looks untrained: in the first rounds all updates are similar, which hides attackers. Train it "
            "on trusted data first if you can."
        )
    if layout.buffers:
        names = [entry.name for entry in layout.buffers]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        found.append(f"{len(names)} arrays are buffers, which are bounded but not compared as parameters are: {shown}.")
    return found


def is_untrained(model: Weights) -> bool:
    """Whether all large matrices of the model look as if they had just been drawn at random, or are zero.

    >>> torch.manual_seed(0) and is_untrained(torch.nn.Linear(100, 100).state_dict())
    True
    """
    matrices = [as_tensor(value) for value in model.values()]
    large = [it for it in matrices if it.is_floating_point() and it.dim() > 1 and it.numel() >= _MIN_ENTRIES]
    return bool(large) and all(_is_drawn(matrix.flatten().double()) for matrix in large)


def _is_drawn(values: torch.Tensor) -> bool:
    variance = float((values**2).mean())
    if not variance:
        return True
    kurtosis = float((values**4).mean()) / variance**2
    allowed = _TOLERANCE + _STANDARD_ERRORS * math.sqrt(24 / len(values))
    return min(abs(kurtosis - usual) for usual in _KURTOSES) < allowed
