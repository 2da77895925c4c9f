"""The finished runs of a study: one file, with one run per line."""

import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock

from autowarm.lab.analysis.statistics import Losses
from autowarm.lab.config import LabError
from autowarm.lab.files import write_atomically

Row = Mapping[str, Any]
"""A finished run: its plan, its losses, where and why its warm-up ended, and the seconds it took."""


@dataclass(frozen=True, order=True)
class Cell:
    """A setting: a task trained by an optimizer for a number of steps at a peak rate."""

    task: str
    optimizer: str
    steps: int
    lr: float

    @property
    def name(self) -> str:
        """The cell on pages and in commands, such as mlp.muon.1000.0.03."""
        return f"{self.task}.{self.optimizer}.{self.steps}.{self.lr:g}"


@dataclass(frozen=True, order=True)
class PlannedRow:
    """Identifies one run, and holds all that is needed to make it.

    The schedule is the name of an entry, such as "linear 0.1". The seed is that of the initial weights and of the
    order of the data. The target loss is the f* given to Algorithm 1, which follows from other rows.
    """

    part: str
    cell: Cell
    schedule: str
    seed: int
    target_loss: float | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The run in messages."""
        return f"{self.part} {self.cell.name} {self.schedule} seed {self.seed}"

    @classmethod
    def of(cls, row: Row) -> "PlannedRow":
        """The plan of a finished run."""
        return cls(row["part"], Cell(**row["cell"]), row["schedule"], row["seed"])


class Rows:
    """Finished runs, indexed by their plans; if two have the same plan, the later one counts."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = {PlannedRow.of(row): row for row in rows}
        self._seeds: dict[tuple[str, Cell, str], dict[int, Row]] = {}
        for planned, row in self._rows.items():
            self._seeds.setdefault((planned.part, planned.cell, planned.schedule), {})[planned.seed] = row

    @classmethod
    def load(cls, path: Path) -> "Rows":
        """The rows in a file, or no rows if the file does not exist.

        Raises:
            LabError: a line is not a run.
        """
        rows = []
        for number, line in enumerate(_whole(path).splitlines() if path.exists() else (), 1):
            try:
                rows.append(json.loads(line))
                PlannedRow.of(rows[-1])
            except (ValueError, TypeError, KeyError) as error:
                raise LabError(
                    f"{path} is damaged: line {number} is not a run ({error!r}); restore the file, or delete the line "
                    "so that the run is made again"
                ) from None
        return cls(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        """Iterate in sorted order, so that equal rows make equal files."""
        return (self._rows[planned] for planned in sorted(self._rows))

    def __contains__(self, planned: PlannedRow) -> bool:
        return planned in self._rows

    def __getitem__(self, planned: PlannedRow) -> Row:
        return self._rows[planned]

    def runs(self, part: str, cell: Cell, schedule: str, seeds: Sequence[int] | None = None) -> Mapping[int, Row]:
        """The runs of a schedule in a cell, by seed: all of them, or those of the given seeds.

        Raises:
            LabError: the run of a given seed has not been made.
        """
        rows_by_seed = self._seeds.get((part, cell, schedule), {})
        if seeds is None:
            return rows_by_seed
        if left := [seed for seed in seeds if seed not in rows_by_seed]:
            raise LabError(f"{cell.name} has not been run under {schedule!r} with the seeds {left} (part {part!r})")
        return {seed: rows_by_seed[seed] for seed in seeds}

    def cells(self, part: str) -> Mapping[Cell, Sequence[str]]:
        """The cells of a part, sorted, each with the schedules that have been run in it."""
        schedules: dict[Cell, list[str]] = {}
        for of, cell, schedule in sorted(self._seeds):
            if of == part:
                schedules.setdefault(cell, []).append(schedule)
        return schedules

    def losses(self, part: str, cell: Cell, schedule: str, seeds: Sequence[int] | None = None) -> Losses:
        """The held-out losses of these `runs`, by seed; infinite if the run diverged."""
        return {
            seed: math.inf if row["diverged"] or row["val_loss"] is None else float(row["val_loss"])
            for seed, row in self.runs(part, cell, schedule, seeds).items()
        }

    def first_loss(self, part: str, cell: Cell, schedule: str, seeds: Sequence[int]) -> float:
        """The mean over these `runs` of the loss before the first update."""
        return statistics.fmean(row["first_loss"] for row in self.runs(part, cell, schedule, seeds).values())

    def save(self, path: Path) -> None:
        """Write the rows, sorted, one per line. A reader sees the complete old file or the complete new one."""
        write_atomically(path, b"".join(map(_line, self)))


def append(path: Path, row: Row) -> None:
    """Add a finished run to a file; on return it is on disk. Other processes may add runs at the same time.

    Readers ignore a line that a crash or a full disk cut short, and the next call removes it. If a run was made twice,
    the later line counts, and `tidy` removes the earlier one.
    """
    line = _line(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path), open(path, "ab") as file:
        file.truncate(len(_whole(path)))
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def tidy(path: Path) -> None:
    """Sort the lines of a file that runs were appended to, and keep each run once."""
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
