"""New processes, how many there is room for, and the signals that stop one, so that a run never loses its progress.

New ones are forks of a small server that has PyTorch loaded. A fork of this process would inherit broken threads.
"""

import gc
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

_SERVER = "autowarm.lab.execution.server"
_GROUPS, _GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # of cgroup v2
LOST = BrokenProcessPool, EOFError, ConnectionError  # a process died, or the server from which it was to come


def gpus() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them, without claiming memory."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def room(groups: Path = _GROUPS, group_of_this: Path = _GROUP) -> int:
    """The number of single-threaded workers for which there are cores, by a container's quota, too."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    lines = group_of_this.read_text().splitlines() if group_of_this.exists() else []
    place = groups / next((line[4:] for line in lines if line.startswith("0::/")), "none")
    for group in (place, *(group for group in place.parents if group.is_relative_to(groups))):  # each may have a limit
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            cores = min(cores, math.inf if quota == "max" else int(quota) / int(period))
    return max(1, int(cores))


def context() -> BaseContext:
    """The context of new processes.

    The server starts with the first process and ends with this one. With a GPU, which a fork cannot use if importing
    has, and on systems whose libraries break in a fork, processes are spawned instead and load everything themselves.
    """
    if gpus() or sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    forkserver.set_forkserver_preload([_SERVER])
    return multiprocessing.get_context("forkserver")


@contextmanager
def starting(new: BaseContext) -> Iterator[None]:
    """Submit to a pool within this context: its processes do not import the caller's script, which needs no guard.

    They begin with SIGINT blocked, until `leave_ctrl_c_to_parent`: a terminal sends it to all of them, and it would end
    those whose Python still starts. In this process one that comes meanwhile waits.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if new.get_start_method() == "forkserver":
            forkserver.ensure_running()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # a fork waits for what the server loads, for seconds
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.modules["__main__"] = main


def leave_ctrl_c_to_parent() -> None:
    """In a new process: ignore SIGINT, which the parent alone handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def follow_parent() -> None:
    """In a new process: leave Ctrl-C to the parent, and exit when that dies, which cannot stop it once it is killed."""
    leave_ctrl_c_to_parent()
    gc.freeze()  # a walk through what is loaded would copy the memory that forks share
    if (parent := multiprocessing.parent_process()) is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()


class Interrupted(Exception):
    """The run was asked to stop. Its checkpoint holds its progress."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number  # for the exit status 128 + signal; SIGINT if the caller asked


class Stop:
    """A context manager that catches SIGINT and SIGTERM: the first one saves and ends, a second one ends.

    Inside `gently`, the first signal is acknowledged at once and kept for the loop, which saves a checkpoint and stops
    at the next step. Elsewhere it ends the program with `Interrupted`; nothing is lost, because files are replaced
    whole. A second one does what it does without this class, except in ranks of `torchrun`, which repeats signals.
    """

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that came
        self._gentle = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # other threads may not handle signals
            self._before = {number: signal.signal(number, self._notice) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _notice(self, number: int, _: FrameType | None) -> None:
        by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        # Python drops an exception that is raised inside a destructor, so set the flag for the loop as well.
        first, self.asked = self.asked is None, number
        if not by_torchrun:
            self.__exit__()
        if not self._gentle:
            raise Interrupted("stopped before or after training", number)
        if first and (not by_torchrun or os.environ.get("RANK") == "0"):
            with suppress(OSError):  # stderr may be closed; print() is not reentrant and may be running
                os.write(2, b"\nstopping at the next step; Ctrl-C again stops at once\n")

    def obey(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.asked is not None:
            raise Interrupted("stopped; what is finished is kept", self.asked)

    @contextmanager
    def gently(self) -> Iterator[None]:
        """Enter this context around work that the first signal must not break off: training and saving."""
        before, self._gentle = self._gentle, True
        try:
            yield
        finally:
            self._gentle = before
