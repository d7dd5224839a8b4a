"""Run directories without what differs between two runs of one config, and folders that a whole session shares."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.metrics import summarise

TIMED = ("seconds", "stage_seconds", "rounds_per_second", "defend_seconds_median", "peak_memory_mb", "environment")
"""Entries of records and summaries that depend on time and machine."""
TINY: dict[str, Any] = {
    "rounds": 3, "clients": 12, "per_round": 4, "local_steps": 1, "start": "scratch", "attack": "black_box",
}  # fmt: skip
"""The settings of a run of a fraction of a second."""


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder for the whole session, the same in all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache for converged models and encoded text, instead of the user's cache folder."""
    return session_folder(tmp_path_factory) / "cache"


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """A record of `rounds.jsonl`, or a summary, without times and machine."""
    return {name: value for name, value in record.items() if name not in TIMED}


def timeless_rounds(run: Path) -> list[dict[str, Any]]:
    """`rounds.jsonl` of a run directory, without times."""
    return [without_times(json.loads(line)) for line in (run / "rounds.jsonl").read_text().splitlines()]


def timeless_summary(run: Path) -> dict[str, Any]:
    """`summary.json` of a run directory, without times and machine."""
    return without_times(json.loads((run / "summary.json").read_text()))


def write_run(path: Path, records: list[dict[str, Any]] | None = None, **settings: Any) -> Path:
    """Write a run directory without training: `records` (default: one round), and their summary."""
    config = RunConfig(**settings)
    records = records or [round_record(1, c1="accepted")]
    summary = {**summarise(records, config.defend_from), "seed": config.seed, "start": {"acc": 0.9, "asr": 0.0}}
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config.to_toml())
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def round_record(number: int, acc: float = 0.9, asr: float = 0.1, **decisions: str) -> dict[str, Any]:
    """A record of `rounds.jsonl`. `decisions` are those about clients; malicious ones have names that begin with m."""
    malicious = [client for client in decisions if client.startswith("m")]
    return {
        "round": number, "acc": acc, "asr": asr, "selected": list(decisions), "malicious": malicious,
        "attacking": malicious, "seconds": {"train": 1.0, "defend": 0.5, "evaluate": 0.25}, "note": "", "events": [],
        "verdicts": {client: {"decision": decision, "reason": "."} for client, decision in decisions.items()},
    }  # fmt: skip
