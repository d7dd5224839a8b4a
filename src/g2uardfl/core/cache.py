"""The folder for files that can be computed again, such as tokenised text and pre-trained models."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The value of the environment variable `G2UARDFL_CACHE`, or else the platform's cache folder for g2uardfl."""
    configured = os.environ.get("G2UARDFL_CACHE")
    if configured:
        return Path(configured)
    import platformdirs

    return Path(platformdirs.user_cache_dir("g2uardfl", appauthor=False))
