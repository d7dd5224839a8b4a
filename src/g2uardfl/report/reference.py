"""The reference of tasks, attacks, defences and profiles, from their docstrings and settings, as Markdown."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import aggregators, attacks, tasks
from ..aggregators.base import Aggregator
from ..attacks.base import Attack
from ..core.errors import ConfigError
from ..core.registry import Registry
from ..core.settings import allowed_values
from ..core.text import suggestion
from ..defense import profiles
from ..defense.profiles import Profile
from ..tasks.base import Task

KINDS: dict[str, tuple[Any, type]] = {
    "tasks": (tasks, Task),
    "attacks": (attacks, Attack),
    "defenses": (aggregators, Aggregator),
    "profiles": (profiles, Profile),
}
"""For each kind the package that lists its names, and the base of its classes."""
_PREFIXES = {"tasks": "task.", "attacks": "attack.", "defenses": ""}
"""How `--set` names the settings of a kind."""
_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", flags=re.MULTILINE)
"""The heading of a section of a docstring in the style of NumPy."""
_DIFFERENCES = "Deliberate differences"
"""How the part of a module's docstring begins that says where the code deviates from the original."""


@dataclass(frozen=True)
class Setting:
    """One setting of a class, as text."""

    name: str
    default: str
    allowed: str
    meaning: str


@dataclass(frozen=True)
class Reference:
    """What there is to say about a task, an attack, a defence or a profile."""

    name: str
    summary: str
    text: str
    settings: Mapping[str, tuple[Setting, ...]]
    """The settings by group; a class whose settings have no groups has one with the title ""."""
    notes: str
    """What it assumes, and where it fails."""
    differences: str
    """Where it deviates from the original code."""
    source: str


def class_of(name: str) -> type[Any]:
    """The task, attack, defence or profile called `name`, or a class of one's own of any of these kinds."""
    for registry, _ in KINDS.values():
        if name in registry.names():
            found: type[Any] = registry.find(name)
            return found
    if ":" not in name and not name.endswith(".py"):
        known = [one for registry, _ in KINDS.values() for one in registry.names()]
        raise ConfigError(f"there is no {name!r}: {suggestion(name, [*known, *KINDS])}")
    found = Registry("class", "builtins:object", {}).find(name)
    if not issubclass(found, tuple(base for _, base in KINDS.values())):
        raise ConfigError(f"{name} is no task, attack, defence or profile: it subclasses none of their base classes")
    return found


def reference(kind: type[Any]) -> Reference:
    """The reference of a class."""
    sections = docstring_sections(kind)
    module = inspect.getdoc(inspect.getmodule(kind)) or ""
    begin = module.find(_DIFFERENCES)
    text = sections.get("", "")
    if issubclass(kind, Task):
        text += _training(kind)
    return Reference(
        name=kind.name if hasattr(kind, "name") else kind.__name__,
        summary=kind.summary,
        text=text,
        settings={title: tuple(settings) for title, settings in _groups(kind).items()},
        notes=sections.get("Notes", ""),
        differences=module[begin:] if begin >= 0 and issubclass(kind, Attack) else "",
        source=sections.get("References", ""),
    )


def markdown(found: Reference, level: int = 1) -> str:
    """A reference as Markdown, with a heading of this level."""
    parts = [f"{'#' * level} `{found.name}`", _sentence(found.summary), found.text]
    for title, settings in found.settings.items():
        parts.append(f"{'#' * (level + 1)} Settings{title and f': {title}'}")
        parts.append(markdown_table(settings))
    parts += [f"**Assumptions and limits.** {found.notes}"] if found.notes else []
    parts.append(found.differences)
    parts += [f"Source: {found.source}"] if found.source else []
    return "\n\n".join(part for part in parts if part)


def markdown_table(settings: Iterable[Setting]) -> str:
    """A table of settings as Markdown."""
    rows = [f"| `{one.name}` | {one.default} | {one.allowed} | {one.meaning} |" for one in settings]
    return "\n".join(["| setting | default | allowed | meaning |", "|---|---|---|---|", *rows])


def page(kind: str) -> str:
    """The reference of all built-in classes of a kind."""
    registry, _ = KINDS[kind]
    heading = f"# Reference: {kind}"
    usage = f"`--set {_PREFIXES.get(kind, '')}KEY=VALUE` changes a setting; in Python it is a keyword argument."
    found = [markdown(reference(registry.find(name)), 2) for name in registry.names()]
    return "\n\n".join([heading, usage, *found]) + "\n"


def _groups(kind: type[Any]) -> dict[str, list[Setting]]:
    """The settings of a class by group; a guard has one group for each profile."""
    meanings = _meanings(kind)
    if issubclass(kind, Aggregator):
        groups = kind.setting_groups()
    elif issubclass(kind, Profile):
        meanings = _meanings(aggregators.find("g2uardfl"))
        groups = {part: [one.Settings] for part, one in kind.parts().items()}
    else:
        groups = {"": [kind.Settings]}
    found = {
        title: [
            _setting(item, meanings.get(item.name, "")) for settings in group for item in dataclasses.fields(settings)
        ]
        for title, group in groups.items()
    }
    return {title: settings for title, settings in found.items() if settings}


def _setting(item: dataclasses.Field[Any], meaning: str) -> Setting:
    default = f"{item.default:.4g}" if isinstance(item.default, float) else str(item.default)
    allowed = allowed_values(item).removeprefix("a ") + (", or None" if item.metadata.get("optional") else "")
    return Setting(item.name, default, allowed, meaning.replace("|", "\\|"))


def _meanings(kind: type[Any]) -> dict[str, str]:
    """What the settings mean: the entries under "Parameters" of a class and its bases."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        entries = re.split(r"^(\S.*)\n", docstring_sections(one).get("Parameters", ""), flags=re.MULTILINE)[1:]
        for names, text in zip(entries[::2], entries[1::2], strict=True):
            meaning = re.sub(r"\s*\(default:.*?\)(?=\.?$)", "", " ".join(text.split()))
            meaning = re.sub(r"^\([^)]*profiles?\)\s*", "", meaning)
            found |= dict.fromkeys(names.split(", "), meaning)
    return found


def docstring_sections(kind: type[Any]) -> dict[str, str]:
    """The sections of the class's own docstring by heading; under "" what comes before the first."""
    text, *rest = _HEADING.split(inspect.cleandoc(kind.__doc__ or ""))
    pairs: Iterable[tuple[str, str]] = zip(rest[::2], rest[1::2], strict=True)
    return {"": text.strip()} | {heading: body.strip("\n") for heading, body in pairs}


def _training(kind: type[Task]) -> str:
    """The models and the training defaults of a task."""
    lines = [f"- Models: {', '.join(f'`{name}`' for name in kind.models)}; the first is the default."]
    defaults = getattr(kind, "defaults", None)
    if defaults is not None:
        values = dataclasses.asdict(defaults).items()
        lines.append(f"- Defaults of a run: {', '.join(f'`{name}` {value}' for name, value in values)}.")
    return "\n\n" + "\n".join(lines)


def _sentence(text: str) -> str:
    """`text` with a capital letter and a full stop."""
    text = text.strip()
    return text and text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")
