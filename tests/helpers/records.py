"""A recorded run that several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.recorder import RECORD_FILE, Recorder
from g2uardfl.simulation.run import Simulation


@pytest.fixture(scope="session")
def digits_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of 30 rounds of the default profile on `digits`, with a black-box attack on a converged model.

    The fixture is imported into several conftest files, each of which makes it a fixture of its own: the run is kept.
    """
    path = tmp_path_factory.getbasetemp() / "digits-black_box-g2uardfl-0" / RECORD_FILE
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        config = RunConfig(
            task="digits", attack="black_box", rounds=30, evaluate_every=30, engine="loop", defense="g2uardfl"
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("G2UARDFL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
            Simulation(config).run([Recorder(path.parent)])
    return path
