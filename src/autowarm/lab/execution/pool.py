"""Runs many jobs on one machine: one process per GPU, or one single-threaded process per core.

More threads than cores are a trap: on two cores, two processes with two OpenMP threads each ran 50 times slower than
one process alone, because each thread spins while it waits for a partner that has no core.

A job is any call that can be pickled, reports its progress to a callback, and can be repeated if it was interrupted.
"""

import math
import multiprocessing
import os
import queue
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from ctypes import c_bool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import LabError
from ..files import Busy, claim, write_atomically
from ..processes import LOST, Interrupted, Stop, context, follow_parent, gpus, room, starting
from .display import Display

if TYPE_CHECKING:
    from ..training.metrics import OnStep, Progress

# Set in a worker before it imports numpy or torch. The last ones keep other packages quiet and off the network.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
                "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TF_CPP_MIN_LOG_LEVEL": "3"}  # fmt: skip
_EVENTS_PER_SECOND = 4
_BUSY_WAIT = 0.5  # seconds between looks at a folder that another process holds

Event: TypeAlias = tuple[str, int, float, float]  # a worker's report to the parent: a job's name, step, loss and rate


@dataclass(frozen=True)
class Job:
    """One call to make, under a unique name."""

    name: str
    steps: int
    call: "Callable[[OnStep], dict[str, Any]]"  # returns the row to display; must stop once the callback returns True
    folder: Path  # the folder for the traceback of a failure


def called(place: str, *args: Any, **options: Any) -> Any:
    """Call what is at a place, ``module:name``, which only the process that does so spends seconds on importing."""
    return resolve_name(place)(*args, **options)


def run_jobs(jobs: Sequence[Job], workers: int | None, display: Display, done: int) -> dict[str, str]:
    """Do every job; return the messages of those that failed. LabError if a worker died.

    ``workers`` processes run in parallel; None is one per GPU, or without a GPU as many as `room` allows. If
    there are more workers than GPUs, they share the GPUs. ``done`` runs were finished before.
    """
    devices = gpus()
    workers = min(workers or len(devices) or room(), len(jobs))
    display.begin([(job.name, job.steps) for job in jobs], done=done, workers=workers)
    new = context()
    events: Any = new.Queue()
    turns: Any = new.Queue()
    for index in range(workers):
        turns.put(devices[index % len(devices)] if devices else "")
    stop = new.RawValue(c_bool, False)  # without a lock, which a worker that is killed as it looks would keep for ever
    of_a_worker = events, stop, turns, dict(os.environ)
    pool = ProcessPoolExecutor(workers, mp_context=new, initializer=_start_worker, initargs=of_a_worker)
    others = set(multiprocessing.active_children())  # the caller's
    with Stop() as asked, asked.gently(), ExitStack() as at_end:  # what follows is done in reverse
        at_end.callback(_kill_all_but, others)
        at_end.callback(pool.shutdown)  # waits for the workers, unless a second signal comes
        at_end.callback(setattr, stop, "value", True)  # they stop at their next step, and save
        try:
            with starting(new):
                pending = {pool.submit(_work, job): job.name for job in jobs}
            return follow(pending, lambda: _drain(events), asked, display)
        except LOST:
            asked.obey()  # a signal to the whole group ends the workers, too
            raise LabError(
                f"a worker process died while {workers} were at work (out of memory, or killed from outside). Finished "
                "runs are kept: the same command continues from here; --workers 1 needs less memory"
            ) from None


def _kill_all_but(others: Collection[BaseProcess]) -> None:
    for child in multiprocessing.active_children():
        if child not in others:
            child.kill()


def message_of(error: Exception) -> str:
    """Describe an error in one line, without its class name if it is one that the user can fix."""
    return f"{'' if isinstance(error, LabError) else type(error).__name__ + ': '}{error}"


def follow(
    pending: dict[Future[dict[str, Any]], str],
    news: Callable[[], Iterable[Event]],
    asked: Stop,
    display: Display,
    explain: Callable[[Exception], str] = message_of,
) -> dict[str, str]:
    """Wait for the jobs while updating the display; return the messages of those that failed."""
    failed: dict[str, str] = {}
    while pending:
        asked.obey()
        for event in news():
            display.update(*event)
        for future in [future for future in pending if future.done()]:
            name = pending.pop(future)
            try:
                row = future.result()
            except BrokenProcessPool:
                raise
            except Exception as error:
                failed[name] = explain(error)
                display.fail(name, failed[name])
            else:
                display.finish(name, row)
    return failed


def _drain(events: Any) -> Iterator[Event]:
    """Yield the events that have arrived, after a short wait for the first."""
    with suppress(queue.Empty):
        yield events.get(timeout=0.2)
        while True:
            yield events.get_nowait()


# What follows runs in the workers.

_events: Any = None
_stop: Any = None


def _start_worker(events: Any, stop: Any, turns: Any, environment: Mapping[str, str]) -> None:
    global _events, _stop
    _events, _stop = events, stop
    follow_parent()
    os.environ.clear()  # a fork has the server's, which may be older
    os.environ.update(environment)
    os.environ["CUDA_VISIBLE_DEVICES"] = turns.get()  # CUDA reads this when it starts, which is after torch's import
    if stop.value:
        return  # do not spend seconds on importing torch, because `perform` will refuse the job
    set_up()


def set_up() -> None:
    os.environ.update(_ENVIRONMENT)

    import torch

    torch.set_num_threads(1)
    # Without a gradient, weight decay shrinks weights to denormals, which some processors multiply many times slower.
    torch.set_flush_denormal(True)


def _work(job: Job) -> dict[str, Any]:
    return perform(job, _events.put, lambda: _stop.value)


def perform(job: Job, report: Callable[[Event], object], stopped: Callable[[], bool]) -> dict[str, Any]:
    """Do one job in this process and report a few times a second; if it fails, write a traceback to its folder."""
    last = 0.0

    def on_step(progress: "Progress") -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last > 1 / _EVENTS_PER_SECOND:
            last = now
            report((job.name, progress.step, progress.loss, progress.lr))
        return stopped()

    while not stopped():
        try:
            return job.call(on_step)
        except Busy:  # another command is making this run: wait for it and use its result
            report((job.name, 0, math.nan, math.nan))  # on a cluster, the reply to an event says whether to stop
            time.sleep(_BUSY_WAIT)
        except Interrupted:
            raise  # the job did not fail
        except Exception:
            with suppress(OSError, LabError):  # the failure may be a full disk, or a folder of someone else's
                claim(job.folder)
                write_atomically(job.folder / "error.txt", traceback.format_exc())
            raise
    raise Interrupted("stopped before it began")
