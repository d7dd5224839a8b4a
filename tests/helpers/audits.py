"""What is in an audit, in short."""

from __future__ import annotations

import os

from g2uardfl.federation.audit import Audit


def audited_rounds(path: str | os.PathLike[str]) -> list[tuple[int, list[str]]]:
    """The number of each round of an audit, and its clients."""
    return [(record["round"], sorted(record["verdicts"])) for record in Audit(path).rounds]
