"""Rounds per second: this project's engines, a straightforward PyTorch loop, and Flower's simulation, side by side.

    python benchmarks/simulation.py --task mnist --model lenet --clients 10 --samples 300 --rounds 5

Every runner trains the same clients on the same samples (two epochs, batches of 32, SGD with momentum and weight
decay) and averages their weights. The rounds of ours and of the plain loop alternate, so that a machine that is busy
with something else slows both; Flower's run as one simulation before or after, as `--flower` says. Each figure is the
median over the rounds after the first. `--device cuda` leaves Flower out.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from g2uardfl import aggregators, tasks
from g2uardfl.core.errors import DataError
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples, Task
from g2uardfl.training.engine import Engine, LoopEngine
from g2uardfl.training.local import Job, Recipe, share_predicted

DEFAULT_MODELS = {"mnist": "lenet", "cifar10": "vgg9", "digits": "cnn"}
TASK_OF_MODEL = {"lenet": "mnist", "simplenet": "mnist", "vgg9": "cifar10", "resnet18": "cifar10", "cnn": "digits"}
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
EVALUATED_ROUNDS = 2
"""Evaluation is timed in these rounds only: it takes as long as training."""
SUBREAPER = 36
"""prctl's number for it: processes whose parent ends become children of this one."""

State = dict[str, Tensor]


class Workload:
    """The same clients, samples and recipe for every runner."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.task: Task = tasks.create(options.task, model=options.model)
        defaults = self.task.defaults
        self.recipe = Recipe(defaults.lr, options.batch_size, options.epochs, 0, defaults.momentum, 1e-4)
        count = options.clients * options.samples
        generator = torch.Generator().manual_seed(0)
        try:
            train, test = self.task.train, self.task.test
            self.data = f"real {options.task} data"
        except DataError:
            shape = SHAPES[options.task]
            train, test = (random_samples(number, shape, generator) for number in (count, 10_000))
            self.data = f"random tensors of {options.task}'s shape"
        order = torch.randperm(len(train), generator=generator)[:count]
        if len(order) < count:
            raise SystemExit(f"{options.task} has {len(train)} samples only: use fewer clients or samples")
        self.clients = [train.take(part).to(options.device) for part in order.split(options.samples)]
        self.test = test.to(options.device)
        self.start = {name: value.to(options.device) for name, value in fresh_weights(self.task, 0).items()}

    def jobs(self, round_number: int) -> list[Job]:
        """The training jobs of the clients of a round."""
        return [
            Job(client, samples, self.recipe, round_number * 1000 + client)
            for client, samples in enumerate(self.clients)
        ]


def random_samples(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Samples:
    x = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    return Samples(x, torch.randint(0, 10, (count,), generator=generator))


class Ours:
    """One of our engines with FedAvg (or another defence), each part timed apart."""

    def __init__(self, name: str, engine: Engine, workload: Workload, defense: str, threads: int) -> None:
        self.name = name
        self.engine = engine
        self.workload = workload
        self.threads = threads
        self.defense = aggregators.create(defense)
        self.weights = workload.start
        self.model = workload.task.build_model().to(workload.test.y.device)
        self.parts: dict[str, list[float]] = {"train": [], "defend": [], "evaluate": []}

    def round(self, number: int) -> float:
        """Seconds of training and defence; evaluation is timed too but the other runners do none."""
        torch.set_num_threads(self.threads)
        jobs = self.workload.jobs(number)
        began = now(self.model)
        trained = dict(zip([job.client for job in jobs], self.engine.train(self.weights, jobs), strict=True))
        trained_at = now(self.model)
        result = self.defense.aggregate(self.weights, trained, {job.client: len(job.samples) for job in jobs})
        self.weights = dict(result.weights)
        defended_at = now(self.model)
        if number <= EVALUATED_ROUNDS:
            self.model.load_state_dict(self.weights)
            share_predicted(self.workload.task, self.model, self.workload.test)
            self.parts["evaluate"].append(now(self.model) - defended_at)
        self.parts["train"].append(trained_at - began)
        self.parts["defend"].append(defended_at - trained_at)
        return defended_at - began


class PlainLoop:
    """A straightforward loop: a module, torch's SGD and dropout, tensors on the device, batches by index."""

    def __init__(self, workload: Workload, threads: int) -> None:
        self.name = f"plain PyTorch loop, {threads} thread{'s' if threads > 1 else ''}"
        self.workload = workload
        self.threads = threads
        self.model = workload.task.build_model().to(workload.test.y.device)
        self.weights = workload.start

    def round(self, number: int) -> float:
        """Seconds of training and averaging."""
        torch.set_num_threads(self.threads)
        torch.manual_seed(number)
        began = now(self.model)
        trained = [
            train_plainly(self.workload.task, self.model, self.weights, samples, self.workload.recipe)
            for samples in self.workload.clients
        ]
        self.weights = {name: torch.stack([one[name] for one in trained]).mean(dim=0) for name in self.weights}
        return now(self.model) - began


def train_plainly(task: Task, model: nn.Module, weights: State, samples: Samples, recipe: Recipe) -> State:
    """Local training of one client."""
    model.load_state_dict(weights)
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    for _ in range(recipe.epochs):
        order = torch.randperm(len(samples), device=samples.y.device)
        for batch in order.split(recipe.batch_size):
            optimizer.zero_grad()
            task.loss(model(task.prepare(samples.x[batch])), samples.y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def now(model: nn.Module) -> float:
    """The time when the model's device has finished all its work."""
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def our_engines(options: argparse.Namespace, workload: Workload, cores: int) -> list[Ours]:
    def ours(name: str, engine: Engine, threads: int) -> Ours:
        return Ours(f"ours, {name}", engine, workload, options.defense, threads)

    def model() -> nn.Module:
        return workload.task.build_model().to(options.device)

    wanted = {
        "loop": lambda: ours("LoopEngine", LoopEngine(workload.task, model()), cores),
        "workers": lambda: ours(f"WorkerEngine({cores})", worker_engine(workload.task, model(), cores), cores),
        "batched": lambda: ours("BatchedEngine", batched_engine(workload.task, model()), cores),
    }
    automatic = ("batched",) if options.device.startswith("cuda") else ("loop", "workers")
    names: Sequence[str] = automatic if options.engine == "auto" else (options.engine,)
    return [wanted[name]() for name in names]


def worker_engine(task: Task, model: nn.Module, workers: int) -> Engine:
    from g2uardfl.training.workers import WorkerEngine

    return WorkerEngine(task, model, workers)


def batched_engine(task: Task, model: nn.Module) -> Engine:
    from g2uardfl.training.batched import BatchedEngine

    return BatchedEngine(task, model)


def measure(runners: Sequence[Ours | PlainLoop], rounds: int) -> dict[str, float]:
    """Median seconds per round of each runner, their rounds alternating; the first round warms up."""
    seconds: dict[str, list[float]] = {runner.name: [] for runner in runners}
    for number in range(rounds + 1):
        for runner in runners:
            taken = runner.round(number)
            if number:
                seconds[runner.name].append(taken)
            print(f"  round {number}: {runner.name:40s} {taken:8.3f} s", file=sys.stderr, flush=True)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def flower_rounds(options: argparse.Namespace) -> None:
    """Flower's simulation of the same rounds; prints the seconds per round as JSON. Runs in a process of its own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    workload = Workload(options)
    times = Path(options.flower_times)
    client_app = ClientApp()
    kept: dict[str, nn.Module] = {}

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        samples = workload.clients[int(context.node_config["partition-id"])]
        model = kept.setdefault("model", workload.task.build_model())
        weights = message.content["arrays"].to_torch_state_dict()
        trained = train_plainly(workload.task, model, weights, samples, workload.recipe)
        content = {"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": len(samples)})}
        return Message(content=RecordDict(content), reply_to=message)

    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        marks: list[float] = []

        def mark(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            marks.append(time.perf_counter())
            times.write_text(json.dumps([after - before for before, after in itertools.pairwise(marks)]))
            return MetricRecord({})

        FedAvg(fraction_evaluate=0.0, min_train_nodes=options.clients, min_available_nodes=options.clients).start(
            grid=grid, initial_arrays=ArrayRecord(workload.start), num_rounds=options.rounds + 1, evaluate_fn=mark
        )

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=options.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


def flower_seconds(options: argparse.Namespace, arguments: Sequence[str]) -> float | None:
    """Median seconds per round of Flower's simulation after its first round, None where it is not installed."""
    if options.device != "cpu" or importlib.util.find_spec("flwr") is None:
        return None
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        log = Path(folder) / "log"
        with children_ended(), log.open("w") as output, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, __file__, *arguments, "--flower-times", str(times)],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=options.flower_timeout,
                check=False,
            )
        if not times.exists():
            print(f"Flower's simulation failed:\n{log.read_text()[-2000:]}", file=sys.stderr)
            return None
        seconds = json.loads(times.read_text())
    for number, taken in enumerate(seconds):
        print(f"  round {number}: {'Flower':40s} {taken:8.3f} s", file=sys.stderr)
    return statistics.median(seconds[1:] or seconds)


class children_ended:  # noqa: N801 - reads as a statement
    """Ends every process that was started inside, also those whose own parent has ended (Linux)."""

    def __enter__(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        self.before = set(descendants(os.getpid()))

    def __exit__(self, *_: object) -> None:
        for _attempt in range(50):
            left = [process for process in descendants(os.getpid()) if process not in self.before]
            if not left:
                return
            for process in left:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.1)


def descendants(process: int) -> list[int]:
    """The ids of all processes below `process`."""
    children: list[int] = []
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += [int(child) for child in listing.read_text().split()]
    return children + [lower for child in children for lower in descendants(child)]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--task", default="", choices=["", *DEFAULT_MODELS])
    parser.add_argument("--model", default="", choices=["", *TASK_OF_MODEL])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto", choices=["auto", "loop", "workers", "batched"])
    parser.add_argument(
        "--defense", default="fedavg", help="what ours aggregates with; ratios are fair with fedavg only"
    )
    parser.add_argument("--flower", default="after", choices=["before", "after", "off"])
    parser.add_argument("--flower-timeout", type=float, default=900.0, help="seconds")
    parser.add_argument("--flower-times", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.task = options.task or TASK_OF_MODEL.get(options.model, "mnist")
    options.model = options.model or DEFAULT_MODELS[options.task]
    if options.flower_times:
        flower_rounds(options)
        return

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that what was started is ended
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flower = flower_seconds(options, arguments) if options.flower == "before" else None
    workload = Workload(options)
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    print(
        f"{options.task}/{options.model}, {options.clients} clients x {options.samples} samples x {options.epochs} "
        f"epochs, {workload.data}, {options.device}, {cores} cores, load before {load}, torch {torch.__version__}"
    )
    ours = our_engines(options, workload, cores)
    plain = [PlainLoop(workload, threads) for threads in sorted({1, cores} if options.device == "cpu" else {cores})]
    try:
        seconds = measure([*ours, *plain], options.rounds)
    finally:
        for runner in ours:
            runner.engine.close()
    if options.flower == "after":
        flower = flower_seconds(options, arguments)
    report(ours, plain, seconds, flower)


def report(ours: Sequence[Ours], plain: Sequence[PlainLoop], seconds: dict[str, float], flower: float | None) -> None:
    fastest: Callable[[Sequence[Ours | PlainLoop]], Ours | PlainLoop] = lambda runners: min(  # noqa: E731
        runners, key=lambda runner: seconds[runner.name]
    )
    best, rival = fastest(ours), fastest(plain)
    rows = [(runner.name, seconds[runner.name]) for runner in [*ours, *plain]]
    if flower is not None:
        rows.append(("Flower simulation (Ray)", flower))
    print(f"\n{'runner':40s} {'s/round':>9s} {'rounds/s':>9s} {'ours is':>9s}")
    for name, taken in rows:
        print(f"{name:40s} {taken:9.3f} {1 / taken:9.3f} {taken / seconds[best.name]:8.2f}x")
    for runner in ours:
        parts = ", ".join(f"{part} {statistics.median(taken[1:]):.3f} s" for part, taken in runner.parts.items())
        print(f"{runner.name}: {parts}")
    print(f"best of ours against the plain loop's best: {seconds[rival.name] / seconds[best.name]:.2f}x")
    if flower is not None:
        print(f"best of ours against Flower: {flower / seconds[best.name]:.2f}x")


if __name__ == "__main__":
    main(sys.argv[1:])
