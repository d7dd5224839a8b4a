"""Fixtures of this folder."""

from helpers.command_line import cli as cli
