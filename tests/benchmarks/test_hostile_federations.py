"""Small runs of `benchmarks/soak.py` and `benchmarks/hostile_replies.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

import soak

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc").is_dir(), reason="memory is read from /proc")]


def test_a_server_that_is_killed_and_whose_disk_is_full_ends_like_an_undisturbed_one(tmp_path):
    result = soak.soak(tmp_path, rounds=24, kills=1, disk_full_every=10)
    assert (result["rounds"], result["audited_rounds"], result["killed"]) == (24, 24, 1)
    assert result["model_equal"]
    assert result["memory_equal"]
    assert result["audit_equal"]


def test_no_hostile_reply_loses_the_round_or_costs_more_than_the_bound():
    command = [sys.executable, BENCHMARKS / "hostile_replies.py", "--repetitions", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost or above the bound: none" in done.stdout
