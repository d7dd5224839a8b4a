"""Pages that are written at build time: attacks, defences, tasks, the command line and the notebook.

Their text is in one place only: the docstrings and settings that `g2uardfl show` prints, the help of the command line,
and `examples/simulate.ipynb`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer
from sphinx.application import Sphinx
from sphinx.util.inspect import signature, stringify_signature

import g2uardfl
from g2uardfl.cli import app as command_line
from g2uardfl.report.reference import KINDS, Reference, docstring_sections, markdown_table, reference

_INDEX = re.compile(r"(?<![\w`])([^\W\d_]{1,4})_([a-zA-Z0-9]{1,2})(?![a-zA-Z0-9_])")
"""A letter or a short name with an index, as formulas in docstrings have it."""
FOLDERS = {"defenses": "defences", "attacks": "attacks", "tasks": "tasks"}
"""For each kind of `g2uardfl list` the folder of its pages in `reference/`."""
LINKS = {
    "defenses": "[All defences](../defences.md) · [Results](../../results/index.md) · "
    "[Write your own](../../tutorials/own-defence.md)",
    "attacks": "[All attacks](../attacks.md) · [Results](../../results/index.md) · "
    "[Write your own](../../tutorials/own-attack.md)",
    "tasks": "[All tasks](../tasks.md) · [Get the data](../../how-to/get-data.md) · "
    "[Write your own](../../tutorials/own-task.md)",
}
GUARD = (
    "[How the guard works](../../explanation/how-the-guard-works.md) describes the `default` profile, "
    "[the paper and this code](../../explanation/paper.md) the `paper` profile, and "
    "[threat model and limits](../../explanation/threat-model.md) what neither protects."
)
"""The method of the guard has pages of its own."""
OPTION = {"defenses": "--defense {name} --set defense.KEY=VALUE", "attacks": "--attack {name} --set attack.KEY=VALUE",
          "tasks": "--task {name} --set task.KEY=VALUE"}  # fmt: skip


def generate(app: Sphinx) -> None:
    """Write all generated pages that have changed, and delete those of rules that are gone."""
    source = Path(app.srcdir)
    pages = {
        source / "reference" / "command-line.md": command_line_page(),
        source / "tutorials" / "notebook.md": notebook_page(source.parent / "examples" / "simulate.ipynb"),
    }
    for kind, folder in FOLDERS.items():
        for name, text in kind_pages(kind).items():
            pages[source / "reference" / folder / f"{name}.md"] = text
        for old in (source / "reference" / folder).glob("*.md"):
            if old not in pages:
                old.unlink()
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def kind_pages(kind: str) -> dict[str, str]:
    """One page for each name of a kind, and `_list`, which a page includes."""
    registry, _ = KINDS[kind]
    found = {name: registry.find(name) for name in registry.names()}
    rows = [f"| [`{name}`]({FOLDERS[kind]}/{name}.md) | {one.summary} |" for name, one in found.items()]
    names = "\n".join(f"{FOLDERS[kind]}/{name}" for name in found)
    toctree = f"```{{toctree}}\n:hidden:\n\n{names}\n```"
    table = "\n".join(["| name | summary |", "|---|---|", *rows])
    return {name: rule_page(kind, one) for name, one in found.items()} | {"_list": f"{table}\n\n{toctree}\n"}


def rule_page(kind: str, cls: type[Any]) -> str:
    """Idea, formula, settings, assumptions, limits, differences and source of one attack, defence or task."""
    found = reference(cls)
    parts = [
        f"# `{found.name}`",
        f"{found.summary[0].upper()}{found.summary[1:].rstrip('.')}.",
        f"## {'Method' if kind != 'tasks' else 'Data and models'}",
        _subscripts(found.text),
        GUARD if cls is g2uardfl.G2uardFL else "",
        *_settings(found),
        *_section("Assumptions and limits", _subscripts(found.notes)),
        *_section("Differences from the original", found.differences),
        *_section("Source", found.source),
        "## Use",
        f"```text\ng2uardfl run {OPTION[kind].format(name=found.name)}\n```",
        _python(cls),
        LINKS[kind],
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _subscripts(text: str) -> str:
    """Write Δw_i as a letter with an index, outside code."""
    parts = text.split("`")
    parts[::2] = [_INDEX.sub(r"\1<sub>\2</sub>", part) for part in parts[::2]]
    return "`".join(parts)


def _settings(found: Reference) -> Iterator[str]:
    if found.settings:
        yield "## Settings"
    for title, settings in found.settings.items():
        if title:
            yield f"### With `{title}`"
        yield markdown_table(settings)


def _section(title: str, text: str) -> list[str]:
    return [f"## {title}", text] if text else []


def _python(cls: type[Any]) -> str:
    """The class with its signature and the example of its docstring; the guard has an API page."""
    if cls is g2uardfl.G2uardFL:
        return "In Python: {py:class}`g2uardfl.G2uardFL`. In Flower: {py:class}`g2uardfl.flower.G2uardFLStrategy`."
    arguments = stringify_signature(signature(cls), show_return_annotation=False, unqualified_typehints=True)
    example = docstring_sections(cls).get("Examples", "")
    indented = "\n".join(f"   {line}".rstrip() for line in example.splitlines())
    return f"```{{eval-rst}}\n.. py:class:: {cls.__module__}.{cls.__qualname__}{arguments}\n\n{indented}\n```"


def command_line_page() -> str:
    """Every command with its arguments and options."""
    root = typer.main.get_command(command_line)
    parts = [
        "# Command line",
        "Every command has `--help`. `--debug` shows a traceback for an error. The exit status is 0 if the command "
        "succeeded ([exit codes](exit-codes.md)).",
        *(part for path, command in commands(root, "g2uardfl") for part in _command(path, command)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """All commands below `command` that can be run, each with the words that call it."""
    for name, inner in getattr(command, "commands", {}).items():
        if getattr(inner, "commands", None):
            yield from commands(inner, f"{path} {name}")
        else:
            yield f"{path} {name}", inner


def _command(path: str, command: click.Command) -> Iterator[str]:
    yield f"## `{path}`"
    context = click.Context(command, info_name=path)
    examples = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text, _, example = " ".join(paragraph.split()).partition("Example: ")
        yield _escaped(text)
        examples += [example] if example else []
    lines = [" ".join([path, *command.collect_usage_pieces(context)]), *(f"# for example\n{one}" for one in examples)]
    yield "```sh\n" + "\n\n".join(lines) + "\n```"
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if arguments:
        yield _table("argument", [(one.make_metavar(context), getattr(one, "help", "")) for one in arguments])
    panels: dict[str, list[tuple[str, str]]] = {}
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden and one.name != "help":
            panel = getattr(one, "rich_help_panel", None) or ""
            panels.setdefault(panel, []).append((_option(one, context), _help(one)))
    for panel, rows in panels.items():
        yield _table(panel or "option", rows)


def _option(option: click.Option, context: click.Context) -> str:
    value = "" if option.is_flag else f" {option.make_metavar(context).removesuffix(' RANGE')}"
    return ", ".join([*option.opts, *option.secondary_opts]) + value


def _help(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    has_default = option.default is not None and not option.is_flag and option.default != []
    return f"{text} (default: {option.default})" if has_default and "(default" not in text else text


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    body = [f"| `{left}` | {_escaped(right)} |" for left, right in rows]
    return "\n".join([f"| {title} | meaning |", "|---|---|", *body])


def _escaped(text: str) -> str:
    text = text.replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;")
    return re.sub(r"(?<![\w`-])(--[a-z][\w-]*)", r"`\1`", text)


def notebook_page(path: Path) -> str:
    """The cells of the notebook as one page; it is stored without outputs."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, _, rest = parts[0].partition("\n")
    note = "The notebook is `examples/simulate.ipynb` in the source code."
    return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
