"""Clients trained in worker processes: the same weights as in the loop, and no process left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from multiprocessing import parent_process

import psutil
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
from helpers.processes import PATIENCE, running, wait_until_ended

RECIPE = Recipe(lr=0.05, batch_size=16, epochs=2, steps=0, momentum=0.9, weight_decay=1e-4)
FOR_DAYS = replace(RECIPE, steps=10**9)
TOO_BRIGHT, DEADLY = 255, 254
"""Samples that consist of this value make `FragilePatches` raise an error or kill the worker process."""


class FragilePatches(Task):
    """Random patches; training depends on BatchNorm statistics, dropout and augmentation."""

    name = "patches"
    models = ("net",)
    defaults = TrainingDefaults(lr=0.05)
    num_classes = 4

    def load_train(self):
        raise AssertionError("a worker does not load the data")

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
        if (x == TOO_BRIGHT).all():
            raise ValueError("too bright")
        if (x == DEADLY).all() and parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        mirrored = torch.rand(len(x), generator=generator) < 0.5
        return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)


def random_samples(count, shape=(1, 8, 8), classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 255, (count, *shape), generator=generator, dtype=torch.uint8)
    return Samples(x, torch.randint(0, classes, (count,), generator=generator))


def constant_samples(value, count=5):
    return Samples(torch.full((count, 1, 8, 8), value, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64))


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
def fragile():
    return FragilePatches()


@pytest.fixture(scope="module")
def engine(fragile):
    with closing(WorkerEngine(fragile, fragile.build_model(), workers=2)) as engine:
        yield engine


@pytest.fixture
def own_engine(fragile):
    """An engine of one worker for one test, which may break it."""
    with closing(WorkerEngine(fragile, fragile.build_model(), workers=1)) as engine:
        yield engine


@pytest.fixture
def own_pair(fragile):
    """The same with two workers."""
    with closing(WorkerEngine(fragile, fragile.build_model(), workers=2)) as engine:
        yield engine


@pytest.fixture
def jobs():
    """Clients with very different numbers of samples."""
    return [Job(7 * i, random_samples(count, seed=i), RECIPE, seed=i) for i, count in enumerate([40, 2, 150, 17, 33])]


@pytest.fixture
def weights(fragile):
    return fresh_weights(fragile, 1)


def test_weights_buffers_and_counters_equal_those_of_the_loop_bit_for_bit(engine, fragile, weights, jobs):
    loop = LoopEngine(fragile, fragile.build_model())
    for _ in range(2):
        expected = loop.train(weights, jobs)
        found = engine.train(weights, jobs)
        assert_same(found, expected)
        assert found[2]["1.num_batches_tracked"] == weights["1.num_batches_tracked"] + 20
        weights = found[2]


def test_weights_depend_neither_on_the_number_of_workers_nor_on_the_order_of_jobs(engine, fragile, weights, jobs):
    expected = engine.train(weights, jobs)
    reverse = engine.train(weights, jobs[::-1])
    assert_same(reverse[::-1], expected)
    with closing(WorkerEngine(fragile, fragile.build_model(), workers=1)) as single:
        assert_same(single.train(weights, jobs), expected)


def test_results_are_not_overwritten_by_the_next_round(engine, weights, jobs):
    first = engine.train(weights, jobs[:2])
    kept = [{name: value.clone() for name, value in found.items()} for found in first]
    engine.train(first[0], jobs)
    assert_same(first, kept)


def test_clients_whose_samples_change_are_trained_on_the_new_ones(engine, fragile, weights, jobs):
    engine.train(weights, jobs)
    changed = [
        replace(job, samples=random_samples(count, seed=50 + count))
        for job, count in zip(jobs, (90, 2, 3, 200, 33), strict=True)
    ]
    assert_same(engine.train(weights, changed), LoopEngine(fragile, fragile.build_model()).train(weights, changed))


def test_samples_that_change_every_round_reuse_the_same_memory(engine, weights, jobs):
    for i in range(20):
        engine.train(weights, [replace(jobs[0], samples=random_samples(20 + 13 * (i % 7), seed=i))])
    assert len(engine._memory.blocks) == 2  # one of weights and one of samples


def test_no_jobs_give_no_weights(engine, weights):
    assert engine.train(weights, []) == []


def test_a_client_with_two_jobs_in_a_round_is_trained_on_both_sets_of_samples(engine, fragile, weights, jobs):
    twice = [jobs[0], replace(jobs[0], samples=random_samples(40, seed=99)), *jobs[1:]]
    for _ in range(2):
        assert_same(engine.train(weights, twice), LoopEngine(fragile, fragile.build_model()).train(weights, twice))


def test_the_number_of_steps_replaces_the_number_of_epochs(engine, fragile, weights, jobs):
    few = [replace(job, recipe=replace(RECIPE, steps=3)) for job in jobs]
    assert_same(engine.train(weights, few), LoopEngine(fragile, fragile.build_model()).train(weights, few))


@pytest.mark.slow
def test_lenet_trains_like_the_loop_even_with_a_client_of_one_sample():
    task, images = tasks.create("mnist", model="lenet"), random_samples(40, (1, 28, 28), 10)
    jobs = [Job(i, client, RECIPE, seed=i) for i, client in enumerate((images.take(torch.arange(1)), images))]
    weights = fresh_weights(task, 0)
    with closing(WorkerEngine(task, task.build_model(), workers=1)) as engine:
        assert_same(engine.train(weights, jobs), LoopEngine(task, task.build_model()).train(weights, jobs))


@pytest.mark.slow
def test_close_ends_all_processes_and_a_closed_engine_raises(own_engine, weights, jobs):
    processes = [worker.process for worker in own_engine._crew]
    own_engine.train(weights, jobs)
    assert all(process.is_alive() for process in processes)
    own_engine.close()
    own_engine.close()
    assert not any(process.is_alive() for process in processes)
    with pytest.raises(G2uardFLError, match="closed"):
        own_engine.train(weights, jobs)


def test_an_engine_ends_its_processes_when_it_is_garbage(fragile):
    engine = WorkerEngine(fragile, fragile.build_model(), workers=1)
    process = engine._crew[0].process
    del engine
    gc.collect()
    assert not process.is_alive()


def test_a_worker_killed_between_rounds_is_reported(own_engine, weights, jobs):
    victim = own_engine._crew[0].process
    victim.kill()
    victim.join()
    with pytest.raises(G2uardFLError, match=f"worker process {victim.pid} was killed by SIGKILL"):
        own_engine.train(weights, jobs)
    assert not any(worker.process.is_alive() for worker in own_engine._crew)


def test_a_worker_killed_in_its_job_is_reported_at_once(own_pair, weights, jobs):
    """The other worker has a job for days, which is not waited for."""
    pids = [worker.process.pid for worker in own_pair._crew]
    endless = replace(jobs[0], recipe=FOR_DAYS)
    deadly = Job(1, constant_samples(DEADLY), RECIPE, 0)
    watchdog = threading.Timer(10 * PATIENCE, own_pair.close)
    watchdog.start()
    try:
        with pytest.raises(G2uardFLError, match=rf"worker process ({pids[0]}|{pids[1]}) was killed by SIGKILL"):
            own_pair.train(weights, [endless, deadly])
    finally:
        watchdog.cancel()
    assert not any(worker.process.is_alive() for worker in own_pair._crew)


@pytest.mark.slow
def test_an_exception_in_a_worker_is_raised_with_its_message(own_engine, weights, jobs):
    bright = Job(3, constant_samples(TOO_BRIGHT), RECIPE, 0)
    with pytest.raises(G2uardFLError, match="client 3 could not be trained: ValueError: too bright"):
        own_engine.train(weights, [*jobs, bright])
    assert not any(worker.process.is_alive() for worker in own_engine._crew)


def test_weights_of_another_model_are_rejected(own_engine, weights, jobs):
    with pytest.raises(G2uardFLError, match=r"0\.bias"):
        own_engine.train({name: value for name, value in weights.items() if name != "0.bias"}, jobs)


def test_zero_workers_are_rejected(fragile):
    with pytest.raises(ConfigError, match="workers=0"):
        WorkerEngine(fragile, fragile.build_model(), workers=0)


PROGRAM = """
import os, sys, time
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.digits import Digits
from g2uardfl.training.local import Job, Recipe
from g2uardfl.training.workers import WorkerEngine


class Announced(Digits):
    announced = False

    def prepare(self, x):
        if not self.announced:
            self.announced = True
            os.write(1, f"{os.getpid()}\\n".encode())  # in one piece, since both workers write
        return super().prepare(x)


if __name__ == "__main__":
    task = Announced()
    jobs = [Job(i, task.train, Recipe(0.1, 16, 1, 10**9, 0.9, 0), i) for i in range(4)]
    weights = fresh_weights(task, 0)
    engine = WorkerEngine(task, task.build_model(), workers=2)
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(1000)
    engine.train(weights, jobs)
"""


@pytest.fixture
def main_process(tmp_path, request):
    """Start a program that trains for days with two workers; return it and its workers, which are in training."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    arguments = getattr(request, "param", [])
    with running([sys.executable, program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as main:
        yield main, [psutil.Process(int(main.stdout.readline())) for _ in range(2)]


@pytest.fixture(params=[False, True], ids=["SIGINT-handled", "SIGINT-ignored"])
def sigint_ignored(request):
    """Run the test in the foreground and as a background job of a shell, which ignores SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    if request.param:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("sigint_ignored")
def test_an_interrupted_program_ends_its_workers_and_prints_one_traceback(main_process):
    main, workers = main_process
    os.killpg(main.pid, signal.SIGINT)  # as a terminal does
    errors = main.communicate(timeout=PATIENCE)[1]
    assert wait_until_ended(workers, PATIENCE) == []
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("main_process", "sent"),
    [
        pytest.param([], signal.SIGTERM, id="SIGTERM"),
        pytest.param([], signal.SIGKILL, id="SIGKILL"),
        pytest.param(["fork"], signal.SIGKILL, id="SIGKILL-while-a-forked-child-lives"),
    ],
    indirect=["main_process"],
)
def test_workers_end_when_their_parent_is_killed(main_process, sent):
    main, workers = main_process
    main.send_signal(sent)
    main.wait(PATIENCE)
    assert wait_until_ended(workers, PATIENCE) == []


def test_memory_is_reused_when_no_weights_in_it_exist_any_more(engine, weights, jobs):
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
