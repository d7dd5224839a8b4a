"""`g2uardfl list`: what there is, one line each."""

from __future__ import annotations

from typing import Annotated

import typer

_KINDS = {"tasks": "tasks", "attacks": "attacks", "defenses": "aggregators"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_names)


def list_names(
    what: Annotated[
        str, typer.Argument(help="tasks, attacks or defenses; everything if left out.", metavar="[WHAT]")
    ] = "",
) -> None:
    """List the tasks, attacks and defenses that can be named."""
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
    console.print("Your own plugs in as package.module:ClassName wherever a name is taken.", style="dim")
