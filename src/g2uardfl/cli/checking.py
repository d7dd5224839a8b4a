"""`g2uardfl check`: check the contract of a custom rule, attack or task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..contract import Make


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    name: Annotated[
        str,
        typer.Argument(
            help="FILE.py:ClassName or package.module:ClassName of a defense, attack, task or profile, or a name.",
            metavar="CLASS",
        ),
    ],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the class.", metavar="KEY=VALUE")
    ] = None,
) -> None:
    """Check your own class: how it handles invalid clients, seeds, saved states and more.

    Exit status 1 if a check fails. Example: g2uardfl check mine.py:Rule
    """
    from rich.console import Console

    from ..contract import checks_for
    from ..report.reference import class_of
    from ..simulation.config import with_assignments

    assigned = with_assignments({}, [f"defense.{one}" for one in assignments or []])
    kind, make = _maker(class_of(name), name, assigned.get("defense_settings", {}))
    make()
    console, failed, last = Console(), 0, ""
    checks = checks_for(kind)
    for one in checks:
        problem = one.problem(make)
        failed += bool(problem)
        mark = "[bold red]FAIL[/]" if problem else "[green]ok[/]  "
        console.print(f"{mark}  {one.title}", highlight=False)
        if problem:
            console.print(f"      {'the same' if problem == last else problem}", highlight=False, markup=False)
            last = problem
    console.print(f"{name}: {len(checks) - failed} of {len(checks)} checks passed", highlight=False, markup=False)
    if failed:
        raise typer.Exit(1)


def _maker(kind: type[Any], name: str, settings: dict[str, Any]) -> tuple[type[Any], Make]:
    """The class to check, and how to make a fresh object; a profile is checked as a guard that has it."""
    from functools import partial

    from .. import aggregators, attacks, tasks
    from ..contract.rules import made
    from ..defense.profiles import Profile
    from ..tasks.base import Task

    if issubclass(kind, Profile):
        return aggregators.find("g2uardfl"), partial(made, "g2uardfl", {"profile": name, **settings})
    if issubclass(kind, aggregators.Aggregator):
        return kind, partial(made, name, settings)
    return kind, partial(tasks.create if issubclass(kind, Task) else attacks.create, name, **settings)
