"""Many runs side by side: one process per core, each with one thread.

More threads than cores is a trap: two processes of two OpenMP threads each on two cores were seen to run 50 times
slower than one alone, since each thread waits, spinning, for a partner that the other process keeps off its core.

A run's folder is named by its id, and a finished run is never made again: calling the same comparison after an
interruption goes on where it stopped, and calling it with another grid makes only the new runs.
"""

import json
import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import CompareConfig, LabError, RunConfig, identity, run_id
from .data import prepare
from .display import Display
from .files import locked
from .results import document, write_results

if TYPE_CHECKING:
    from .train import Progress

# Set before torch is imported anywhere in a worker; the rest keeps third parties from talking and from the network.
_WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
                       "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error",
                       "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
_EVENTS_PER_SECOND = 4


@dataclass(frozen=True)
class Event:
    """What a worker tells the parent: where a run stands."""

    label: str
    step: int
    loss: float
    lr: float
    seconds: float


def compare(config: CompareConfig, display: Display) -> tuple[dict[str, Any], dict[str, str]]:
    """Makes every run that is not yet finished, and writes `results.json`.

    Args:
        config: the comparison.
        display: is told of everything that happens.

    Returns:
        The content of `results.json`, and the messages of the runs that failed, by label; they are not in it.

    Raises:
        LabError: a worker died, or every run failed; what is finished is kept.
        KeyboardInterrupt: after the workers have stopped at a step boundary with a checkpoint.
    """
    out = Path(config.out)
    runs = config.runs()
    with locked(out):
        display.note("preparing the corpus")
        corpus = prepare(config.run.data, config.run.model.vocab_size)
        folders = {run.label: out / "runs" / f"{run.label}-{run_id(identity(run, corpus.sha256))}" for run in runs}
        todo = [run for run in runs if not (folders[run.label] / "result.json").exists()]
        workers = min(config.workers or cores(), max(1, len(todo)))
        display.begin([(run.label, run.steps) for run in todo], done=len(runs) - len(todo), workers=workers)
        failed = _run_all(todo, folders, workers, display) if todo else {}
        rows = [_result(folders[run.label]) for run in runs if run.label not in failed]
        if not rows:
            raise LabError(f"every run failed, the first with {next(iter(failed.values()))}")
        about = {"name": corpus.name, "sha256": corpus.sha256, "tokens": corpus.tokens}
        results = document(config, about, rows)
        write_results(out, results)
    return results, failed


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _result(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def _run_all(runs: list[RunConfig], folders: dict[str, Path], workers: int, display: Display) -> dict[str, str]:
    """Runs them all; returns the messages of those that failed."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit half a thread pool
    events: Any = context.Queue()
    stop = context.Event()
    failed: dict[str, str] = {}
    with _environment(_WORKER_ENVIRONMENT), _noticing_interrupts() as interrupted:
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(events, stop))
        pending: dict[Future[dict[str, Any]], str] = {
            pool.submit(_work, run, folders[run.label]): run.label for run in runs
        }
        try:
            while pending:
                if interrupted.is_set():
                    raise KeyboardInterrupt
                for event in _drain(events):
                    display.update(event.label, event.step, event.loss, event.lr, event.seconds)
                for future in [future for future in pending if future.done()]:
                    label = pending.pop(future)
                    try:
                        display.finish(label, future.result())
                    except BrokenProcessPool:
                        raise LabError(
                            f"a worker process died while {workers} were at work (out of memory, or killed from "
                            "outside). Finished runs are kept: the same command goes on from here, --workers 1 with "
                            "less memory"
                        ) from None
                    except Exception as error:
                        name = "" if isinstance(error, LabError) else f"{type(error).__name__}: "
                        failed[label] = f"{name}{error}"
                        display.fail(label, failed[label])
        finally:
            stop.set()  # workers stop at the next step and leave a checkpoint
            pool.shutdown(wait=True, cancel_futures=True)
    return failed


def _drain(events: Any) -> Iterator[Event]:
    """What has come in, after a wait of a moment for the first."""
    wait = 0.2
    while True:
        try:
            yield events.get(timeout=wait) if wait else events.get_nowait()
            wait = 0.0
        except queue.Empty:
            return


@contextmanager
def _noticing_interrupts() -> Iterator[threading.Event]:
    """Set at Ctrl-C. As an exception it can come up inside a destructor, where Python drops it."""
    noticed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noticed  # only the main thread may, and needs to, handle signals
        return

    def notice(*_: Any) -> None:
        noticed.set()
        signal.signal(signal.SIGINT, previous)  # a second one interrupts at once

    previous = signal.signal(signal.SIGINT, notice)
    try:
        yield noticed
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the children; workers are spawned as they are needed, so for as long as it runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# What follows runs in the workers.

_events: Any = None
_stop: Any = None


def _start_worker(events: Any, stop: Any) -> None:
    global _events, _stop
    _events, _stop = events, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    threading.Thread(target=_die_with_parent, daemon=True).start()

    import torch

    torch.set_num_threads(1)


def _die_with_parent() -> None:
    """A killed parent cannot tell its workers; without this they would go on for a folder that is no longer theirs."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _work(run: RunConfig, folder: Path) -> dict[str, Any]:
    from .train import train

    last = 0.0

    def on_step(progress: "Progress") -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last > 1 / _EVENTS_PER_SECOND:
            last = now
            _events.put(Event(run.label, progress.step, progress.loss, progress.lr, progress.seconds))
        return bool(_stop.is_set())

    try:
        return train(run, folder, on_step)
    except Exception:
        (folder / "error.txt").write_text(traceback.format_exc())
        raise
