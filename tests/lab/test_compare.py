"""Real processes: two workers, interruptions of both kinds, a failing run, a dying worker."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.cli import main

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the workers")

PATIENCE = 240  # seconds; a machine shared with others can be ten times slower than alone
WORDS = [
    "--config", "smoke", "--run.model.vocab_size", "280", "--run.steps", "60", "--run.checkpoint_every", "10",
    "--rates", "{muon: [0.01], normsgd: [0.1]}", "--warmups", "[1, 0.2]",
]  # fmt: skip


def words(corpus: Path, out: Path, *more: str) -> list[str]:
    return ["compare", *WORDS, "--run.data.corpus", str(corpus), "--out", str(out), *more]


@contextmanager
def started(corpus: Path, out: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own, ended with the block however that ends."""
    command = [sys.executable, "-m", "autowarm", *words(corpus, out, *more)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()  # its workers follow by themselves


def numbers(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["runs"]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def workers_of(pid: int) -> list[int]:
    """The process's children, without the bookkeeper that `multiprocessing` starts beside them."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def checkpoints(out: Path) -> list[Path]:
    return list(out.glob("runs/*/checkpoint-*"))


@pytest.fixture(scope="module")
def finished(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("finished")
    with started(corpus_folder, out, "--workers", "2") as process:
        text, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    assert error == ""
    return out, text


def test_it_ends_with_table_figures_results_and_report(finished: tuple[Path, str]) -> None:
    out, text = finished
    for name in ("results.json", "report.html", "sweep.png", "sweep.svg", "curves.png", "curves.svg"):
        assert (out / name).stat().st_size > 0
        assert str(out / name) in text
    assert "16 runs; 2 side by side" in text
    assert "Muon, peak rate 0.01:" in text
    rows = numbers(out)
    assert len(rows) == 16
    assert {row["schedule"] for row in rows} == {"adaptive", "paper", "linear"}
    assert all(row["val_loss"] is not None for row in rows)
    assert len(json.loads((out / "results.json").read_text())["summary"]) == 2


def test_called_again_it_makes_no_run_twice(
    finished: tuple[Path, str], corpus_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = finished
    before = numbers(out)
    assert main(words(corpus_folder, out)) == 0
    assert "all 16 runs are finished" in capsys.readouterr().out
    assert numbers(out) == before


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_interrupted_twice_it_goes_on_to_the_same_bits(
    finished: tuple[Path, str], corpus_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    def results() -> int:
        return len(list(tmp_path.glob("runs/*/result.json")))

    with started(corpus_folder, tmp_path, "--workers", "1") as process:
        wait_for(lambda: checkpoints(tmp_path), process)
        os.killpg(process.pid, number)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert error.strip() == "interrupted; the same command goes on from here"

    with started(corpus_folder, tmp_path, "--workers", "1") as process:
        had = results()
        wait_for(lambda: results() >= had + 2, process)
        workers = workers_of(process.pid)
    deadline = time.monotonic() + PATIENCE
    while not all(map(gone, workers)):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)
    assert results() < 16

    assert main(words(corpus_folder, tmp_path, "--workers", "1")) == 0
    assert numbers(tmp_path) == numbers(finished[0])


@needs_proc
def test_a_dead_worker_is_an_error_and_not_a_hang(corpus_folder: Path, tmp_path: Path) -> None:
    with started(corpus_folder, tmp_path, "--workers", "1", "--run.steps", "20000") as process:
        wait_for(lambda: checkpoints(tmp_path), process)
        for worker in workers_of(process.pid):
            os.kill(worker, signal.SIGKILL)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "a worker process died" in error
    assert "goes on from here" in error
    assert "Traceback" not in error


def test_a_failing_run_is_named_and_the_others_are_kept(
    corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--paper_target_loss", "50", "--seeds", "[0]", "--run.steps", "10", "--workers", "1"]
    assert main(words(corpus_folder, tmp_path, *more)) == 1
    error = capsys.readouterr().err
    assert "2 runs failed" in error
    assert "muon-lr0.01-paper-seed0: schedule: the first loss" in error
    assert "Traceback" not in error
    assert len(numbers(tmp_path)) == 6
    assert (tmp_path / "report.html").exists()
    assert len(list(tmp_path.glob("runs/*/error.txt"))) == 2
