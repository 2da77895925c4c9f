"""Where faults strike: a command in a fork, the phases that it tells, and what must come out of it."""

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

MODEL = {"layers": 1, "width": 16, "heads": 2, "ff": 32, "vocab_size": 280, "seq_len": 16}
RUN = {"steps": 16, "batch_size": 4, "eval_batches": 2, "checkpoint_every": 3, "engine.eval_every": 5}


def places() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Where a fault may strike: what is going on, and what does it, with the module or class it is called by."""
    from autowarm.lab.analysis import report
    from autowarm.lab.data import text
    from autowarm.lab.execution import engine
    from autowarm.lab.training import loop
    from autowarm.lab.training.checkpoint import Checkpoints
    from autowarm.lab.training.metrics import MetricsLog
    from autowarm.schedule import calibration

    return {
        "data preparation": (text, text._build),
        "calibration": (calibration, calibration.calibrate),
        "a step": (loop._Run, loop._Run._update),
        "saving a checkpoint": (Checkpoints, Checkpoints.save),
        "noting metrics": (MetricsLog, MetricsLog.flush),
        "evaluation": (loop._Run, loop._Run.evaluate),
        "saving weights": (loop, loop.save_weights),
        "the manifest": (engine, engine.write_manifest),
        "results": (engine, engine.write_results),
        "the report": (report, report.make),
    }


def watch_phases(tell: Callable[[str, str, int], None]) -> None:
    """Wraps these functions so that each says when it begins; a step, of which run's folder and how far it is."""

    def watched(call: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def tells(*args: Any, **options: Any) -> Any:
            run = args[0] if phase == "a step" else None
            tell(phase, run.folder.name if run else "", run.progress.step if run else 0)
            return call(*args, **options)

        return tells

    for phase, (owner, call) in places().items():
        setattr(owner, call.__name__, watched(call, phase))


class Child:
    """A command in a fork of this process.

    Attributes:
        phases: what it said it began, in order, with the seconds since its start.
        first: the steps that each run's folder had behind it when it went on.
    """

    def __init__(self, words: list[str], log: Path) -> None:
        self.phases: list[tuple[str, float]] = []
        self.first: dict[str, int] = {}
        self.log = log
        forking = multiprocessing.get_context("fork")
        self._news, telling = forking.Pipe(duplex=False)
        self._process = forking.Process(target=_live, args=(words, log, telling))
        self._process.start()
        telling.close()
        self._began = time.monotonic()

    def listen(self, target: str | None = None, skip: int = 0) -> bool:
        """Takes its news until it has begun a phase skip + 1 times; False if it ended first."""
        while sum(phase == target for phase, _ in self.phases) <= skip:
            try:
                phase, folder, step = self._news.recv()
            except (OSError, EOFError):
                return False
            self.phases.append((phase, time.monotonic() - self._began))
            if folder:
                self.first.setdefault(folder, step)
        return True

    def end(self, number: int | None = None) -> int:
        """Sends a signal, if one is given and it has not ended, and waits; the exit status, negative for a signal."""
        if number is not None and self._process.is_alive():
            os.kill(self._process.pid, number)
        self.listen()
        self._process.join()
        return self._process.exitcode


def _live(words: list[str], log: Path, news: Connection) -> NoReturn:
    from autowarm.lab.commands import main

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1), os.dup2(out, 2)
    watch_phases(lambda *said: news.send(said))
    sys.exit(main(words))


class Bed:
    """A folder with a corpus and a cache, and the commands that are tried in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"
        os.environ["AUTOWARM_CACHE"] = str(self.cache)
        draw = random.Random(0)
        corpus = folder / "corpus"
        corpus.mkdir()
        for index in range(30):
            words = (draw.choice(["warm", "up", "then", "decay", "along", "a", "cosine"]) for _ in range(300))
            (corpus / f"{index}.txt").write_text(" ".join(words))
        self.settings = {f"model.{key}": value for key, value in MODEL.items()} | RUN | {"data.corpus": str(corpus)}

    def warm_up(self) -> None:
        """Makes a comparison here, so that the forks have everything imported; jobs run where they are called for."""
        from autowarm.lab.commands import main
        from autowarm.lab.data import prepare
        from autowarm.lab.execution import engine
        from autowarm.lab.execution.pool import perform

        def here(jobs: Any, *_: Any) -> dict[str, str]:
            for job in jobs:
                perform(job, lambda event: None, lambda: False)
            return {}

        engine.run_jobs = here
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(self.words("compare", self.folder / "warm-up")) == 0
        prepare.cache_clear()
        engine._SOURCES.clear()

    def words(self, command: str, out: Path) -> list[str]:
        if command == "train":
            return ["train", "--out", str(out), *self._options("")]
        if command == "compare":
            grid = ["--rates", "{muon: [0.01]}", "--warmups", "[0.2]", "--seeds", "[0]"]
            return ["compare", "--out", str(out), "--workers", "1", *grid, *self._options("run.")]
        base = self.settings | {"optimizer.lr": 0.01}
        cells = {"muon": {"set": {"optimizer.name": "muon"}}, "lion": {"set": {"optimizer.name": "lion"}}}
        return ["sweep", "--out", str(out), "--base", json.dumps(base), "--cells", json.dumps(cells)]

    def _options(self, prefix: str) -> list[str]:
        return [word for key, value in self.settings.items() for word in (f"--{prefix}{key}", str(value))]


def outcome(out: Path) -> dict[str, Any]:
    """All that must not depend on what happened on the way."""

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value
            for key, value in row.items()
            if key not in ("seconds", "eval_seconds", "tokens_per_second", "files")
        }

    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.name == "metrics.jsonl":
            found[name] = [plain(json.loads(line)) for line in path.read_text().splitlines()]
            assert [row["step"] for row in found[name]] == list(range(1, RUN["steps"] + 1)), name
        elif path.name == "model.safetensors":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "result.json":
            found[name] = plain(json.loads(path.read_text()))
        elif path.name == "results.json":
            rows = json.loads(path.read_text())["runs"]
            found[name] = [plain(row) for row in rows]
            assert len({row["id"] for row in rows}) == len(rows), "a run is counted twice"
        elif path.name == "report.html":
            found[name] = path.read_text().count("<tr>")
    return found


def behind(out: Path) -> dict[str, int]:
    """The step of each run's newest checkpoint."""
    newest: dict[str, int] = {}
    for path in out.rglob("checkpoint-*"):
        run = path.parent.name
        newest[run] = max(newest.get(run, 0), int(path.name.split("-")[1]))
    return newest
