"""MNIST with the ARDIS backdoor: handwritten sevens of Swedish church records are classified as ones.

The task is that of Wang et al. (2020), which the paper uses too. ARDIS sevens are edge cases: the training data has no
sevens in such a handwriting, so no benign sample contradicts the attacker.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..data import load_arrays
from .base import Pixels, Samples, Task, TrainingDefaults
from .models import LeNet, SimpleNet

MEAN, STD = 0.1307, 0.3081
"""Mean and standard deviation of the training pixels, on a scale from 0 to 1."""


class Mnist(Task):
    """Grey images of 28x28 pixels, 60,000 for training and 10,000 for testing; 660 and 100 backdoored sevens.

    Notes
    -----
    Needs `mnist` and `ardis` (`g2uardfl data status`). The backdoor is an edge case: no honest client has sevens in
    such a handwriting.

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS 2020.
    """

    name = "mnist"
    summary = "MNIST digits; backdoor: ARDIS sevens -> 1"
    models = ("lenet", "simplenet")
    defaults = TrainingDefaults(lr=0.05, pretrain_epochs=10, pretrain_lr=0.05, pretrain_batch_size=128)
    num_classes = 10
    pixels = Pixels(white=255, dba=(4, 2, 0))
    pgd_radius = 0.2

    source_digit = 7
    target_label = 1

    def load_train(self) -> Samples:
        """The 60,000 training digits in their original order."""
        return _samples(*self._digits("mnist/mnist.npz", "train"))

    def load_test(self) -> Samples:
        """The 10,000 test digits in their original order."""
        return _samples(*self._digits("mnist/mnist.npz", "test"))

    def load_backdoor_train(self) -> Samples:
        """The 660 sevens of the ARDIS training set, labelled 1."""
        return self._ardis("train")

    def load_backdoor_test(self) -> Samples:
        """The 100 sevens of the ARDIS test set, labelled 1."""
        return self._ardis("test")

    def build_model(self) -> nn.Module:
        """LeNet or SimpleNet."""
        return {"lenet": LeNet, "simplenet": SimpleNet}[self.model](self.num_classes)

    def prepare(self, x: Tensor) -> Tensor:
        """Pixels from 0 to 255, normalised to mean 0 and standard deviation 1."""
        return (x.float() / 255 - MEAN) / STD

    def _digits(self, file: str, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """The images and labels of one part ("train" or "test") of a file."""
        arrays = load_arrays(file, self.data_dir, only=(f"x_{part}", f"y_{part}"))
        return arrays[f"x_{part}"], arrays[f"y_{part}"]

    def _ardis(self, part: str) -> Samples:
        images, labels = self._digits("ardis/ardis_iv.npz", part)
        sevens = images[labels == self.source_digit]
        return _samples(sevens, np.full(len(sevens), self.target_label))


def _samples(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]) -> Samples:
    """Images of shape (N, 28, 28) and their labels as tensors, with a channel dimension."""
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))
