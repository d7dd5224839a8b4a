"""Clients trained in worker processes: the same weights as one after the other, and no process left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from g2uardfl import tasks
from g2uardfl.core.errors import ConfigError, G2uardFLError
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples, Task, TrainingDefaults
from g2uardfl.training.engine import LoopEngine
from g2uardfl.training.local import Job, Recipe
from g2uardfl.training.workers import WorkerEngine

RECIPE = Recipe(lr=0.05, batch_size=16, epochs=2, steps=0, momentum=0.9, weight_decay=1e-4)


class Patches(Task):
    """Random patches, with all that makes training depend on more than weights and data."""

    name = "patches"
    models = ("net",)
    defaults = TrainingDefaults(lr=0.05)
    num_classes = 4

    def load_train(self):
        raise AssertionError("a worker has no need for the data")

    load_test = load_backdoor_train = load_backdoor_test = load_train

    def build_model(self):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(8 * 36, 32),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(32, 4),
        )

    def prepare(self, x):
        return x.float() / 255

    def augment(self, x, generator):
        if (x == 255).all():
            raise ValueError("too bright")
        mirrored = torch.rand(len(x), generator=generator) < 0.5
        return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)


def random_samples(count, shape=(1, 8, 8), classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 255, (count, *shape), generator=generator, dtype=torch.uint8)
    return Samples(x, torch.randint(0, classes, (count,), generator=generator))


def assert_same(found, expected):
    assert len(found) == len(expected)
    for job, (ours, weights) in enumerate(zip(found, expected, strict=True)):
        assert list(ours) == list(weights)
        for name, value in weights.items():
            assert ours[name].dtype == value.dtype
            assert torch.equal(ours[name], value), (job, name)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def patches():
    return Patches()


@pytest.fixture(scope="module")
def engine(patches):
    engine = WorkerEngine(patches, patches.build_model(), workers=2)
    yield engine
    engine.close()


@pytest.fixture
def jobs():
    """Clients with very different amounts of data."""
    return [Job(7 * i, random_samples(count, seed=i), RECIPE, seed=i) for i, count in enumerate([40, 2, 150, 17, 33])]


@pytest.fixture
def weights(patches):
    return fresh_weights(patches, 1)


def test_weights_buffers_and_counters_are_those_of_the_loop_bit_for_bit(engine, patches, weights, jobs):
    loop = LoopEngine(patches, patches.build_model())
    for _ in range(2):
        expected = loop.train(weights, jobs)
        found = engine.train(weights, jobs)
        assert_same(found, expected)
        assert found[2]["1.num_batches_tracked"] == weights["1.num_batches_tracked"] + 20
        weights = found[2]


def test_neither_the_number_of_workers_nor_the_order_of_the_jobs_matters(engine, patches, weights, jobs):
    expected = engine.train(weights, jobs)
    backwards = engine.train(weights, jobs[::-1])
    assert_same(backwards[::-1], expected)
    alone = WorkerEngine(patches, patches.build_model(), workers=1)
    assert_same(alone.train(weights, jobs), expected)
    alone.close()


def test_results_are_not_overwritten_by_the_next_round(engine, weights, jobs):
    first = engine.train(weights, jobs[:2])
    kept = [{name: value.clone() for name, value in found.items()} for found in first]
    engine.train(first[0], jobs)
    assert_same(first, kept)


def test_a_client_whose_samples_change_is_trained_on_the_new_ones(engine, patches, weights, jobs):
    engine.train(weights, jobs)
    changed = [
        replace(job, samples=random_samples(count, seed=50 + count))
        for job, count in zip(jobs, (90, 1 + 1, 3, 200, 33), strict=True)
    ]
    assert_same(engine.train(weights, changed), LoopEngine(patches, patches.build_model()).train(weights, changed))


def test_samples_that_change_every_round_do_not_use_up_memory(engine, weights, jobs):
    for i in range(20):
        engine.train(weights, [replace(jobs[0], samples=random_samples(20 + 13 * (i % 7), seed=i))])
    assert len(engine._memory.blocks) == 2  # the rows and one block of samples


def test_no_jobs_give_no_weights(engine, weights):
    assert engine.train(weights, []) == []


def test_a_client_with_two_jobs_in_a_round_is_trained_on_both_sets_of_samples(engine, patches, weights, jobs):
    twice = [jobs[0], replace(jobs[0], samples=random_samples(40, seed=99)), *jobs[1:]]
    for _ in range(2):
        assert_same(engine.train(weights, twice), LoopEngine(patches, patches.build_model()).train(weights, twice))


def test_steps_count_instead_of_epochs_where_they_are_given(engine, patches, weights, jobs):
    few = [replace(job, recipe=replace(RECIPE, steps=3)) for job in jobs]
    assert_same(engine.train(weights, few), LoopEngine(patches, patches.build_model()).train(weights, few))


def test_digits_and_lenet_train_as_in_the_loop_with_clients_of_one_sample():
    digits = tasks.create("digits")
    mnist = tasks.create("mnist", model="lenet")
    images = random_samples(40, (1, 28, 28), 10)
    one = torch.arange(1)
    for task, samples in ((digits, [digits.train.take(one), digits.train.take(torch.arange(70))]),
                          (mnist, [images.take(one), images])):  # fmt: skip
        jobs = [Job(i, client, RECIPE, seed=i) for i, client in enumerate(samples)]
        weights = fresh_weights(task, 0)
        engine = WorkerEngine(task, task.build_model(), workers=1)
        assert_same(engine.train(weights, jobs), LoopEngine(task, task.build_model()).train(weights, jobs))
        engine.close()


def test_close_ends_all_processes_and_a_closed_engine_says_so(patches, weights, jobs):
    engine = WorkerEngine(patches, patches.build_model(), workers=2)
    processes = [worker.process for worker in engine._crew]
    engine.train(weights, jobs)
    assert all(process.is_alive() for process in processes)
    engine.close()
    engine.close()
    assert not any(process.is_alive() for process in processes)
    with pytest.raises(G2uardFLError, match="closed"):
        engine.train(weights, jobs)


def test_an_engine_that_nobody_holds_takes_its_processes_with_it(patches):
    engine = WorkerEngine(patches, patches.build_model(), workers=1)
    process = engine._crew[0].process
    del engine
    gc.collect()
    assert not process.is_alive()


@pytest.mark.parametrize("busy", [True, False])
def test_a_killed_worker_is_one_clear_error_within_seconds(patches, weights, jobs, busy):
    engine = WorkerEngine(patches, patches.build_model(), workers=2)
    victim = engine._crew[0].process
    if busy:
        engine.train(weights, jobs)
        endless = [replace(job, recipe=replace(RECIPE, steps=10**9)) for job in jobs]
        code = f"import os, signal, time; time.sleep(0.5); os.kill({victim.pid}, signal.SIGKILL)"
        subprocess.Popen([sys.executable, "-c", code])
    else:
        endless = jobs
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
    began = time.monotonic()
    with pytest.raises(G2uardFLError, match=f"worker process {victim.pid} was killed by SIGKILL"):
        engine.train(weights, endless)
    assert time.monotonic() - began < 10
    assert not any(worker.process.is_alive() for worker in engine._crew)


def test_an_exception_in_a_worker_comes_back_with_its_message(patches, weights, jobs):
    engine = WorkerEngine(patches, patches.build_model(), workers=1)
    bright = Samples(torch.full((5, 1, 8, 8), 255, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(G2uardFLError, match="client 3 could not be trained: ValueError: too bright"):
        engine.train(weights, [*jobs, Job(3, bright, RECIPE, 0)])
    assert not any(worker.process.is_alive() for worker in engine._crew)


def test_weights_of_another_model_are_refused(patches, weights, jobs):
    engine = WorkerEngine(patches, patches.build_model(), workers=1)
    with pytest.raises(G2uardFLError, match=r"0\.bias"):
        engine.train({name: value for name, value in weights.items() if name != "0.bias"}, jobs)


def test_no_workers_are_refused(patches):
    with pytest.raises(ConfigError, match="workers=0"):
        WorkerEngine(patches, patches.build_model(), workers=0)


PROGRAM = """
import sys, torch
from g2uardfl import tasks
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.training.local import Job, Recipe
from g2uardfl.training.workers import WorkerEngine

if __name__ == "__main__":
    task = tasks.create("digits")
    engine = WorkerEngine(task, task.build_model(), workers=2)
    jobs = [Job(i, task.train, Recipe(0.1, 16, 1, 10**9, 0.9, 0), i) for i in range(4)]
    weights = fresh_weights(task, 0)
    print(*[worker.process.pid for worker in engine._crew], flush=True)
    engine.train(weights, jobs)
"""


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_main_one(tmp_path, sent):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    main = subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    workers = [int(pid) for pid in main.stdout.readline().split()]
    time.sleep(0.3)
    if sent == signal.SIGINT:
        os.killpg(main.pid, sent)  # as a terminal does
    else:
        main.send_signal(sent)
    _, errors = main.communicate(timeout=20)
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)
    if sent == signal.SIGINT:
        assert errors.count("Traceback") == 1
        assert errors.rstrip().endswith("KeyboardInterrupt")


def test_memory_is_used_again_once_nobody_holds_the_weights(engine, weights, jobs):
    def address(trained):
        return trained[0]["0.weight"].data_ptr()

    first = engine.train(weights, jobs)
    second = engine.train(weights, jobs)
    assert address(second) != address(first)
    one_value, before = second[4]["8.bias"][1:], address(second)
    del second
    third = engine.train(weights, jobs)
    assert address(third) != before
    before = address(third)
    del one_value, third
    assert address(engine.train(weights, jobs)) == before
