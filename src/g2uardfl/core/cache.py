"""Where things that can be made again are kept between runs: prepared text, converged starts."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`G2UARDFL_CACHE` where it is set, else the platform's cache folder for this program."""
    named = os.environ.get("G2UARDFL_CACHE")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("g2uardfl", appauthor=False))
