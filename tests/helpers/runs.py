"""Run directories without what differs between two runs of one config, and a cache that the whole session shares."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TIMED = ("seconds", "stage_seconds", "rounds_per_second", "defend_seconds_median", "peak_memory_mb", "environment")
"""Entries of records and summaries that depend on time and machine."""


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder for the whole session, the same in all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache for converged models and encoded text, instead of the user's cache folder."""
    return session_folder(tmp_path_factory) / "cache"


@pytest.fixture(autouse=True, scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use the cache of the session, for the conftest files and modules that import this fixture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2UARDFL_CACHE", str(session_cache(tmp_path_factory)))
        yield


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """A record of `rounds.jsonl`, or a summary, without times and machine."""
    return {name: value for name, value in record.items() if name not in TIMED}


def timeless_rounds(run: Path) -> list[dict[str, Any]]:
    """`rounds.jsonl` of a run directory, without times."""
    return [without_times(json.loads(line)) for line in (run / "rounds.jsonl").read_text().splitlines()]


def timeless_summary(run: Path) -> dict[str, Any]:
    """`summary.json` of a run directory, without times and machine."""
    return without_times(json.loads((run / "summary.json").read_text()))
