"""The choice of the engine."""

from __future__ import annotations

import pytest

from g2uardfl import tasks
from g2uardfl.training.engine import make_engine

DIGITS = tasks.create("digits")


@pytest.mark.parametrize(
    ("samples", "workers", "expected"), [(1e4, 2, "LoopEngine"), (1e9, 2, "WorkerEngine"), (1e9, 1, "LoopEngine")]
)
def test_processes_are_started_only_for_enough_work_and_if_they_are_several(samples, workers, expected):
    engine = make_engine("auto", DIGITS, DIGITS.build_model(), samples=samples, workers=workers)
    try:
        assert type(engine).__name__ == expected
    finally:
        engine.close()
