"""A worker process: the messages it receives and how it handles them."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..core.errors import G2uardFLError
from ..core.processes import follow_parent, messages
from ..tasks.base import Task
from .local import Job, train_locally
from .shared_memory import SampleLocation, WeightLayout

if TYPE_CHECKING:
    from ..core.processes import Pipe

ROWS, SAMPLES = "rows", "samples"
"""The two blocks of shared memory: the global model (row 0) with the weights of all jobs, and the jobs' samples."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""The numbers of two parameters of glibc's `mallopt`."""


@dataclass(frozen=True)
class Attach:
    """Message to a worker: use this block from now on in place of the previous one of the same name."""

    name: str
    block: Tensor


@dataclass(frozen=True)
class Order:
    """Message to a worker: do a job (sent without its samples) and write the weights into `row`."""

    job: Job
    location: SampleLocation
    row: int


def run_jobs(pipe: Pipe) -> None:
    """Run in a worker process until the main process closes the pipe or ends.

    The first message is the pickled task, model and layout; all others are `Attach` and `Order`.
    """
    follow_parent()
    torch.set_num_threads(1)
    _keep_freed_memory()
    received = messages(pipe)
    content = next(received, b"")
    if not content:
        return
    task, model, layout = pickle.loads(content)  # noqa: S301 - written by the parent process
    del content  # as large as the model
    blocks: dict[str, Tensor] = {}
    for message in received:
        if isinstance(message, Attach):
            blocks[message.name] = message.block
            continue
        try:
            pipe.send(_do(message, task, model, layout, blocks))
        except OSError:
            return


def _do(order: Order, task: Task, model: nn.Module, layout: WeightLayout, blocks: Mapping[str, Tensor]) -> str:
    """Do a job; return the error message, empty if there was none."""
    try:
        rows = blocks[ROWS]
        job = replace(order.job, samples=order.location.samples(blocks[SAMPLES]))
        layout.write(train_locally(task, model, layout.views(rows, 0), job), rows, order.row)
    except G2uardFLError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _keep_freed_memory() -> None:
    """Make the allocator keep freed memory.

    By default glibc returns large buffers to the system and requests them again in every step, and the system has to
    clear the new pages each time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 1 << 30)
