"""All clients trained as one batched model: the same weights as in the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from g2uardfl.core.errors import ConfigError
from g2uardfl.tasks.base import Samples, Task, TrainingDefaults
from g2uardfl.tasks.digits import SmallCnn
from g2uardfl.tasks.models import LeNet, ResidualBlock, ResNet18, SimpleNet
from g2uardfl.tasks.text_models import LSTMClassifier
from g2uardfl.training.batched import BatchedEngine
from g2uardfl.training.batched_layers import MaskedBatchNorm
from g2uardfl.training.batched_model import BatchedModel
from g2uardfl.training.dropout import KeyedDropout, set_key, step_key
from g2uardfl.training.engine import LoopEngine, TrainedWeights
from g2uardfl.training.local import Job, Recipe

RECIPE = Recipe(lr=0.05, batch_size=32, epochs=2, steps=0, momentum=0.9, weight_decay=1e-3)
NON_IID = (1, 7, 33, 64)


class RandomTask(Task):
    """Random samples for any model."""

    name = "random"
    models: ClassVar[tuple[str, ...]] = ("model",)
    defaults = TrainingDefaults(lr=0.1)
    num_classes = 10

    def __init__(self, build: Callable[[], nn.Module], shape: tuple[int, ...], *, tokens: int = 0) -> None:
        super().__init__()
        self.build = build
        self.shape = shape
        self.tokens = tokens

    def samples(self, count: int, seed: int) -> Samples:
        generator = torch.Generator().manual_seed(seed)
        kind = torch.int32 if self.tokens else torch.uint8
        x = torch.randint(0, self.tokens or 256, (count, *self.shape), generator=generator).to(kind)
        return Samples(x, torch.randint(0, 10, (count,), generator=generator))

    def load_train(self) -> Samples:
        return self.samples(100, 0)

    load_test = load_backdoor_train = load_backdoor_test = load_train

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build()

    def prepare(self, x: Tensor) -> Tensor:
        return x.long() if self.tokens else x.float() / 255 - 0.5


class Augmented(RandomTask):
    """Randomly mirrored images; `augment` is overridden."""

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        mirrored = (torch.rand(len(x), generator=generator) < 0.5).to(x.device)
        return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)


class SeparateDraws(RandomTask):
    """Randomly mirrored images; drawing and applying are separate methods."""

    def draw_augmentation(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.rand(count, 1, generator=generator)

    def apply_augmentation(self, x: Tensor, draws: Tensor) -> Tensor:
        return torch.where(draws.view(-1, 1, 1, 1) < 0.5, x.flip(-1), x)


class TinyNet(nn.Sequential):
    """A linear layer, dropout, another linear layer."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 10))


class TinyResidual(nn.Sequential):
    """Convolutions with BatchNorm in two dimensions and in one."""

    def __init__(self) -> None:
        super().__init__(ResidualBlock(1, 4, stride=2), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 10))


class WideNet(nn.Sequential):
    """A convolution with enough channels to be stored with channels last, and one with few channels."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 3), nn.Flatten(), nn.Linear(8, 10))


TINY = RandomTask(TinyNet, (1, 4, 4))


def make_jobs(task: RandomTask, counts: tuple[int, ...], recipe: Recipe = RECIPE, first: int = 0) -> list[Job]:
    return [
        Job(first + i, task.samples(count, i), recipe, seed=1000 * first + 17 * i) for i, count in enumerate(counts)
    ]


def assert_same(found: TrainedWeights, expected: TrainedWeights, atol: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for ours, weights in zip(found, expected, strict=True):
        assert list(ours) == list(weights)
        for name, value in weights.items():
            torch.testing.assert_close(ours[name], value, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
            assert ours[name].is_contiguous()


def assert_trains_like_the_loop(task: RandomTask, jobs: list[Job], atol: float = 1e-5) -> None:
    start = {name: value.clone() for name, value in task.build_model().state_dict().items()}
    expected = LoopEngine(task, task.build_model()).train(start, jobs)
    assert_same(BatchedEngine(task, task.build_model()).train(start, jobs), expected, atol)
    moved = [not torch.equal(weights[name], start[name]) for weights in expected for name in weights]
    assert any(moved)


def make_lstm() -> nn.Module:
    return LSTMClassifier(20, embedding_width=6, hidden_width=5, num_classes=10)


EVERY_KIND = pytest.mark.parametrize(
    ("task", "counts"),
    [
        pytest.param(RandomTask(SmallCnn, (1, 8, 8)), NON_IID, id="cnn"),
        pytest.param(RandomTask(LeNet, (1, 28, 28)), (3, 9), id="lenet-with-dropout"),
        pytest.param(RandomTask(SimpleNet, (1, 28, 28)), (3, 9), id="simplenet"),
        pytest.param(RandomTask(TinyResidual, (1, 4, 4)), (2, 7, 34, 64), id="batch-norm"),
        pytest.param(Augmented(SmallCnn, (1, 8, 8)), (7, 33), id="augmented"),
        pytest.param(SeparateDraws(SmallCnn, (1, 8, 8)), (7, 33, 70), id="separate-draws"),
        pytest.param(RandomTask(make_lstm, (7,), tokens=20), NON_IID, id="lstm"),
    ],
)


@EVERY_KIND
def test_every_kind_of_model_trains_like_the_loop(task: RandomTask, counts: tuple[int, ...]):
    assert_trains_like_the_loop(task, make_jobs(task, counts))


def test_resnet18_with_its_running_statistics_trains_like_the_loop():
    task = RandomTask(ResNet18, (3, 16, 16))
    recipe = Recipe(lr=0.01, batch_size=4, epochs=1, steps=0, momentum=0.9, weight_decay=1e-4)
    assert_trains_like_the_loop(task, make_jobs(task, (7, 3), recipe))


def test_batch_norm_with_a_single_sample_is_left_to_the_loop():
    task = RandomTask(lambda: nn.Sequential(ResidualBlock(1, 4), nn.Flatten(), nn.Linear(64, 10)), (1, 4, 4))
    assert_trains_like_the_loop(task, make_jobs(task, (5, 1, 33)))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(lr=0.1, batch_size=8, epochs=2, steps=5, momentum=0.9, weight_decay=0.0),
        Recipe(lr=0.1, batch_size=8, epochs=2, steps=0, momentum=0.0, weight_decay=1e-2),
        Recipe(lr=0.1, batch_size=100, epochs=3, steps=0, momentum=0.5, weight_decay=0.0),
    ],
)
def test_every_recipe_trains_like_the_loop(recipe: Recipe):
    assert_trains_like_the_loop(TINY, make_jobs(TINY, NON_IID, recipe))


def test_clients_with_different_recipes_train_together():
    recipes = [RECIPE, Recipe(0.2, 5, 1, 0, 0.0, 0.0), Recipe(0.01, 16, 2, 9, 0.5, 1e-2)]
    jobs = [Job(client, TINY.samples(20, client), recipe, seed=client) for client, recipe in enumerate(recipes)]
    assert_trains_like_the_loop(TINY, jobs)


EVERY_PATH = pytest.mark.parametrize(
    "task",
    [
        pytest.param(TINY, id="narrow"),
        pytest.param(RandomTask(WideNet, (3, 4, 4)), id="channels-last"),
        pytest.param(RandomTask(make_lstm, (7,), tokens=20), id="mapped"),
    ],
)
ATTACKERS = [
    RECIPE,
    Recipe(0.1, 16, 2, 0, 0.9, 1e-4, radius=0.05),
    Recipe(0.1, 16, 2, 0, 0.9, 1e-4, loss_weight=0.5, distance_weight=0.5),
    Recipe(0.1, 8, 1, 0, 0.9, 1e-4, loss_weight=0.6, distance_weight=0.4, radius=0.1),
]


@pytest.mark.parametrize(
    "task",
    [TINY, RandomTask(WideNet, (3, 4, 4)), RandomTask(make_lstm, (7,), tokens=20)],
    ids=["narrow", "wide", "lstm"],
)
def test_constrained_attackers_train_together_with_honest_clients(task: RandomTask):
    jobs = [Job(client, task.samples(20, client), recipe, seed=client) for client, recipe in enumerate(ATTACKERS)]
    assert_trains_like_the_loop(task, jobs)


def test_a_diverged_attacker_does_not_affect_the_next_round():
    engine, loop = BatchedEngine(TINY, TINY.build_model()), LoopEngine(TINY, TINY.build_model())
    start = TINY.build_model().state_dict()
    diverging = Recipe(1e30, 16, 2, 0, 0.9, 1e-4, distance_weight=0.5, radius=1e20)
    engine.train(start, [Job(client, TINY.samples(20, client), diverging, seed=1) for client in range(4)])
    jobs = [Job(client, TINY.samples(20, client), recipe, seed=client) for client, recipe in enumerate(ATTACKERS)]
    assert_same(engine.train(start, jobs), loop.train(start, jobs))


def test_a_single_client_and_no_client():
    assert_trains_like_the_loop(TINY, make_jobs(TINY, (20,)))
    assert BatchedEngine(TINY, TINY.build_model()).train(TINY.build_model().state_dict(), []) == []


def test_rounds_with_different_clients_rates_and_weights_train_like_the_loop():
    engine, loop = BatchedEngine(TINY, TINY.build_model()), LoopEngine(TINY, TINY.build_model())
    weights = TINY.build_model().state_dict()
    models = []
    for number, counts in enumerate([(33, 7, 5, 40), (12, 34), (7, 40, 3), (1,), (5, 5, 5, 5, 70)]):
        recipe = Recipe(0.1 * 0.9**number, 16, 2, 0, 0.9, 1e-4)
        jobs = make_jobs(TINY, counts, recipe, first=number)
        expected = loop.train(weights, jobs)
        assert_same(engine.train(weights, jobs), expected)
        weights = expected[0]
        models.append(engine._batched)
    assert models[0] is models[1] is models[2], "fewer clients and another rate need no new model"
    assert len({id(model) for model in models}) == 3
    engine.close()
    assert engine._batched is None


def test_a_finished_client_does_not_change_any_more():
    task = RandomTask(TinyResidual, (1, 4, 4))
    start = task.build_model().state_dict()
    short, *long = make_jobs(task, (8, 90, 90, 90))
    one_step = Recipe(0.05, 32, 1, 0, 0.9, 1e-3)
    short = Job(short.client, short.samples, one_step, short.seed)
    others = [Job(job.client, job.samples, one_step, job.seed) for job in make_jobs(task, (8, 32, 32, 32))[1:]]
    after_its_step = BatchedEngine(task, task.build_model()).train(start, [short, *others])[0]
    after_the_round = BatchedEngine(task, task.build_model()).train(start, [short, *long])[0]
    for name, value in after_its_step.items():
        assert torch.equal(value, after_the_round[name]), name


@pytest.mark.parametrize("poisoned_samples", [5, 60])
def test_nan_in_one_client_does_not_affect_the_others(poisoned_samples: int):
    class Real(RandomTask):
        def prepare(self, x: Tensor) -> Tensor:
            return torch.where(x == 255, torch.nan, x.float() / 255)

    task = Real(TinyNet, (1, 4, 4))
    jobs = [
        Job(job.client, Samples(job.samples.x.clamp(max=254), job.samples.y), RECIPE, job.seed)
        for job in make_jobs(task, (40, poisoned_samples, 7, 20))
    ]
    jobs[1].samples.x.fill_(255)
    start = task.build_model().state_dict()
    found = BatchedEngine(task, task.build_model()).train(start, jobs)
    expected = LoopEngine(task, task.build_model()).train(start, jobs)
    assert all(weights.isnan().all() for weights in found.pop(1).values())
    assert all(weights.isnan().all() for weights in expected.pop(1).values())
    assert_same(found, expected)


def test_the_global_weights_and_the_callers_model_are_not_changed():
    task = RandomTask(make_lstm, (7,), tokens=20)
    model = task.build_model()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    engine = BatchedEngine(task, model)
    first = engine.train(start, make_jobs(task, (5, 9)))
    kept = [{name: value.clone() for name, value in weights.items()} for weights in first]
    engine.train(start, make_jobs(task, (6, 3)))
    assert_same(first, kept, atol=0)
    assert model.fused
    for name, value in model.state_dict().items():
        assert torch.equal(value, start[name])


class HostTraffic(TorchDispatchMode):
    """Records operations that a CUDA graph cannot capture: values copied between devices or read by the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        # A scalar from the host is allowed as an operand: it becomes an argument of the kernel.
        moved = len({tensor.device for tensor in tensors}) > 1 and "copy" in str(operation)
        if (
            moved
            or torch.Tag.data_dependent_output in operation.tags
            or torch.Tag.dynamic_output_shape in operation.tags
        ):
            self.found.append(str(operation))
        return result


@EVERY_KIND
def test_a_step_neither_copies_from_the_host_nor_waits_for_the_device(task: RandomTask, counts: tuple[int, ...]):
    engine = BatchedEngine(task, task.build_model())
    x, y = task.prepare(task.samples(4, 0).x).to("meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    batched = BatchedModel(task, engine._model, len(counts), x, y)
    with HostTraffic() as traffic:
        batched._step(len(counts))
    assert traffic.found == []


def test_host_traffic_finds_what_a_graph_cannot_capture():
    with HostTraffic() as traffic:
        torch.ones(3).to("meta")
        torch.ones(3).nonzero()
        torch.ones(()).item()
    assert len(traffic.found) == 3


@EVERY_KIND
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_replayed_graphs_train_like_the_loop(task: RandomTask, counts: tuple[int, ...], monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    start = {name: value.cuda() for name, value in task.build_model().state_dict().items()}
    engine = BatchedEngine(task, task.build_model().cuda())
    for first in (0, 1):
        jobs = make_jobs(task, counts, first=first)
        jobs = [Job(job.client, job.samples.to("cuda"), job.recipe, job.seed) for job in jobs]
        expected = LoopEngine(task, task.build_model().cuda()).train(start, jobs)
        assert_same(engine.train(start, jobs), expected, atol=1e-4)
        start = expected[0]
    assert engine._batched is not None
    assert engine._batched.graphs


@pytest.mark.parametrize(
    "task",
    [TINY, RandomTask(WideNet, (3, 4, 4)), RandomTask(make_lstm, (7,), tokens=20)],
    ids=["narrow", "wide", "lstm"],
)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_constrained_attackers_train_together_with_honest_clients(task: RandomTask, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    start = {name: value.cuda() for name, value in task.build_model().state_dict().items()}
    engine = BatchedEngine(task, task.build_model().cuda())
    for recipes in (ATTACKERS, [RECIPE] * 4, ATTACKERS):
        jobs = [Job(i, task.samples(20, i).to("cuda"), recipe, seed=i) for i, recipe in enumerate(recipes)]
        expected = LoopEngine(task, task.build_model().cuda()).train(start, jobs)
        assert_same(engine.train(start, jobs), expected, atol=1e-4)


def test_mapped_keyed_dropout_equals_keyed_dropout_of_each_client():
    layer, x = KeyedDropout(0.4, layer=2), torch.randn(3, 6, 5)
    keys = torch.tensor([step_key(seed, 4) for seed in range(3)], dtype=torch.int32)
    mapped = vmap(lambda key, x: torch.func.functional_call(layer, {"key": key}, (x,)))(keys, x)
    for client in range(3):
        set_key(layer, int(keys[client]))
        assert torch.equal(mapped[client], layer(x[client]))


@pytest.mark.parametrize(("norm", "shape"), [(nn.BatchNorm1d(3), (5, 3)), (nn.BatchNorm2d(3), (5, 3, 2, 4))])
def test_masked_batch_norm_is_batch_norm_of_the_real_samples(norm: nn.BatchNorm1d, shape: tuple[int, ...]):
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(shape)
    masked = MaskedBatchNorm(norm)
    masked.load_state_dict({name: value.clone() for name, value in norm.state_dict().items()})
    masked.running_mean, masked.running_var = masked.running_mean.clone(), masked.running_var.clone()
    masked.num_batches_tracked = masked.num_batches_tracked.clone()
    masked.real = torch.tensor([True, True, True, False, False])
    torch.testing.assert_close(masked(x)[:3], norm(x[:3]))
    for name, value in norm.state_dict().items():
        torch.testing.assert_close(masked.state_dict()[name], value)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.LSTM(3, 4)),
        nn.Sequential(nn.Linear(3, 4), nn.Dropout2d(0.5)),
        nn.Sequential(nn.BatchNorm1d(3, momentum=None)),
        nn.Sequential(nn.InstanceNorm2d(3, affine=True, track_running_stats=True)),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double()),
        nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)),
    ],
    ids=["lstm", "dropout2d", "cumulative-batch-norm", "instance-norm", "two-dtypes", "frozen-layer"],
)
def test_a_model_without_a_batched_form_is_rejected(model: nn.Module):
    assert not BatchedEngine.supports(model)
    with pytest.raises(ConfigError, match="loop engine"):
        BatchedEngine(TINY, model)
