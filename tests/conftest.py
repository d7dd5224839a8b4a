"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# One thread per process, those that tests start included: models are tiny, several processes share the cores, and
# threads that wait for each other spin. Tests of code that runs in parallel set the number of threads themselves.
os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import pytest
import torch

from helpers.processes import LeftoverProcesses
from helpers.runs import session_cache

torch.set_num_threads(1)

# The same examples in every run, so that only a change of the code changes the result. HYPOTHESIS_PROFILE=explore
# tries new ones, and HYPOTHESIS_PROFILE=fuzz a hundred times as many. There are no deadlines, because any example can
# be slow on a busy machine.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", derandomize=False, deadline=None)
hypothesis.settings.register_profile("fuzz", derandomize=False, deadline=None, max_examples=10_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure(config: pytest.Config) -> None:
    """Fail a session that leaves processes behind."""
    config.pluginmanager.register(LeftoverProcesses(), "leftover-processes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """With `-n auto` one process more than cores, because the tests of deployments mostly wait."""
    return (os.cpu_count() or 1) + (config.option.numprocesses == "auto")


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` removes the slow tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start files with slow tests first, so that parallel workers finish at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a cache of this session, so that a model is trained once for all tests, and the user's cache is not used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2UARDFL_CACHE", str(session_cache(tmp_path_factory)))
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets. Skips if `G2UARDFL_DATA` is not set; fails if it names no such folder."""
    named = os.environ.get("G2UARDFL_DATA")
    if not named:
        pytest.skip("needs the real data sets: set G2UARDFL_DATA to their folder")
    folder = Path(named)
    assert (folder / "mnist").is_dir(), f"G2UARDFL_DATA={named} holds no data sets"
    return folder
