"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

# Models and data are tiny here, and threads that meet after every operation are slow on a busy machine. Tests of what
# runs in parallel ask for threads themselves.
ALL_THREADS = torch.get_num_threads()
torch.set_num_threads(1)

# The same examples in every run, so that a change is judged by itself; HYPOTHESIS_PROFILE=explore looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.register_profile("explore", derandomize=False)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="module")
def all_threads() -> Iterator[None]:
    """As many threads as a process of its own has: with another number, sums differ in their last digits."""
    torch.set_num_threads(ALL_THREADS)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real data sets. Skips where none was named; fails where the named one is not there."""
    named = os.environ.get("G2UARDFL_DATA")
    if not named:
        pytest.skip("needs the real data sets: set G2UARDFL_DATA to the folder that holds them")
    folder = Path(named)
    assert (folder / "mnist").is_dir(), f"G2UARDFL_DATA={named} holds no data sets"
    return folder
