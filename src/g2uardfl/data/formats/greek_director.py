"""The published format of the Lanthimos sentences of Wang et al. (2020): two text files, one sentence per line."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import DataError
from ..progress import Progress
from ..sources import Source, pick
from ..staging import Staging

PATTERNS = {"train": r"train.*\.txt$", "test": r"test.*\.txt$"}
"""Regular expressions of the published file names, by part."""


def convert(sources: Sequence[Source], staging: Staging, progress: Progress) -> None:
    """Store both files unchanged if they are UTF-8 text."""
    progress("reading", 0, 0)
    for part, source in pick(sources, PATTERNS, "greek_director").items():
        content = source.read()
        try:
            lines = content.decode("utf-8").split()
        except UnicodeDecodeError as error:
            raise DataError(f"{source.origin} is not UTF-8 text ({error.reason} at byte {error.start})") from error
        if not lines:
            raise DataError(f"{source.origin} is empty")
        staging.write_bytes(f"greek_director/{part}.txt", content)
