"""The choice of the engine."""

from __future__ import annotations

import pytest

from g2uardfl import tasks
from g2uardfl.training.engine import make_engine

DIGITS = tasks.create("digits")


@pytest.mark.parametrize(("samples", "expected"), [(1e4, "LoopEngine"), (1e9, "WorkerEngine")])
def test_processes_are_started_only_for_enough_work(samples, expected):
    engine = make_engine("auto", DIGITS, DIGITS.build_model(), samples=samples, workers=1)
    try:
        assert type(engine).__name__ == expected
    finally:
        engine.close()
