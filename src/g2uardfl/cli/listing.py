"""`g2uardfl list` and `show`: the available tasks, attacks and defences, and one of them in detail."""

from __future__ import annotations

from typing import Annotated

import typer

_KINDS = {"tasks": "tasks", "attacks": "attacks", "defenses": "aggregators"}
"""The package that lists each kind."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(list_names)
    app.command("show")(show)


def list_names(
    what: Annotated[str, typer.Argument(help="tasks, attacks or defenses. (default: all)", metavar="[WHAT]")] = "",
) -> None:
    """List the built-in tasks, attacks and defenses."""
    import importlib

    from rich.console import Console
    from rich.table import Table

    from ..core.errors import ConfigError
    from ..core.text import suggestion

    if what and what not in _KINDS:
        raise ConfigError(f"cannot list {what!r}: {suggestion(what, list(_KINDS))}")
    console = Console()
    for kind in [what] if what else _KINDS:
        registry = importlib.import_module(f"g2uardfl.{_KINDS[kind]}")
        table = Table(title=kind, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        for name in registry.names():
            table.add_row(name, registry.find(name).summary)
        console.print(table)
    console.print("g2uardfl show NAME describes one of them with its settings.", style="dim")
    console.print(
        "To use your own class, write package.module:ClassName or FILE.py:ClassName instead of a name.", style="dim"
    )


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A task, attack, defense or profile, or your own class; tasks, attacks or defenses for all of them.",
            metavar="NAME",
        ),
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as on the documentation site.")] = False,
) -> None:
    """Describe a task, attack, defense or profile: settings with their ranges and defaults, assumptions and source.

    Example: g2uardfl show krum
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from ..report import reference

    if name in reference.KINDS:
        text = reference.page(name)
    else:
        text = reference.markdown(reference.reference(reference.class_of(name)))
    if markdown:
        typer.echo(text.rstrip("\n"))
    else:
        Console().print(Markdown(text))
