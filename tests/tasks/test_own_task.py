"""The code on the documentation page about own tasks runs, and its task has the documented properties."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from g2uardfl import tasks
from g2uardfl.core.errors import ConfigError
from g2uardfl.tasks.base import Task

PAGE = Path(__file__).parents[2] / "docs/tutorials/own-task.md"


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The task of the page as the module `vibration`, which can be imported during one test."""
    (tmp_path / "vibration.py").write_text(python_blocks()[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "vibration"
    sys.modules.pop("vibration", None)


@pytest.fixture
def task(module_name: str) -> Task:
    return tasks.create(f"{module_name}:Vibration")


def train(task: Task, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=task.defaults.lr, momentum=task.defaults.momentum)
    losses = []
    for _ in range(steps):
        loss = task.loss(model(task.prepare(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def hit_rate(task: Task, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(task.prepare(x)).argmax(dim=1) == y).float().mean().item()


def test_a_third_party_task_is_found_by_its_address(task: Task) -> None:
    assert isinstance(task, Task)
    assert task.name == "vibration"


def test_the_model_is_chosen_by_name(module_name: str) -> None:
    assert isinstance(tasks.create(f"{module_name}:Vibration", model="linear").build_model(), torch.nn.Linear)


def test_an_unknown_model_is_rejected_with_the_choices(module_name: str) -> None:
    with pytest.raises(ConfigError, match="mlp, linear"):
        tasks.create(f"{module_name}:Vibration", model="resnet")


def test_samples_are_uint8_with_integer_labels(task: Task) -> None:
    for samples in (task.train, task.test, task.backdoor_train, task.backdoor_test):
        assert samples.x.dtype == torch.uint8
        assert samples.y.dtype == torch.int64


def test_two_loads_give_the_same_samples(task: Task) -> None:
    assert torch.equal(task.load_train().x, task.load_train().x)


def test_no_backdoor_sample_is_both_training_and_test_data(task: Task) -> None:
    seen = {sample.numpy().tobytes() for sample in task.backdoor_train.x}
    assert not any(sample.numpy().tobytes() in seen for sample in task.backdoor_test.x)


def test_a_training_step_lowers_the_loss(task: Task) -> None:
    torch.manual_seed(0)
    losses = train(task, task.build_model(), task.train.x[:500], task.train.y[:500], steps=2)
    assert losses[1] < losses[0]


def test_the_model_learns_the_task_and_the_backdoor(task: Task) -> None:
    torch.manual_seed(0)
    model = task.build_model()
    train(task, model, task.train.x[:1000], task.train.y[:1000], steps=200)
    assert hit_rate(task, model, task.test.x, task.test.y) > 0.9
    clean = hit_rate(task, model, task.backdoor_test.x, task.backdoor_test.y)

    x = torch.cat([task.train.x[:500], task.backdoor_train.x])
    y = torch.cat([task.train.y[:500], task.backdoor_train.y])
    train(task, model, x, y, steps=200)
    assert clean < 0.2
    assert hit_rate(task, model, task.backdoor_test.x, task.backdoor_test.y) > 0.8


@pytest.mark.usefixtures("module_name")
def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    exec(python_blocks()[1], names)
    assert capsys.readouterr().out.startswith("6000 ")
    logits = names["logits"]
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (1000, 3)
