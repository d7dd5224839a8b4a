"""Softmax regression on 8x8 digits in NumPy, so that a round takes seconds."""

from __future__ import annotations

from functools import cache
from importlib.metadata import distribution

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Model = dict[str, Array]
TEST_EVERY = 5
"""Every fifth image belongs to the server's test set, the others to the clients."""


def fresh() -> Model:
    """The initial model: zeros."""
    return {"pixels.weight": np.zeros((64, 10), np.float32), "pixels.bias": np.zeros(10, np.float32)}


@cache
def images() -> tuple[Array, Labels]:
    """All images (brightness 0 to 1) and their labels.

    They are those of `sklearn.datasets.load_digits`. Flower starts a process for each message, and importing
    scikit-learn would take most of its time.
    """
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(path, delimiter=",")
    return (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)


def test_data() -> tuple[Array, Labels]:
    """Images and labels of the server's test set."""
    pixels, digits = images()
    return pixels[::TEST_EVERY], digits[::TEST_EVERY]


def training_data(part: int, parts: int) -> tuple[Array, Labels]:
    """Images and labels of one client: part 1, 2, ... of `parts`."""
    pixels, digits = images()
    own = np.flatnonzero(np.arange(len(digits)) % TEST_EVERY)[part - 1 :: parts]
    return pixels[own], digits[own]


def probabilities(model: Model, pixels: Array) -> Array:
    """For each image the probability of each digit."""
    scores = pixels @ model["pixels.weight"] + model["pixels.bias"]
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def trained(model: Model, pixels: Array, digits: Labels, learning_rate: float, steps: int = 30) -> Model:
    """The model after some steps of gradient descent on all given data."""
    weight, bias = model["pixels.weight"].copy(), model["pixels.bias"].copy()
    expected = np.eye(10, dtype=np.float32)[digits]
    for _ in range(steps):
        error = (probabilities({"pixels.weight": weight, "pixels.bias": bias}, pixels) - expected) / len(digits)
        weight -= learning_rate * (pixels.T @ error)
        bias -= learning_rate * error.sum(axis=0)
    return {"pixels.weight": weight, "pixels.bias": bias}


def accuracy(model: Model, pixels: Array, digits: Labels) -> float:
    """The share of images that the model classifies correctly."""
    return float((probabilities(model, pixels).argmax(axis=1) == digits).mean())
