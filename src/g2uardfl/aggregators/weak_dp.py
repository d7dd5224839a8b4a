"""Weak DP (Sun et al. 2019): Gaussian noise on the averaged model, too weak for differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.settings import number, seed
from ._rounds import CountsRounds
from .base import Outcome, Round
from .ndc import clipped_mean


@dataclass(frozen=True)
class WeakDPSettings:
    """Settings of `WeakDP`; see its docstring."""

    noise: float = number(0.025, 0, 1e6)
    clip_norm: float = number(math.inf, 0, math.inf, above=True)
    seed: int | None = seed()


class WeakDP(CountsRounds):
    """G' = G + Σ n_i/n Δw_i + N(0, σ²) on every parameter.

    The noise is added once, to the averaged model. Added to each of n clients before averaging, it would be weaker by
    a factor of √n. Running statistics receive no noise.

    Parameters
    ----------
    noise
        σ: the standard deviation of the noise on every parameter (default: 0.025).
    clip_norm
        Clip every update to this norm first, as NDC does. The code of the edge-case backdoors clips; the paper
        describes the noise alone (default: inf).
    seed
        Determines the noise, together with the number of the round; None draws one (default: None).

    Notes
    -----
    The noise costs accuracy before it hides a backdoor: over a million parameters at σ = 0.025 its norm is 25, many
    times that of an update.

    References
    ----------
    Sun et al., "Can You Really Backdoor Federated Learning?", arXiv:1911.07963, 2019.

    Examples
    --------
    >>> model = {"w": np.zeros(1)}
    >>> WeakDP(noise=0).aggregate(model, {"a": {"w": np.ones(1)}, "b": {"w": np.zeros(1)}}).weights["w"]
    array([0.5])
    """

    name = "weak_dp"
    summary = "averages by samples and adds Gaussian noise to the new model"
    uses_num_examples = True
    takes_seed = True
    Settings = WeakDPSettings

    def __init__(
        self,
        *,
        noise: float = WeakDPSettings.noise,
        clip_norm: float = WeakDPSettings.clip_norm,
        seed: int | None = WeakDPSettings.seed,
    ) -> None:
        super().__init__(noise=noise, clip_norm=clip_norm, seed=seed)

    def combine(self, round_: Round) -> Outcome:
        """Clip, average by samples and add noise."""
        self.round += 1
        outcome = clipped_mean(round_, self.settings.clip_norm)
        noise = gaussian_noise(outcome.step, self.settings.noise, self._secret, self.round)
        return replace(outcome, step=outcome.step + noise)


def gaussian_noise(like: Tensor, deviation: float, seed: int, round_number: int) -> Tensor:
    """N(0, deviation²) in the shape of `like`, drawn on the CPU so that it does not depend on the device."""
    state = np.random.SeedSequence([seed, round_number]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(state) >> 1)
    return torch.randn(like.shape, dtype=like.dtype, generator=generator).to(like.device).mul_(deviation)
