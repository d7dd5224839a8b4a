"""Weak DP (Sun et al. 2019): Gaussian noise on the averaged model, too little for privacy but not for a backdoor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.settings import number
from ._rounds import CountsRounds
from .base import Outcome, Round
from .ndc import clipped_mean


@dataclass(frozen=True)
class WeakDPSettings:
    """The settings of Weak DP."""

    noise: float = number(0.025, 0, 1e6)
    """σ: the deviation of the noise on every parameter."""
    clip_norm: float = number(math.inf, 0, math.inf, above=True)
    """Clip every update to this norm first, as NDC does; infinity, the default, clips nothing."""
    seed: int = number(0, 0, 2**63 - 1)
    """Decides the noise, together with the number of the round."""


class WeakDP(CountsRounds):
    """G' = G + Σ n_i/n Δw_i + N(0, σ²) on every parameter.

    The noise is added once, to the averaged model, not to each client's before averaging, which would make it weaker
    by the root of their number; running statistics get none. The edge-case backdoors' code clips updates first; the
    paper speaks of the noise alone, so clipping is off unless `clip_norm` is set.

    >>> model = {"w": np.zeros(1)}
    >>> WeakDP(noise=0).aggregate(model, {"a": {"w": np.ones(1)}, "b": {"w": np.zeros(1)}}).weights["w"]
    array([0.5])
    """

    name = "weak_dp"
    summary = "averages by samples and adds Gaussian noise to the new model"
    uses_num_examples = True
    takes_seed = True
    Settings = WeakDPSettings

    def combine(self, round_: Round) -> Outcome:
        """Average, clipped where asked for, and add noise."""
        self.round += 1
        outcome = clipped_mean(round_, self.settings.clip_norm)
        noise = gaussian_noise(outcome.step, self.settings.noise, self.settings.seed, self.round)
        return replace(outcome, step=outcome.step + noise)


def gaussian_noise(like: Tensor, deviation: float, seed: int, round_number: int) -> Tensor:
    """N(0, deviation²) in the shape of `like`, drawn on the CPU so that every device gets the same."""
    state = np.random.SeedSequence([seed, round_number]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(state) >> 1)
    return torch.randn(like.shape, dtype=like.dtype, generator=generator).to(like.device).mul_(deviation)
