"""Options with several values after one name: `--seed 0 1 2`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand

LOG_HELP = "tensorboard, wandb, mlflow, csv, or a callback of your own: package.module:ClassName or file.py:ClassName."
_OPTION = re.compile(r"-(?![\d.]+$).+")
"""The name of an option; negative numbers are values."""


class ListCommand(TyperCommand):
    """A command whose list options take all values up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the name of a list option before each of its values, which is the form that click reads."""
        lists = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, repeated(args, lists))


def repeated(arguments: Sequence[str], lists: Collection[str]) -> list[str]:
    """The arguments with the name of a list option before each of its values.

    >>> repeated(["grid.toml", "--seed", "0", "1", "--out", "x"], {"--seed"})
    ['grid.toml', '--seed', '0', '--seed', '1', '--out', 'x']
    """
    spread: list[str] = []
    name, is_first = None, True
    for argument in arguments:
        if _OPTION.fullmatch(argument):
            name, is_first = (argument if argument in lists else None), True
        elif name:
            if not is_first:
                spread.append(name)
            is_first = False
        spread.append(argument)
    return spread
