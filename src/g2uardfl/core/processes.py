"""Worker processes that execute jobs for the main process, and exit when it exits."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

from .errors import G2uardFLError

if TYPE_CHECKING:
    Pipe = connection.Connection[Any, Any]

_PARENT_CHECK_SECONDS = 1.0
"""A worker checks this often that its parent is alive, in case the closed pipe does not show that it has ended."""
_EXIT_SECONDS = 2.0
"""A worker that has not reacted to SIGTERM after this time is killed."""


class Worker:
    """A worker process and the pipe to it, seen from the main process."""

    def __init__(self, process: SpawnProcess, pipe: Pipe) -> None:
        self.process = process
        self.pipe = pipe

    @staticmethod
    def start(main: Callable[[Pipe], None], *, daemon: bool = True) -> Worker:
        """Start a process.

        Parameters
        ----------
        main
            Called in the process with its end of the pipe; it should call `follow_parent` first.
        daemon
            Whether the process ends with this one; daemon processes cannot start processes (default: True).
        """
        context = get_context("spawn")
        pipe, far_end = context.Pipe()
        process = context.Process(target=main, args=(far_end,), daemon=daemon)
        with _sigint_blocked():
            process.start()
        far_end.close()
        return Worker(process, pipe)

    def send(self, message: Any) -> None:
        """Send a message; raise `G2uardFLError` if the process has ended."""
        try:
            self.pipe.send(message)
        except OSError as error:
            raise self._exit_error() from error

    def receive(self) -> Any:
        """Wait for a message; raise `G2uardFLError` if the process has ended."""
        try:
            return self.pipe.recv()
        except (OSError, EOFError) as error:
            raise self._exit_error() from error

    def _exit_error(self) -> G2uardFLError:
        self.process.join(1)
        code = self.process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}: if memory ran out, use fewer processes"
        else:
            how = (
                f"exited with status {code}: see its own message above; a script that starts worker processes must do "
                "so under `if __name__ == '__main__':`"
            )
        return G2uardFLError(f"worker process {self.process.pid} {how}")


def end(workers: Sequence[Worker]) -> None:
    """End the processes without waiting for the jobs they are doing."""
    for worker in workers:
        worker.pipe.close()
        worker.process.terminate()
    for worker in workers:
        worker.process.join(_EXIT_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def follow_parent() -> None:
    """In a worker process: leave Ctrl-C to the main process, and exit when that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the main process may have been started with SIGTERM ignored
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def messages(pipe: Pipe) -> Iterator[Any]:
    """The messages of the main process until it closes the pipe."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield pipe.recv()


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in processes started here, until they ignore it: the main process alone handles Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it unblocks SIGINT when it is started, which must not happen below
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with_parent() -> None:
    """Exit at once when the parent has ended, even in the middle of a job."""
    parent = parent_process()
    if parent is None:
        return
    # Another child of the parent may hold a copy of the pipe that closes when the parent ends.
    while os.getppid() == parent.pid and not connection.wait([parent.sentinel], _PARENT_CHECK_SECONDS):
        pass
    os._exit(1)
