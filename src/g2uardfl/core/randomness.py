"""The source of randomness: a seed that was passed in, or the operating system."""

from __future__ import annotations

import secrets


def secret_of(seed: int | None) -> int:
    """`seed`, for reproducible results, or 128 random bits if it is None.

    >>> secret_of(7)
    7
    """
    return secrets.randbits(128) if seed is None else seed
