"""Black-box attack (Wang et al. 2020): data poisoning alone.

The malicious client mixes backdoored samples into its data, then trains and reports exactly like an honest client.

In the original all attackers share one mixed set (400 clean and 100 backdoored images for CIFAR-10). Here, as in the
G²uardFL paper, each attacker mixes the share PDR into its own data and reports its real number of samples.
"""

from __future__ import annotations

import torch

from ..tasks.base import Samples
from .base import Attack, mix_backdoor


class DataPoisoning(Attack):
    """The base of attacks that train on `pdr` backdoored and `1 - pdr` own samples."""

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """The client's data with the backdoor mixed in."""
        return mix_backdoor(self.task, clean, pdr, generator)


class BlackBox(DataPoisoning):
    """Trains on `pdr` backdoored and `1 - pdr` own samples, with the honest recipe. It has no settings.

    Notes
    -----
    Attackers control their training data alone; they train and report like honest clients.

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS 2020.
    """

    name = "black_box"
    summary = "data poisoning: own and backdoored samples, honest training"

    def __init__(self) -> None:
        super().__init__()
