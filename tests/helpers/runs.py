"""Run directories without what differs between two runs of one config, and a cache for converged models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TIMED = ("seconds", "stage_seconds", "rounds_per_second", "defend_seconds_median", "peak_memory_mb", "environment")
"""Entries of records and summaries that depend on time and machine."""


@pytest.fixture(autouse=True, scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep converged models for the whole session, outside the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2UARDFL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
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
