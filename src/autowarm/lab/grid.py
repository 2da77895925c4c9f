"""From a sweep's short description to its runs.

A sweep has a `base`, the keys that all its runs share; `cells`, each with keys of its own under `set`; and in each cell
a `grid`, a list of blocks. In a block every list is an axis, and the block stands for all combinations::

    base: {optimizer.name: muon, steps: 1000}
    cells:
      small: {set: {batch_size: 8}}
      large: {set: {batch_size: 32, optimizer.lr: 0.02}}
    grid:                                   # of every cell that has none of its own
      - {schedule.kind: adaptive}
      - {schedule.kind: linear, schedule.warmup_steps: [50, 0.1, 0.2]}   # below 1: a share of the steps
    seeds: [0, 1]

Keys are those of `RunConfig`, dotted or nested.
"""

import dataclasses
import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .config import LabError, RunConfig, known_keys, nearest, require

EngineName = Literal["processes", "ray"]
_OF_A_CURVE = {"schedule.kind", "schedule.warmup_steps"}  # what may differ between the runs that a summary compares


@dataclass(frozen=True)
class SweepConfig:
    """Cells of runs, and where they are made.

    Args:
        about: what it is, in a line.
        base: keys that all runs share.
        cells: name → {set: keys of the cell, grid: its own blocks}; null leaves out a cell of the file it extends.
        grid: the blocks of every cell that has none of its own.
        seeds: every run is made once with each.
        override: keys that count over those of base, cells and grid, for a quick look.
        only: make these cells alone.
        out: folder of the results.
        store: folder of the runs; null is `runs` in `out`. Sweeps that share a store share runs they have in common.
        engine: "processes" on this machine, one per GPU or core; "ray" on a cluster.
        workers: processes side by side; null is one per GPU, or per core.
        address: of the Ray cluster, HOST:PORT or auto; null starts Ray here.
    """

    about: str = ""
    base: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    grid: list[dict[str, Any]] = field(default_factory=lambda: [{"schedule.kind": "adaptive"}])
    seeds: list[int] = field(default_factory=lambda: [0])
    override: dict[str, Any] = field(default_factory=dict)
    only: list[str] = field(default_factory=list)
    out: str = "runs/sweep"
    store: str | None = None
    engine: EngineName = "processes"
    workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        require(len(self.cells) > 0, "cells must not be empty: give a sweep by --config, such as tiny/baselines")
        require(len(self.seeds) > 0, "seeds must not be empty")
        require(self.workers is None or self.workers > 0, f"workers must be at least 1, got {self.workers}")
        require(self.address is None or self.engine == "ray", "address belongs to engine ray")
        for name in self.only:
            require(name in self.cells, f"only: no cell {name!r}; {nearest(name, self.cells)}")
        for name, cell in self.cells.items():
            extra = sorted(set(cell or {}) - {"set", "grid"})
            require(not extra, f"cells.{name}: unknown key {extra[:1]}; a cell has the keys set and grid")

    def points(self) -> list["Point"]:
        """Every run, seed by seed, so that an interrupted sweep has whole seeds first."""
        found = [
            Point(name, seed, varied, run_of({**flat(self.base), **flat(cell.get("set") or {}), **settings,
                                              **flat(self.override), "seed": seed}, f"cells.{name}"))
            for seed in self.seeds
            for name, cell in self.cells.items()
            if cell is not None and (not self.only or name in self.only)
            for settings, varied in combinations(cell.get("grid") or self.grid)
        ]  # fmt: skip
        return list({point.name: point for point in found}.values())  # two shares may round to the same step


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        cell: its cell.
        seed: its seed.
        varied: its place on the grid's axes, but for the kind of schedule and the length of the warm-up.
        run: the run itself.
    """

    cell: str
    seed: int
    varied: dict[str, Any]
    run: RunConfig

    @property
    def name(self) -> str:
        """The point in words, its own within a sweep."""
        schedule = self.run.schedule
        words = [schedule.kind if schedule.warmup_steps is None else f"{schedule.kind}{schedule.warmup_steps}"]
        words += [f"{key.split('.')[-1]}={value}" for key, value in self.varied.items()]
        return " ".join([self.cell, *words, f"seed{self.seed}"])


def combinations(grid: Sequence[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every combination of every block, the last axis fastest; and of each, what sets it apart from its cell."""
    for block in grid:
        block = flat(block)
        axes = {key for key, value in block.items() if isinstance(value, list)} - _OF_A_CURVE
        for values in itertools.product(*(value if isinstance(value, list) else [value] for value in block.values())):
            settings = dict(zip(block, values, strict=True))
            yield settings, {key: value for key, value in settings.items() if key in axes}


def flat(values: Mapping[str, Any], config_class: type = RunConfig, prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones; a value that is a mapping itself, such as an optimizer's options, stays whole."""
    if not isinstance(values, Mapping):
        raise LabError(f"a sweep's base, set, override and blocks hold keys and values, got {values!r}")
    kinds = {item.name: item.type for item in dataclasses.fields(config_class)}
    found: dict[str, Any] = {}
    for key, value in values.items():
        kind = kinds.get(key)
        if isinstance(value, Mapping) and isinstance(kind, type) and dataclasses.is_dataclass(kind):
            found |= flat(value, kind, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def run_of(values: Mapping[str, Any], source: str) -> RunConfig:
    """The run with these dotted keys; all others have their defaults.

    Raises:
        LabError: a key is unknown or a value does not suit it; the message names both.
    """
    if unknown := set(values) - known_keys(RunConfig):
        key = sorted(unknown)[0]
        raise LabError(f"{source}: unknown key {key!r}; {nearest(key, known_keys(RunConfig))}")
    values = dict(values)
    warmup = values.get("schedule.warmup_steps")
    if isinstance(warmup, float) and warmup < 1:
        values["schedule.warmup_steps"] = max(1, round(warmup * int(values.get("steps", RunConfig.steps))))

    def make(kind: Any, prefix: str) -> Any:
        arguments: dict[str, Any] = {}
        for item in dataclasses.fields(kind):
            key = prefix + item.name
            if dataclasses.is_dataclass(item.type):
                arguments[item.name] = make(item.type, f"{key}.")
            elif key in values:
                arguments[item.name] = _typed(values[key], item.type, f"{source}: {key}")
        return kind(**arguments)

    try:
        run: RunConfig = make(RunConfig, "")
    except ValueError as error:
        raise LabError(f"{source}: {error}") from None
    return run


def _typed(value: Any, kind: Any, where: str) -> Any:
    """The value as the field's type has it, or an error that names both."""
    if typing.get_origin(kind) is Literal:
        if value in (known := typing.get_args(kind)):
            return value
        raise LabError(f"{where}: unknown {value!r}; {nearest(str(value), map(str, known))}")
    choices = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    kinds = [typing.get_origin(choice) or choice for choice in choices]
    if float in kinds and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3, which has no point, as text
        except ValueError:
            pass
    if not any(isinstance(value, one) for one in kinds) or (isinstance(value, bool) and bool not in kinds):
        raise LabError(f"{where}: must be {' or '.join(getattr(one, '__name__', str(one)) for one in kinds)}, "
                       f"got {value!r}")  # fmt: skip
    return value
