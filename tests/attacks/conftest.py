"""The tasks that tests of attacks share."""

from __future__ import annotations

import dataclasses

import pytest
from torch import Tensor

from g2uardfl import tasks
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Task
from g2uardfl.training.local import Job, train_locally
from helpers.attacking import RECIPE
from helpers.models import Patches


@pytest.fixture(scope="session")
def patches() -> Patches:
    return Patches()


@pytest.fixture(scope="session")
def start(patches: Patches) -> dict[str, Tensor]:
    return fresh_weights(patches, 0)


@pytest.fixture(scope="session")
def digits() -> Task:
    return tasks.create("digits")


@pytest.fixture(scope="session")
def trained_digits(digits: Task) -> dict[str, Tensor]:
    """Weights of digits after a few epochs."""
    recipe = dataclasses.replace(RECIPE, epochs=6, batch_size=32)
    return train_locally(digits, digits.build_model(), fresh_weights(digits, 0), Job(0, digits.train, recipe, 0))
