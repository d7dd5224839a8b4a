"""What a result depends on besides its config: versions, platform and commit."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ConfigError

if TYPE_CHECKING:
    import torch


def environment() -> dict[str, str]:
    """Versions and platform; also the commit if the package runs from a git checkout."""
    import numpy
    import torch

    from .._version import __version__

    found = {
        "g2uardfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
    }
    commit = _commit()
    return {**found, "commit": commit} if commit else found


def usable_device(name: str) -> torch.device:
    """The device called `name`; ConfigError if this machine does not have it."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device={name!r} is not available on this machine: try cpu") from error
    return device


def peak_memory() -> float | None:
    """The maximum resident set size of this process so far, in megabytes; None if the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (1e6 if sys.platform == "darwin" else 1e3)  # bytes on macOS, kilobytes elsewhere


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
