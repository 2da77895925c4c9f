"""A run's id and records: `metrics.jsonl`, TensorBoard and Weights & Biases at every step, `result.json` at the end."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..config import LabError, RunConfig
from ..files import read_object, write_atomically


@cache
def code_fingerprint() -> str:
    """Hash of the code that determines a run's numbers, so that results of edited code are never reused.

    It covers the library and the parts of the lab that compute a run: training, tasks and data.
    """
    training = Path(__file__).parent
    lab, package = training.parent, training.parents[1]
    sources = [path for path in package.rglob("*.py") if lab not in path.parents]
    rooms = [training, lab / "data", lab / "tasks"]
    sources += [lab / "registry.py", *(path for room in rooms for path in room.rglob("*.py"))]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(sources))).hexdigest()[:12]


def identity(run: RunConfig, corpus_sha256: str) -> dict[str, Any]:
    """Everything that determines a run's numbers. Runs with the same identity are the same run."""
    return {
        "config": dataclasses.asdict(run),
        "corpus": corpus_sha256,
        "code": code_fingerprint(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def run_id(who: Mapping[str, Any]) -> str:
    """A short hash of an identity."""
    canonical = json.dumps(who, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclass
class Progress:
    """A run's history up to `step`, which its checkpoint stores along with the weights and states."""

    step: int = 0
    loss: float = math.nan
    lr: float = math.nan
    seconds: float = 0.0
    first_loss: float = math.nan
    switched_at: int | None = None
    ended_by: str | None = None
    diverged: bool = False
    warnings: list[str] = field(default_factory=list)


def finite(value: float) -> float | None:
    """Return the value, or None (null in JSON) if it is not finite."""
    return value if math.isfinite(value) else None


class MetricsLog:
    """Writes metrics in batches of steps, starting after the checkpoint's last step.

    Args:
        folder: the run's folder.
        step: the checkpoint's step.
        wandb: a project of Weights & Biases, or None.
        run, config: the run's id and config, for Weights & Biases only.
        events: whether to write TensorBoard's events.
        quiet: write nothing and only keep the losses, as all ranks but the first do.
    """

    _EVERY = 50

    def __init__(
        self, folder: Path, step: int, wandb: str | None, run: str, config: Any, *, events: bool, quiet: bool
    ) -> None:
        self.path = folder / "metrics.jsonl"
        self.quiet = quiet
        kept = [row for row in read_metrics(folder) if row["step"] <= step]
        self.losses = [row["loss"] if row["loss"] is not None else math.nan for row in kept]
        self.pending: list[dict[str, Any]] = []
        self.board: Any = None
        self.remote: Any = None
        if quiet:
            return
        # Steps after the checkpoint are made again, so delete their lines.
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        if events:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder), purge_step=step + 1)
        if wandb is not None:
            try:
                from wandb import init
                from wandb.errors import UsageError
            except ImportError:
                raise LabError("engine.wandb needs the package wandb: pip install wandb, or leave it null") from None
            # A resumed run keeps its id, so it stays the same run there. A folder's name would not identify it.
            try:
                self.remote = init(
                    project=wandb, name=folder.name, id=run, dir=str(folder), config=config, resume="allow"
                )
            except UsageError as error:
                raise LabError(
                    f"engine.wandb: {error} Log in to Weights & Biases, or set WANDB_MODE=offline, or leave it null"
                ) from None

    def write(self, progress: Progress, scores: Mapping[str, float] | None = None) -> None:
        """Record one step, and the scores of an evaluation after it."""
        self.losses.append(progress.loss)
        row = {"step": progress.step, "loss": finite(progress.loss), "lr": progress.lr,
               "seconds": round(progress.seconds, 4)}  # fmt: skip
        row |= {f"val_{name}": finite(value) for name, value in (scores or {}).items()}
        self.pending.append(row)
        if len(self.pending) >= self._EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the pending records. Writing every step would slow down small models."""
        rows, self.pending = self.pending, []
        if self.quiet or not rows:
            return
        with open(self.path, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        for row in rows:
            for name in row.keys() - {"step", "seconds"} if self.board is not None else ():
                self.board.add_scalar(name, math.nan if row[name] is None else row[name], row["step"])
            if self.remote is not None:
                self.remote.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    def recent_loss(self, count: int) -> float:
        """Return the mean of the last `count` training losses."""
        recent = self.losses[-count:]
        return math.fsum(recent) / len(recent) if all(map(math.isfinite, recent)) else math.nan

    def close(self) -> None:
        """Flush and close the files."""
        self.flush()
        if self.board is not None:
            self.board.close()
        if self.remote is not None:
            self.remote.finish()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the records from the first step on, up to a line that is cut off or damaged."""
    rows: list[dict[str, Any]] = []
    with suppress(OSError, ValueError):
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if not isinstance(row, dict) or row.get("step") != len(rows) + 1 or "loss" not in row:
                break
            rows.append(row)
    return rows


def read_result(folder: Path, run: str) -> dict[str, Any]:
    """Read the `result.json` of a finished run and check its id.

    Raises:
        LabError: the file is damaged, or belongs to another run.
    """
    path, remedy = folder / "result.json", "delete it, and the same command makes the run again"
    result = read_object(path, remedy, "id", "cell", "schedule", "seed", "val_loss", "diverged")
    if result["id"] != run:
        raise LabError(f"{path} is of the run {result['id']!r}, but this is {run!r}: {remedy}")
    return result
