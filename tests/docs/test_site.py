"""The documentation site: what a build without warnings does not show."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="needs Sphinx: pip install 'g2uardfl[docs]', on Python 3.11 or newer")

from g2uardfl import aggregators, attacks, tasks
from g2uardfl.cli import app
from g2uardfl.defense import profiles
from helpers.command_line import cli as cli

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))
try:
    import generated_pages
    import self_contained
finally:
    sys.path.pop(0)

NAMES = {"defenses": aggregators.names(), "attacks": attacks.names(), "tasks": tasks.names()}
GENERATED = {*generated_pages.FOLDERS.values(), "command-line.md", "notebook.md", "_build"}
"""A build, which may run in parallel to the tests, writes these."""
PAGES = sorted(path for path in DOCS.rglob("*.md") if not GENERATED & set(path.relative_to(DOCS).parts))


@pytest.fixture(scope="module")
def generated():
    return {kind: generated_pages.kind_pages(kind) for kind in NAMES}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_every_name_has_a_page_with_idea_method_and_source(generated, kind, name):
    page = generated[kind][name]
    title, idea, *_ = page.split("\n\n")
    assert title == f"# `{name}`"
    assert idea.endswith(".")
    assert ("## Method" if kind != "tasks" else "## Data and models") in page
    assert name == "none" or ("## Source" in page and "## Assumptions and limits" in page)


@pytest.mark.parametrize("kind", NAMES)
def test_the_list_of_a_kind_links_every_page_and_has_it_in_the_navigation(generated, kind):
    listed, folder = generated[kind]["_list"], generated_pages.FOLDERS[kind]
    for name in NAMES[kind]:
        assert f"[`{name}`]({folder}/{name}.md)" in listed
        assert f"\n{folder}/{name}\n" in listed


def test_the_page_of_a_rule_has_its_settings_and_its_signature(generated):
    page = generated["defenses"]["krum"]
    assert "| `malicious_clients` | 2 | whole number from 0 to 1e+06 |" in page
    assert ".. py:class:: g2uardfl.aggregators.krum.Krum(*, malicious_clients: int = 2)" in page
    assert ">>> " in page


def test_the_command_line_page_has_every_command_and_option():
    page = generated_pages.command_line_page()
    groups = [("g2uardfl", app), *((f"g2uardfl {group.name}", group.typer_instance) for group in app.registered_groups)]
    commands = {
        f"{path} {command.name or command.callback.__name__}"
        for path, group in groups
        for command in group.registered_commands
    }
    assert len(commands) >= 15
    assert set(re.findall(r"^## `(.*)`$", page, flags=re.M)) == commands
    run = page.partition("## `g2uardfl run`")[2].partition("\n## ")[0]
    assert {"--task", "--pmr", "--set", "--overwrite"} <= set(re.findall(r"^\| `(--[\w-]+)", run, flags=re.M))


def test_the_pages_of_the_repository_are_in_the_navigation_once():
    found = [f"{path.parent.relative_to(DOCS)}/{name}" for path in PAGES for name in toctree(path.read_text())]
    assert len(found) == len(set(found))


def toctree(text):
    """The entries of a page's tables of contents that are not patterns."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", text, flags=re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line and line[0] not in ":*"]


@pytest.mark.parametrize("stage", profiles.PARTS[1:])
def test_the_explanation_has_a_figure_for_each_stage_in_both_themes(stage):
    page = (DOCS / "explanation/how-the-guard-works.md").read_text(encoding="utf-8")
    assert f"](figures/{stage}.svg)" in page
    figure = (DOCS / f"explanation/figures/{stage}.svg").read_text(encoding="utf-8")
    assert "<title" in figure
    assert "prefers-color-scheme: dark" in figure
    assert "var(--color-foreground-primary" in figure


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_python_code_of_a_page_can_be_compiled(page):
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.M | re.S):
        ast.parse(block)


def test_the_first_run_tutorial_gives_a_verdict_on_every_client(capsys):
    page = (DOCS / "tutorials/first-run.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    exec(compile(code, "first-run.md", "exec"), {})
    printed = capsys.readouterr().out
    assert len(re.findall(r"^client-\d (accepted|held_out|malicious|invalid) .*\.$", printed, flags=re.M)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tutorials/first-run.md", "how-to/record-and-replay.md"])
def test_the_commands_of_a_page_run_one_after_the_other(cli, page):
    blocks = re.findall(r"^```sh\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    commands = [line.split()[1:] for block in blocks for line in block.splitlines()]
    assert len(commands) >= 3
    for command in commands:
        result = cli(*command)
        assert result.status == 0, result.stderr


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link href="//fonts.example/a.css" rel="stylesheet"/>', ["//fonts.example/a.css"]),
        ("body { background: url(http://images.example/a.png) }", ["http://images.example/a.png"]),
        ('<a href="https://flower.ai">Flower</a> <img src="_images/a.png">', []),
    ],
)
def test_the_build_finds_what_a_page_loads_from_other_hosts(html, found):
    assert self_contained.remote(html) == found
