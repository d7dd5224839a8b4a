"""A sweep: the runs of a grid in parallel, each in its own directory; finished runs are kept.

A run directory is named by the settings in which the runs differ, and a hash of the whole config. The hash identifies
the run, so that a grid can be extended and changed: runs that it still contains are found under their old names.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

from .. import tasks
from ..core.errors import ConfigError
from ..simulation.central import Progress
from ..simulation.checkpoint import config_digest
from ..simulation.config import RunConfig
from ..simulation.environment import usable_device
from ..simulation.naming import attack_name, defense_name
from ..simulation.run import Simulation
from ..simulation.samples import limit_samples
from ..simulation.start import converged_start
from ..tasks.base import Task
from . import trackers
from .job import Job
from .pool import Observer, Pool
from .ray_pool import RayPool
from .results import NAMED, shown_settings

_HASH_LENGTH = 8
_NAME_LENGTH = 120
"""The name of a directory has at most this number of characters before the hash."""


class Sweep:
    """The runs of a sweep, and their execution.

    Parameters
    ----------
    configs
        The config of each run; repetitions are left out.
    out
        The folder of the run directories.
    jobs
        The number of runs that are executed at the same time (default: 1).
    record
        Whether to record the input of the defence in each run (default: False).
    time_limit
        Seconds after which a run ends early (default: no limit).
    logs
        Trackers and callbacks, as in `g2uardfl run --log` (default: none).
    ray
        The address of a Ray cluster that executes the runs, see `RayPool`; `jobs` is then the number of runs that share
        a GPU (default: None, processes of this machine).

    Attributes
    ----------
    runs
        All runs.
    paths
        The run directory of each config; that of a repetition is the same.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        out: str | Path,
        *,
        jobs: int = 1,
        record: bool = False,
        time_limit: float = math.inf,
        logs: Sequence[str] = (),
        ray: str | None = None,
    ) -> None:
        if jobs < 1:
            raise ConfigError(f"jobs={jobs} is not allowed: use at least 1")
        trackers.create_all(logs)  # report an unknown name now, not in each run
        planned = plan(configs, Path(out))
        self.paths = [path for path, _ in planned]
        self.runs = [Job(config, path, record, time_limit, tuple(logs)) for path, config in dict(planned).items()]
        self.unfinished = [run for run in self.runs if not run.is_finished]
        self.jobs = jobs
        self._ray = ray
        self._pool: Pool | RayPool | None = None

    def prepare(self, progress: Progress | None = None) -> None:
        """Train the converged models that the runs start from and that are not cached.

        ConfigError if this machine does not have the device of a run.

        Parameters
        ----------
        progress
            Called while a model is trained, with the numbers of steps done and of all steps (default: None).
        """
        if self._ray is None:
            for device in {run.config.device for run in self.unfinished}:
                usable_device(device)
        known = set()
        for run in self.unfinished:
            config = run.config
            key = repr((config.task, config.model, config.data_dir, config.sample_limit, config.task_settings))
            if config.start == "converged" and key not in known:
                known.add(key)
                converged_start(_task(config), device=config.device, progress=progress)

    def execute(self, observer: Observer) -> None:
        """Execute the runs that are not finished; one that fails does not stop the others."""
        jobs = self.unfinished
        size = min(self.jobs, len(jobs))
        if size > 1 or self._ray is not None:
            # Runs side by side share the cores, so each trains its clients in its own process.
            jobs = [dataclasses.replace(job, config=dataclasses.replace(job.config, workers=1)) for job in jobs]
        self._pool = Pool(jobs, size, observer) if self._ray is None else RayPool(jobs, self._ray, self.jobs, observer)
        self._pool.run()

    def stop(self) -> None:
        """Stop after the current round of each run; `g2uardfl sweep` continues later. For signal handlers."""
        if self._pool is not None:
            self._pool.stop()


def plan(configs: Sequence[RunConfig], out: Path) -> list[tuple[Path, RunConfig]]:
    """The directory of the run of each config, with that config as resolved.

    Raises `ConfigError` for the first config that cannot be run.
    """
    resolved = _all_resolved(configs)
    digests = [config_digest(config) for config in resolved]
    distinct = dict(zip(digests, resolved, strict=True))
    existing = {path.name[-_HASH_LENGTH:]: path for path in sorted(out.glob(f"*-{'[0-9a-f]' * _HASH_LENGTH}"))}
    places = {}
    for digest, name in zip(distinct, _names(list(distinct.values())), strict=True):
        identity = digest[:_HASH_LENGTH]
        places[digest] = existing.get(identity, out / f"{name}-{identity}")
    return [(places[digest], config) for digest, config in zip(digests, resolved, strict=True)]


def _names(configs: Sequence[RunConfig]) -> list[str]:
    """The name of each run: its settings that differ; attack and defence where nothing differs."""
    settings = shown_settings(configs, with_seed=True)
    return [
        "-".join(
            re.sub(r"[^\w.=-]+", "_", str(value) if key in NAMED else f"{key}={value}").strip("_")
            for key, value in one.items()
            if value is not None
        )[:_NAME_LENGTH]
        for one in settings
    ]


def _all_resolved(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """Each config with all settings; those that differ in the seed alone are resolved once, as that can load data."""
    known: dict[str, RunConfig] = {}
    resolved = []
    for config in configs:
        key = repr(config if "seed" in config.defense_settings else dataclasses.replace(config, seed=0))
        if key not in known:
            known[key] = _resolved(config)
        resolved.append(dataclasses.replace(known[key], seed=config.seed))
    return resolved


def _resolved(config: RunConfig) -> RunConfig:
    """The config with all settings; on a CPU, so that this process holds no memory of a GPU."""
    try:
        resolved = Simulation(dataclasses.replace(config, device="cpu")).config
    except ConfigError as error:
        raise ConfigError(f"{defense_name(config)} against {attack_name(config)}: {error}") from error
    return dataclasses.replace(resolved, device=config.device)


def _task(config: RunConfig) -> Task:
    task = tasks.create(
        config.task, data_dir=config.data_dir or None, model=config.model or None, **config.task_settings
    )
    if config.sample_limit is not None:
        limit_samples(task, config.sample_limit)
    return task
