"""Real processes: two workers, interruptions of both kinds, a killed parent, a dying worker."""

import contextlib
import importlib
import io
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from autowarm.lab.commands import main
from autowarm.lab.errors import LabError
from autowarm.lab.execution.display import Display
from autowarm.lab.execution.pool import Job, run_jobs
from autowarm.lab.processes import Interrupted

from ..helpers import PATIENCE, gone, wait_for
from .comparison import RUNS, rows, started, words

pytestmark = pytest.mark.long  # each starts processes that import PyTorch
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the workers")

STOPPED = [
    "stopping at the next step; Ctrl-C again stops at once",
    "interrupted; the same command continues from here, with what is finished",
]


def children(pid: int, command: str) -> list[int]:
    """The process's children that `multiprocessing` starts with this command."""
    chosen = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has just ended
            chosen += [int(child)] * (command.encode() in Path(f"/proc/{child}/cmdline").read_bytes())
    return chosen


def workers_of(pid: int) -> list[int]:
    """The workers: forks of a server, which is the process's child."""
    return [worker for server in children(pid, "forkserver") for worker in children(server, "forkserver")]


def started_by(pid: int) -> list[int]:
    """The server and its workers."""
    return [*children(pid, "forkserver"), *workers_of(pid)]


def flushes() -> bool:
    """Whether this processor can take denormal numbers as 0; leaves the mode as it is by default."""
    able = torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)
    return able


def checkpoints(out: Path) -> list[Path]:
    return list(out.glob("runs/*/checkpoint-*"))


@pytest.fixture(scope="module")
def finished(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a comparison that two real workers made, and what the command said."""
    out, message, errors = tmp_path_factory.mktemp("finished"), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(message), contextlib.redirect_stderr(errors):
        assert main(words(corpus_folder, out, "--workers", "2")) == 0
    assert errors.getvalue() == ""
    return out, message.getvalue()


def test_it_ends_with_table_figures_results_and_report(finished: tuple[Path, str]) -> None:
    out, text = finished
    for name in ("results.json", "report.html", "sweep.png", "sweep.svg", "curves.png", "curves.svg"):
        assert (out / name).stat().st_size > 0
        assert str(out / name) in text
    assert f"{RUNS} runs; 2 side by side" in text
    assert "Muon, peak rate 0.01:" in text
    assert {(row["schedule"], row["seed"]) for row in rows(out)} == {
        (kind, seed) for kind in ("adaptive", "paper", "linear") for seed in (0, 1)
    }
    assert all(row["val_loss"] is not None for row in rows(out))


@needs_proc
@pytest.mark.usefixtures("jobs_here")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_broken_off_it_goes_on_to_the_same_bits_and_leaves_no_worker(
    finished: tuple[Path, str], corpus_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with started(corpus_folder, tmp_path, "--workers", "1") as process:
        wait_for(lambda: checkpoints(tmp_path), lambda: process.poll() is None)
        workers = started_by(process.pid)
        assert len(workers) == 2
        if number == signal.SIGKILL:
            process.kill()
        else:
            os.killpg(process.pid, number)
        _, error = process.communicate(timeout=PATIENCE)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert list(filter(None, error.splitlines())) == STOPPED
    wait_for(lambda: all(map(gone, workers)))
    assert not (tmp_path / "results.json").exists()

    assert main(words(corpus_folder, tmp_path)) == 0
    assert rows(tmp_path) == rows(finished[0])


@needs_proc
@pytest.mark.parametrize("find", [started_by, workers_of], ids=["server", "workers"])
def test_ctrl_c_is_acknowledged_while_workers_start(
    corpus_folder: Path, tmp_path: Path, find: Callable[[int], list[int]]
) -> None:
    with started(corpus_folder, tmp_path, "--workers", "1", "--run.steps", "200000") as process:
        wait_for(lambda: find(process.pid), lambda: process.poll() is None)
        workers = started_by(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        assert [process.stderr.readline().strip() for _ in range(2)] == ["", STOPPED[0]]
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGINT
    assert error.strip() == STOPPED[1]
    wait_for(lambda: all(map(gone, workers)))
    # A worker may be at its first updates already, and then leaves the checkpoint of the step it stops at.
    assert len(checkpoints(tmp_path)) <= (find is workers_of)


def test_a_second_signal_breaks_off_the_wait_for_the_workers_and_ends_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wait(*_: object, **__: object) -> None:
        raise Interrupted("again")

    bystander = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(PATIENCE,))
    bystander.start()
    try:
        monkeypatch.setattr(ProcessPoolExecutor, "shutdown", wait)
        with pytest.raises(Interrupted, match="again"):
            run_jobs([Job("fails", 1, time.sleep, tmp_path)], 1, Display(), 0)  # type: ignore[arg-type]
        # The pool's own thread may still be striking a dead worker off the list. The caller's process is none of ours.
        wait_for(lambda: multiprocessing.active_children() == [bystander])
    finally:
        bystander.kill()
        bystander.join()


@pytest.mark.skipif(not flushes(), reason="this processor has no such mode")
def test_a_worker_has_one_thread_takes_denormal_numbers_as_zero_and_has_no_module_of_an_earlier_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    rows: list[Mapping[str, Any]] = []
    monkeypatch.setattr(Display, "finish", lambda self, name, row: rows.append(row))
    for name in ("a_tiny_job", "another_job"):
        shutil.copy(Path(__file__).with_name("jobs.py"), tmp_path / f"{name}.py")
        job = Job("tiny", 1, importlib.import_module(name).tiny, tmp_path)
        assert run_jobs([job], 1, Display(), 0) == {}
    assert [(row["val_loss"], row["threads"]) for row in rows] == [(0.0, 1)] * 2
    assert [row["jobs"] for row in rows] == [["a_tiny_job"], ["another_job"]]


@needs_proc
@pytest.mark.parametrize("dies", ["worker", "server", "server that loads"])
def test_a_dead_process_is_an_error_and_not_a_hang(corpus_folder: Path, tmp_path: Path, dies: str) -> None:
    with started(corpus_folder, tmp_path, "--workers", "1", "--run.steps", "200000") as process:

        def actual() -> list[int]:
            return workers_of(process.pid) if dies == "worker" else children(process.pid, "forkserver")

        alive = lambda: process.poll() is None  # noqa: E731
        wait_for(lambda: actual() if dies == "server that loads" else checkpoints(tmp_path), alive)
        os.kill(actual()[0], signal.SIGKILL)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "a worker process died" in error
    assert "continues from here" in error
    assert "Traceback" not in error


def test_a_worker_killed_as_it_looks_whether_to_stop_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copy(Path(__file__).with_name("jobs.py"), tmp_path / "a_killed_job.py")
    for _ in range(5):  # each time it is at the look for a good part of the time
        with pytest.raises(LabError, match="a worker process died"):
            run_jobs([Job("killed", 1, importlib.import_module("a_killed_job").killed, tmp_path)], 1, Display(), 0)
