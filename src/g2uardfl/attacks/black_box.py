"""Black-box attack (Wang et al. 2020): data poisoning alone.

The malicious client mixes backdoored samples into its data and then trains and reports exactly as honest clients do.

The original gives all attackers one and the same mixed set (400 clean and 100 backdoored pictures for CIFAR-10). Here,
as in the paper, each mixes the share PDR into its own data, and reports as many samples as it really has.
"""

from __future__ import annotations

import torch

from ..tasks.base import Samples
from .base import Attack, mix_backdoor


class BlackBox(Attack):
    """Trains on `pdr` backdoored and `1 - pdr` own samples, with the honest recipe."""

    name = "black_box"
    summary = "data poisoning: backdoored samples among the own, honest training"

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """The client's data with the backdoor mixed in."""
        return mix_backdoor(self.task, clean, pdr, generator)
