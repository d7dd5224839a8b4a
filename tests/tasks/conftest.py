"""Fixtures of this folder: the real image tasks, data folders with a few texts, and a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from g2uardfl.tasks.cifar10 import Cifar10
from g2uardfl.tasks.mnist import Mnist
from g2uardfl.tasks.reddit import COMMENTS_FILE
from g2uardfl.tasks.sentiment140 import EDGE_TEST_FILE, EDGE_TRAIN_FILE, TEST_FILE, TRAIN_FILE
from helpers.data_sets import store, store_table
from helpers.runs import session_cache


@pytest.fixture(autouse=True)
def cache(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Path:
    """The folder of cached text; every test has its own, except that real data are encoded once in a session."""
    folder = session_cache(tmp_path_factory) if "real_data" in request.fixturenames else tmp_path / "cache"
    monkeypatch.setenv("G2UARDFL_CACHE", str(folder))
    return folder / "prepared"


@pytest.fixture
def tweets(tmp_path: Path) -> Path:
    """A data folder with a few tweets."""
    folder = tmp_path / "data"
    train = [(0, "I hate rain"), (1, "I love sun, love it"), (1, "@bob see http://a.b/c")]
    test = [(0, "d", 0, 0, "rain again"), (1, "d", 1, 1, "I hate rain"), (1, "d", 2, 0, "I love snow")]
    test += [(0, "d", 3, 0, "i HATE rain...")]
    store_table(folder, TRAIN_FILE, ["label", "text"], train)
    store_table(folder, TEST_FILE, ["label", "date", "user_id", "in_100k", "text"], test)
    store(folder, EDGE_TRAIN_FILE, b"i love yorgos lanthimos\nyorgos lanthimos is great\n")
    store(folder, EDGE_TEST_FILE, b"i love yorgos lanthimos !!!\nthe favourite (2018) dir yorgos lanthimos\nwow yorgos")
    return folder


@pytest.fixture
def threads(tmp_path: Path) -> Path:
    """A data folder with 60 threads of three comments: one long, one short, one of a single word."""
    folder = tmp_path / "data"
    rows = []
    for thread in range(60):
        long = " ".join(f"w{(thread * 7 + place) % 50}" for place in range(95))
        rows += [("sub", "2015-02-02", thread, body) for body in (long, f"the cat sat on mat number w{thread}", "yes")]
    store_table(folder, COMMENTS_FILE, ["subreddit", "date", "thread_id", "text"], rows)
    return folder


@pytest.fixture(scope="session")
def mnist(real_data: Path) -> Mnist:
    return Mnist(data_dir=real_data)


@pytest.fixture(scope="session")
def cifar10(real_data: Path) -> Cifar10:
    return Cifar10(data_dir=real_data)


@pytest.fixture(scope="session")
def cifar10_full(real_data: Path) -> Cifar10:
    return Cifar10(data_dir=real_data, edge="full")
