"""A recorded run that several folders of tests share."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.recorder import RECORD_FILE, Recorder
from g2uardfl.simulation.run import Simulation
from helpers.runs import session_folder


@pytest.fixture(scope="session")
def digits_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of 30 rounds of the default profile on `digits`, with a black-box attack on a converged model.

    The run is kept for the whole session: several conftest files import this fixture, in several processes.
    """
    folder = session_folder(tmp_path_factory) / "digits-black_box-g2uardfl-0"
    if not folder.exists():
        unfinished = tmp_path_factory.mktemp("record")
        config = RunConfig(
            task="digits", attack="black_box", rounds=30, evaluate_every=30, engine="loop", defense="g2uardfl"
        )
        Simulation(config).run([Recorder(unfinished)])
        with suppress(OSError):  # another process was faster
            unfinished.rename(folder)
    return folder / RECORD_FILE
