"""The finished runs of a study: one file, one run a line."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock

from ..analysis.statistics import Losses
from ..config import LabError
from ..files import write_atomically

__all__ = ["Cell", "PlannedRow", "Row", "Rows", "append", "tidy"]

Row = Mapping[str, Any]
"""A finished run: what it was planned as, its losses, where its warm-up ended and by what, the seconds it took."""


@dataclass(frozen=True, order=True)
class Cell:
    """A setting: a task trained by an optimizer for so many steps at a peak rate."""

    task: str
    optimizer: str
    steps: int
    lr: float

    @property
    def name(self) -> str:
        """What pages and commands call it.

        Example:
            >>> from autowarm.lab.study.rows import Cell
            >>> Cell("mlp", "muon", 1000, 0.03).name
            'mlp.muon.1000.0.03'
        """
        return f"{self.task}.{self.optimizer}.{self.steps}.{self.lr:g}"


@dataclass(frozen=True, order=True)
class PlannedRow:
    """What tells one run of a study from all others, and so all that is needed to make it.

    Args:
        part: the part of the study: "tuning", "cells", "parts", "forms", "peers", "orders",
            "sensitivity" or "peak".
        cell: the setting.
        schedule: in the study's words, such as "linear 0.1" or "default max_warmup=0.2".
        seed: of the initial weights, and of the order of the data if `order` is 0.
        order: a seed of its own for the order of the data.
        target_loss: the f* that Algorithm 1 is told. It follows from other rows, and tells no runs apart.
    """

    part: str
    cell: Cell
    schedule: str
    seed: int
    order: int = 0
    target_loss: float | None = field(default=None, compare=False)

    @classmethod
    def of(cls, row: Row) -> "PlannedRow":
        """What a finished run was planned as."""
        return cls(row["part"], Cell(**row["cell"]), row["schedule"], row["seed"], row.get("order", 0))


class Rows:
    """Finished runs, indexed by what they are.

    Args:
        rows: of two that were planned as the same run, the later one counts.

    Example:
        >>> from autowarm.lab.study.rows import Cell, Rows
        >>> cell = {"task": "mlp", "optimizer": "muon", "steps": 200, "lr": 0.03}
        >>> run = {"part": "cells", "cell": cell, "schedule": "default", "seed": 0, "val_loss": 0.7, "diverged": False}
        >>> rows = Rows([run, {**run, "seed": 1, "val_loss": None, "diverged": True}])
        >>> rows.losses("cells", Cell(**cell), "default")
        {0: 0.7, 1: inf}
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = {PlannedRow.of(row): row for row in rows}
        self._seeds: dict[tuple[str, Cell, str], dict[int, Row]] = {}
        for planned, row in self._rows.items():
            if not planned.order:
                self._seeds.setdefault((planned.part, planned.cell, planned.schedule), {})[planned.seed] = row

    @classmethod
    def load(cls, path: Path) -> "Rows":
        """The rows in a file; none if there is no such file.

        Raises:
            LabError: a line is not a run.
        """
        return cls(_parsed(path)) if path.exists() else cls()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        """Sorted, so that equal rows make equal files."""
        return (self._rows[planned] for planned in sorted(self._rows))

    def __contains__(self, planned: PlannedRow) -> bool:
        return planned in self._rows

    def __getitem__(self, planned: PlannedRow) -> Row:
        return self._rows[planned]

    def runs(self, part: str, cell: Cell, schedule: str, seeds: Iterable[int] | None = None) -> Mapping[int, Row]:
        """The runs of a schedule in a cell, by seed: those that there are, or those of the seeds given.

        Raises:
            LabError: a seed is given whose run has not been made.
        """
        found = self._seeds.get((part, cell, schedule), {})
        if seeds is None:
            return found
        wanted = list(seeds)
        if left := [seed for seed in wanted if seed not in found]:
            raise LabError(
                f"{cell.name} has not been run under {schedule!r} with the seeds {left} (part {part!r} of the study): "
                "run its stages in their order"
            )
        return {seed: found[seed] for seed in wanted}

    def losses(self, part: str, cell: Cell, schedule: str, seeds: Iterable[int] | None = None) -> Losses:
        """Their held-out losses, by seed; infinite where the run diverged. See `runs`."""
        return {
            seed: math.inf if row["diverged"] or row["val_loss"] is None else float(row["val_loss"])
            for seed, row in self.runs(part, cell, schedule, seeds).items()
        }

    def save(self, path: Path) -> None:
        """Write them, one a line, sorted. A reader sees the old file or the new one, whole."""
        write_atomically(path, b"".join(map(_line, self)))


def append(path: Path, row: Row) -> None:
    """Add a finished run to a file, which other processes may be adding to as well; it is on disk on return.

    A line counts once it is whole: one that a crash or a full disk cut short is ignored by readers, and cut off here.
    Of a run made twice the later line counts, until `tidy` removes the earlier one.
    """
    line = _line(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path), open(path, "ab") as file:
        file.truncate(len(_whole(path)))
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def tidy(path: Path) -> None:
    """Sort the lines of a file that runs were appended to, each run once."""
    with _locked(path):
        Rows.load(path).save(path)


def _locked(path: Path) -> BaseFileLock:
    return FileLock(path.with_name(f".{path.name}.lock"))


def _line(row: Row) -> bytes:
    text = json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _whole(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def _parsed(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_whole(path).splitlines(), 1):
        try:
            row = json.loads(line)
            PlannedRow.of(row)
        except (ValueError, TypeError, KeyError) as error:
            raise LabError(
                f"{path} is damaged: line {number} is not a run ({error!r}); restore the file, or delete the line and "
                "that run is made again"
            ) from None
        yield row
