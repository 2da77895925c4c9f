"""A run's records: `metrics.jsonl`, TensorBoard and Weights & Biases at every step, `result.json` at the end."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from ..config import LabError
from ..files import read_object, sha256, write_atomically

if TYPE_CHECKING:
    from ..tasks import Task


def read_identity(folder: Path) -> dict[str, Any] | None:
    """Read whose run a folder holds, and its precision, from its config.yaml; None if there is none."""
    path = folder / "config.yaml"
    if not path.exists():
        return None
    with suppress(yaml.YAMLError, UnicodeDecodeError):
        match yaml.safe_load(path.read_text(encoding="utf-8")):
            case {"config": dict()} as identity:
                return identity
    raise LabError(f"{path} is damaged, so its run cannot be identified: choose another folder or delete it")


@dataclass
class Progress:
    """A run's history up to `step`, which its checkpoint stores along with the weights and states."""

    step: int = 0  # updates made
    loss: float = math.nan  # of the last batch, before the update
    lr: float = math.nan  # the update's rate
    grad_norm: float = math.nan  # of the update, before clipping; NaN without clipping, which alone computes it
    seconds: float = 0.0  # in training so far
    eval_seconds: float = 0.0  # in evaluations so far
    first_loss: float = math.nan  # of the first batch whose loss is finite
    switched_at: int | None = None  # the step at which warm-up ended
    ended_by: str | None = None
    diverged: bool = False
    warnings: list[str] = field(default_factory=list)


# Called after each step; the run stops there if it returns True.
OnStep: TypeAlias = Callable[[Progress], bool | None]


def finite(value: float) -> float | None:
    """Return the value, or None (null in JSON) if it is not finite."""
    return value if math.isfinite(value) else None


class MetricsLog:
    """Writes metrics in batches of steps, starting after `step`, the checkpoint's.

    The config of the run's task says whether to log to TensorBoard and Weights & Biases, too. All ranks but the first
    are `quiet`: they write nothing and only collect the losses.
    """

    _EVERY = 50

    def __init__(self, folder: Path, step: int, run: str, task: "Task", *, quiet: bool) -> None:
        self.path = folder / "metrics.jsonl"
        self.quiet = quiet
        self._examples, self._seconds, config = task.examples, math.nan, task.config
        earlier = [row for row in read_metrics(folder) if row["step"] <= step]
        # What the schedule's state was, so that a resumed run records the same changes as one that was not stopped.
        self._schedule_state = {name: x for row in earlier for name, x in row.items() if name.startswith("autowarm/")}
        self.losses = [row["loss"] if row["loss"] is not None else math.nan for row in earlier]
        self.pending: list[dict[str, Any]] = []
        self.board: Any = None
        self.remote: Any = None
        if quiet:
            return
        # Steps after the checkpoint are made again, so delete their lines.
        write_log(folder, earlier)
        if config.engine.keep_weights:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder), purge_step=step + 1)
        if config.engine.wandb is not None:
            try:
                from wandb import init
            except ImportError:
                raise LabError("engine.wandb needs the package wandb: pip install wandb, or leave it null") from None
            # A resumed run keeps its id, so it stays the same run there. A folder's name would not identify it.
            about: dict[str, Any] = {"name": folder.name, "id": run, "dir": str(folder), "resume": "allow"}
            self.remote = init(project=config.engine.wandb, config=dataclasses.asdict(config), **about)

    def write(
        self, progress: Progress, scores: Mapping[str, float] | None, schedule: Mapping[str, float | int | str],
        measured: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Record one step: the run, an evaluation's scores and what has changed of the schedule after it."""
        self.losses.append(progress.loss)
        row: dict[str, Any] = {"step": progress.step, "loss": finite(progress.loss), "lr": progress.lr}
        if not math.isnan(progress.grad_norm):
            row["grad_norm"] = finite(progress.grad_norm)
        row["seconds"] = round(progress.seconds, 4)
        if self._examples is not None and (took := progress.seconds - self._seconds) > 0:
            row["tokens_per_second"] = round(self._examples / took, 1)
        self._seconds = progress.seconds
        row |= {name: finite(value) for name, value in measured.items()}
        if scores is not None:
            row |= {f"val_{name}": finite(value) for name, value in scores.items()}
            row["eval_seconds"] = round(progress.eval_seconds, 4)
        row |= {name: value for name, value in schedule.items() if self._schedule_state.get(name) != value}
        self._schedule_state |= schedule
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
            values = {name: value for name, value in row.items() if name != "step"}
            if self.remote is not None:
                self.remote.log(values, step=row["step"])
            if self.board is not None:
                from tensorboard.compat.proto.summary_pb2 import Summary

                numbers = Summary()  # in one event, which takes a tenth of the time of one each
                for name, value in values.items():
                    if isinstance(value, str):
                        self.board.add_text(name, value, row["step"])
                    else:
                        numbers.value.add(tag=name, simple_value=math.nan if value is None else value)
                self.board.file_writer.add_summary(numbers, row["step"])

    def close(self) -> None:
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


def write_log(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_atomically(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def log_checksum(folder: Path, steps: int) -> str:
    path = folder / "metrics.jsonl"
    return sha256(b"".join(path.read_bytes().splitlines(keepends=True)[:steps] if path.exists() else ()))


def read_result(folder: Path, run: str) -> dict[str, Any]:
    """Read the `result.json` of a finished run; LabError if the file is damaged, or belongs to another run."""
    path, remedy = folder / "result.json", "delete it, and the same command makes the run again"
    result = read_object(path, remedy, "id", "cell", "schedule", "seed", "val_loss", "diverged")
    if result["id"] != run:
        raise LabError(f"{path} is of the run {result['id']!r}, but this is {run!r}: {remedy}")
    return result
