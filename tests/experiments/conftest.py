"""Fixtures of this folder."""

from helpers.command_line import cli as cli
from helpers.runs import shared_cache as shared_cache
