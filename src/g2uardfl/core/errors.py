"""Exceptions for problems that a user can fix. Each message states the problem and the remedy."""

from __future__ import annotations


class G2uardFLError(Exception):
    """Base class; the command line prints the message as one line and exits with status 2."""


class ConfigError(G2uardFLError, ValueError):
    """A setting is unknown or has an invalid value."""


class StateError(G2uardFLError):
    """A saved state or a run directory cannot be used."""


class DataError(G2uardFLError):
    """A data set is missing, incomplete or altered."""
