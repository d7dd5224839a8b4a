"""`g2uardfl list`: the available tasks, attacks and defences."""

from __future__ import annotations

from typing import Annotated

import typer

_KINDS = {"tasks": "tasks", "attacks": "attacks", "defenses": "aggregators"}
"""The package that lists each kind."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_names)


def list_names(
    what: Annotated[str, typer.Argument(help="tasks, attacks or defenses. (default: all)", metavar="[WHAT]")] = "",
) -> None:
    """List the built-in tasks, attacks and defenses."""
    import importlib

    from rich.console import Console
    from rich.table import Table

    from ..core.errors import ConfigError

    if what and what not in _KINDS:
        raise ConfigError(f"cannot list {what!r}: choose tasks, attacks or defenses")
    console = Console()
    for kind in [what] if what else _KINDS:
        registry = importlib.import_module(f"g2uardfl.{_KINDS[kind]}")
        table = Table(title=kind, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        for name in registry.names():
            table.add_row(name, registry.find(name).summary)
        console.print(table)
    console.print("To use your own class, write package.module:ClassName instead of a name.", style="dim")
