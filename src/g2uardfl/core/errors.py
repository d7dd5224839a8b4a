"""The errors g2uardfl raises on purpose: each message names what was wrong and what to do about it."""

from __future__ import annotations


class G2uardFLError(Exception):
    """Anything a user can put right; the command line prints it as one line and exits with status 2."""


class ConfigError(G2uardFLError, ValueError):
    """A setting is unknown or has a value that is not allowed."""


class StateError(G2uardFLError):
    """A saved state or a run directory cannot be used."""


class DataError(G2uardFLError):
    """A data set is missing, incomplete or altered."""
