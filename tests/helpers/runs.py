"""Run directories, without the figures that differ between two runs of one config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TIMED = ("seconds", "stage_seconds", "rounds_per_second", "defend_seconds_median", "peak_memory_mb", "environment")


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """An object of `rounds.jsonl` or `summary.json` without times and the machine."""
    return {name: value for name, value in record.items() if name not in TIMED}


def timeless_rounds(run: Path) -> list[dict[str, Any]]:
    """`rounds.jsonl` of a run directory."""
    return [without_times(json.loads(line)) for line in (run / "rounds.jsonl").read_text().splitlines()]


def timeless_summary(run: Path) -> dict[str, Any]:
    """`summary.json` of a run directory."""
    return without_times(json.loads((run / "summary.json").read_text()))
