"""The tasks (learning problems); each is one file with its data, models and backdoor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..core.constructors import construct
from ..core.registry import Registry

if TYPE_CHECKING:
    from .base import Task

_registry = Registry(
    "task",
    "g2uardfl.tasks.base:Task",
    {
        "digits": "g2uardfl.tasks.digits:Digits",
        "mnist": "g2uardfl.tasks.mnist:Mnist",
        "cifar10": "g2uardfl.tasks.cifar10:Cifar10",
        "sentiment140": "g2uardfl.tasks.sentiment140:Sentiment140",
        "reddit": "g2uardfl.tasks.reddit:Reddit",
    },
)


def names() -> list[str]:
    """The names of the built-in tasks."""
    return _registry.names()


def find(name: str) -> type[Task]:
    """The class of a task, from a built-in name, `package.module:ClassName` or `FILE.py:ClassName`."""
    return cast("type[Task]", _registry.find(name))


def create(name: str, /, *, data_dir: Path | str | None = None, model: str | None = None, **options: Any) -> Task:
    """Create a task; its data is loaded when it is first used.

    Parameters
    ----------
    name
        A built-in name, `package.module:ClassName` or `FILE.py:ClassName`.
    data_dir
        The folder of the data sets; None means `G2UARDFL_DATA` or the platform's cache folder (default: None).
    model
        One of the task's models; None means its first (default: None).
    options
        The task's own settings.
    """
    return construct(find(name), options, data_dir=data_dir, model=model)
