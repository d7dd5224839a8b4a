"""The command line: parses arguments, calls the library and prints. Commands import heavy packages when they run."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from .._version import __version__
from ..core.errors import G2uardFLError
from . import checking, comparing, data, demo, experiment, listing, replaying, reporting, reproducing, sweep

app = typer.Typer(
    name="g2uardfl",
    help="Keep backdoors out of federated learning: the G²uardFL defence, its baselines and attacks, and a simulator.",
    epilog="Start with: g2uardfl demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click has its own suggestions
)
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""The base class of typer's usage errors, which typer does not export."""


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"g2uardfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback for errors.")] = False,
) -> None:
    if debug:
        os.environ["G2UARDFL_DEBUG"] = "1"


demo.register(app)
experiment.register(app)
sweep.register(app)
reproducing.register(app)
comparing.register(app)
reporting.register(app)
replaying.register(app)
listing.register(app)
checking.register(app)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; an error that the user can correct is one line, with exit status 2."""
    if "--debug" in sys.argv:
        # At any position: users append it to the command that failed.
        sys.argv.remove("--debug")
        os.environ["G2UARDFL_DEBUG"] = "1"
    # Commands print the events of a run themselves; without a handler Python would print warnings once more.
    logger = logging.getLogger("g2uardfl")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    # Before torch loads OpenMP: threads that wait must not keep other processes from working.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # A third party's class is often in a file of the current folder.
    sys.path.append(os.getcwd())
    try:
        status = app(standalone_mode=False)
    except (G2uardFLError, _UsageError) as error:
        message = getattr(error, "format_message", error.__str__)()
        if not message:  # the help of a command without arguments, which is printed already
            sys.exit(0)
        if os.environ.get("G2UARDFL_DEBUG"):
            raise
        _fail(message + _hint(error))
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped", status=130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)


def _hint(error: Exception) -> str:
    """What to write for an argument of the wrong type, and where the help is; "" for other errors."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None:
        return ""
    kind = getattr(getattr(parameter, "type", None), "name", "")
    example = {"integer": "a whole number", "integer range": "a whole number", "float": "a number"}.get(kind, "")
    expected = f" Write {example} after {parameter.opts[0]}." if parameter and example else ""
    return f"{expected} See: {context.command_path.replace(context.find_root().info_name, 'g2uardfl', 1)} --help"


def _fail(message: str, status: int = 2) -> None:
    typer.echo(f"g2uardfl: error: {' '.join(message.split())}", err=True)
    sys.exit(status)
