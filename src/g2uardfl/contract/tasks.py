"""What every task guarantees: its samples, its models and how they train."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tasks.base import Samples, Task
from ..training.dropout import with_keyed_dropout
from ..training.local import Job, Recipe, share_predicted, train_locally
from . import Check, Make, check_settings, require

_PARTS = ("train", "test", "backdoor_train", "backdoor_test")
_BATCH = 8


def _samples(make: Make) -> None:
    task: Task = make()
    for part in _PARTS:
        samples: Samples = getattr(task, part)
        require(len(samples), f"{part} is empty")
        require(samples.y.dtype == torch.int64, f"the labels of {part} are {samples.y.dtype}, not torch.int64")
        require(samples.y.ndim == 1, f"the labels of {part} are not a vector")
        inside = samples.y.min() >= 0 and samples.y.max() < task.num_classes
        require(inside, f"{part} has labels outside 0 to {task.num_classes - 1}")
        same = samples.x.dtype == task.train.x.dtype and samples.x.shape[1:] == task.train.x.shape[1:]
        require(same, f"the inputs of {part} have another dtype or shape than those of train")


def _same_every_time(make: Make) -> None:
    first, second = make(), make()
    for part in _PARTS:
        one, other = getattr(first, part), getattr(second, part)
        same = torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
        require(same, f"two loads of {part} differ: use fixed seeds and a fixed order")


def _separate(make: Make) -> None:
    task: Task = make()
    train = {row.numpy().tobytes() for row in task.backdoor_train.x}
    shared = sum(row.numpy().tobytes() in train for row in task.backdoor_test.x)
    require(not shared, f"{shared} of the {len(task.backdoor_test)} samples of backdoor_test are in backdoor_train")


def _models(make: Make) -> None:
    task: Task = make()
    batch = task.train.take(torch.arange(min(_BATCH, len(task.train))))
    for name in task.models:
        task.model = name
        weights = []
        for _ in range(2):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                weights.append(task.build_model().state_dict())
        same = all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
        require(same, f"two models {name!r} from the same seed differ: draw from torch's global generator only")
        outputs: Tensor = task.build_model()(task.prepare(batch.x))
        expected = (len(batch), task.num_classes)
        require(outputs.shape == expected, f"the outputs of {name!r} have shape {tuple(outputs.shape)}, not {expected}")
        loss = task.loss(outputs, batch.y)
        require(loss.ndim == 0 and torch.isfinite(loss), f"the loss of {name!r} is not a finite number")


def _augmentation(make: Make) -> None:
    task: Task = make()
    x = task.train.x[:_BATCH]
    first, second = (task.augment(x, torch.Generator().manual_seed(3)) for _ in range(2))
    require(torch.equal(first, second), "the same generator augments differently: draw from the generator only")
    require(first.shape == x.shape and first.dtype == x.dtype, "augmented inputs have another shape or dtype")


def _training(make: Make) -> None:
    task: Task = make()
    model = with_keyed_dropout(task.build_model())
    start = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = Recipe(task.defaults.lr, _BATCH, epochs=0, steps=3, momentum=0.9, weight_decay=0.0)
    job = Job(0, task.train.take(torch.arange(min(50, len(task.train)))), recipe, seed=1)
    first, second = (train_locally(task, model, start, job) for _ in range(2))
    require(all(torch.equal(value, second[name]) for name, value in first.items()), "the same seed trains differently")
    require(any(not torch.equal(value, start[name]) for name, value in first.items()), "training changes nothing")
    finite = all(torch.isfinite(value).all() for value in first.values())
    require(finite, f"three steps with lr={task.defaults.lr} give weights that are not finite")
    few = task.test.take(torch.arange(min(50, len(task.test))))
    require(0 <= share_predicted(task, model, few) <= 1, "ACC is not between 0 and 1")


CHECKS = [
    Check("Its representation shows all settings, and unknown ones are rejected.", check_settings),
    Check("Samples have one form, and labels that are classes.", _samples),
    Check("Two loads give the same samples in the same order.", _same_every_time),
    Check("No sample of backdoor_test is in backdoor_train.", _separate),
    Check("Every model returns one row of logits for each input.", _models),
    Check("Augmentation depends on its generator only.", _augmentation),
    Check("Local training changes the model, and the same seed gives the same result.", _training),
]
"""The checks of a task."""
