"""What tests of several rooms share: rows as runs leave them, a small trained model, and ways to break runs off."""

import io
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from autowarm import Muon
from autowarm.lab.analysis.results import Results, write_results
from autowarm.lab.commands import main
from autowarm.lab.config import RunConfig
from autowarm.lab.execution.display import Display
from autowarm.lab.execution.pool import Job, message_of, perform
from autowarm.lab.files import claim
from autowarm.lab.processes import Interrupted
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import Progress, read_metrics
from autowarm.lab.training.parallel import Ranks

MODEL = {"layers": 1, "width": 16, "heads": 2, "ff": 32, "vocab_size": 280, "seq_len": 16}
ALONE = Ranks(0, 1, torch.device("cpu"))
PATIENCE = 600  # seconds; a machine shared with others can be many times slower than alone

# A user's own task, for tests to write to a file. More attributes may follow at its end.
LINE = Path(__file__).with_name("tasks").joinpath("line.py").read_text() + "\n"

CELL = {"task": "t", "model": "m", "optimizer": "muon", "batch_size": 4, "steps": 100, "lr": 0.01}


def row(schedule: str, warmup: int, seed: int, val_loss: float | None, **more: Any) -> dict[str, Any]:
    """The result of a run in `CELL`; without a loss it diverged."""
    return {
        "id": f"{schedule}{warmup}{seed}", "cell": CELL, "optimizer": "muon", "schedule": schedule,
        "warmup_steps": warmup, "seed": seed, "train_loss": 2.0, "val_loss": val_loss, "metric": {},
        "switched_at": None, "diverged": val_loss is None, "seconds": 1.0, "tokens_per_second": 10.0,
        "warnings": [],
    } | more  # fmt: skip


ROWS = [
    row("linear", 1, 0, 3.0), row("linear", 1, 1, 3.2),
    row("linear", 20, 0, 2.0), row("linear", 20, 1, 2.4),
    row("linear", 40, 0, 1.0), row("linear", 40, 1, None),
    row("adaptive", 10, 0, 2.1), row("adaptive", 14, 1, 2.3),
    row("paper", 100, 0, 5.0), row("paper", 100, 1, 5.0),
]  # fmt: skip


def stored(folder: Path, rows: list[dict[str, Any]] = ROWS, name: str = "t", **config: Any) -> Results:
    """`results.json` of these rows, in a folder of ours."""
    claim(folder)
    return write_results(folder, config, {"name": name, "sha256": "0" * 64, "tokens": 9}, rows)


def leave_metrics(folder: Path) -> None:
    """What the runs of `ROWS` would have logged; a loss of each was not finite."""
    for one in ROWS:
        (created := folder / "runs" / f"some-label-{one['id']}").mkdir(parents=True)
        lines = [{"step": s, "loss": None if s == 3 else 5.0 / s, "lr": 0.01, "seconds": s} for s in range(1, 101)]
        (created / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def printed(thing: Any, width: int = 80, **options: Any) -> str:
    """What a console of this width shows of it."""
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def trained(steps: int, seed: int = 0) -> tuple[torch.nn.Module, Muon]:
    """A small model with buffers, and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 4))
    optimizer = Muon.from_model(model, lr=0.01)
    for _ in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on how often a run was interrupted."""
    timed = ("seconds", "eval_seconds", "tokens_per_second", "files")
    return {name: value for name, value in result.items() if name not in timed}


def logged(folder: Path) -> list[dict[str, Any]]:
    """What a run has logged, but for the times."""
    return [numbers(row) for row in read_metrics(folder)]


def stop_at(step: int) -> Callable[[Progress], bool]:
    """Asks the run to stop after a step."""
    return lambda progress: progress.step == step


def resumed(config: RunConfig, folder: Path, *stops: int, **given: Any) -> dict[str, Any]:
    """The result of a run that was stopped after each of these updates and taken up again."""
    for stop in stops:
        with pytest.raises(Interrupted):
            train(config, folder, stop_at(stop), **given)
    return train(config, folder, **given)


def crash_at(step: int) -> Callable[[Progress], None]:
    """Breaks the run off after a step, without a word."""

    def crash(progress: Progress) -> None:
        if progress.step == step:
            raise RuntimeError("power cut")

    return crash


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_here(jobs: Sequence[Job], workers: int | None, display: Display, done: int) -> dict[str, str]:
    """`pool.run_jobs` without its processes."""
    display.begin([(job.name, job.steps) for job in jobs], done=done, workers=workers or 1)
    failed: dict[str, str] = {}
    for job in jobs:
        try:
            result = perform(job, lambda event: None, lambda: False)
        except Exception as error:
            failed[job.name] = message_of(error)
            display.fail(job.name, failed[job.name])
        else:
            display.finish(job.name, result)
    return failed


def refused(words: list[str], capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    """The one line that a command says as it refuses."""
    assert main(words) == status
    message = capsys.readouterr().err
    assert message.startswith("autowarm: ")
    assert message.count("\n") == 1
    return message


def wait_for(condition: Callable[[], Any], alive: Callable[[], bool] = lambda: True, message: Any = "") -> None:
    """Returns once the condition holds; fails if what should bring it about is gone, or after a long while."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert alive() or condition(), message() if callable(message) else message
        assert time.monotonic() < deadline, message() if callable(message) else message
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended, be it waited for or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
