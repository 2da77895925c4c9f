"""Plans: a short description of many runs. A plan lists its runs as `points`; `autowarm.lab.execution` makes them.

A comparison runs optimizers × rates × schedules × seeds. A sweep is more general. Its `base` holds the keys that all
runs share. Each of its `cells` has keys of its own under `set`, and a `grid`, which is a list of blocks. Every list in
a block is an axis, and the block stands for all combinations::

    base: {optimizer.name: muon, steps: 1000}
    cells:
      small: {set: {batch_size: 8}}
      large: {set: {batch_size: 32, optimizer.lr: 0.02}}
    grid:                                   # for cells without a grid of their own
      - {schedule.kind: adaptive}
      - {schedule.kind: linear, schedule.warmup_steps: [50, 0.1, 0.2]}   # with a point: a share of the steps
    seeds: [0, 1]

Keys are those of `RunConfig`, dotted or nested.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

from ..errors import LabError, as_usage_error, differences, nearest, require
from ..registry import FOLLOWED, OPTIMIZERS, SCHEDULES, check, title
from .build import build, leaves, merged
from .runs import BROUGHT, OF_IMAGES, OF_TEXT, RunConfig

_OF_A_CURVE = {"schedule.kind", "schedule.warmup_steps"}  # keys that may differ within one summary
_GRID = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # a comparison's hand-set warm-ups, as shares of the run
# Keys of a comparison's runs that it sets itself, and what to give instead.
_INSTEAD = {"seed": "seeds", "optimizer.name": "rates", "optimizer.lr": "rates", "schedule.kind": "schedules",
            "schedule.warmup_steps": "warmups"}  # fmt: skip
_USUAL = RunConfig()
_DIV = 10.0  # its hand-set ramps start from lr/10, as those of `AdaptiveWarmup` do


@dataclass(frozen=True)
class Point:
    """One run of a plan."""

    name: str  # the run in words, unique within the plan
    run: RunConfig
    cell: str = ""  # its cell's name in a sweep
    varied: Mapping[str, Any] = field(default_factory=dict)  # its values on the grid's axes, but for kind and length


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a plan's runs are made.

    Args:
        engine: "processes" on this machine, or "ray" on a cluster.
        workers: processes that run in parallel, each with one thread; null is one per GPU, or without a GPU as many
            as the cores and a container's quota of them allow.
        address: the Ray cluster's, HOST:PORT or auto; null starts Ray here.
    """

    engine: Literal["processes", "ray"] = "processes"
    workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        require(self.workers is None or self.workers > 0, f"workers must be at least 1, got {self.workers}")
        require(self.address is None or self.engine == "ray", "address belongs to engine ray")


@dataclass(frozen=True, kw_only=True)
class Plan(Where):
    """Many runs, each with every seed.

    Args:
        about: a title of one line; by default the outcome.
        seeds: every run is repeated with each of these seeds.
        out: folder of the results.
        store: folder of the runs; null is `runs` in `out`. Plans with the same store reuse each other's runs.
    """

    about: str = ""
    seeds: list[int] = field(default_factory=lambda: [0])
    out: str = "runs/sweep"
    store: str | None = None


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Plan):
    """A comparison of the adaptive warm-up with hand-set ones.

    Args:
        run: settings of all runs; hand-set ramps start at lr/10 without schedule.div.
        rates: peak rates to try with each optimizer. Each pair of optimizer and rate is compared separately.
        options: further arguments of single optimizers, for example {lion: {betas: [0.9, 0.95]}}.
        schedules: schedules to compare: adaptive, paper, linear, untuned, constant, greedy or wsd.
        warmups: hand-set warm-up lengths: whole numbers are updates, a number with a point, below 1.0, is a share
            of the run, null is 0, 5, 10, 20, 40 and 80% of it.
    """

    run: RunConfig = field(default_factory=RunConfig)
    rates: dict[str, list[float]] = field(default_factory=lambda: {"muon": [3e-3], "lion": [1e-3], "normsgd": [3e-2]})
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    schedules: list[str] = field(default_factory=lambda: ["adaptive", "linear"])
    warmups: list[int | float] | None = None
    seeds: list[int] = field(default_factory=lambda: [0, 1])
    out: str = "runs/compare"

    def __post_init__(self) -> None:
        require(len(self.rates) > 0, "rates must not be empty: give peak rates by optimizer, such as {adamw: [0.001]}")
        require(len(self.schedules) > 0, "schedules must not be empty")
        for key, other in _INSTEAD.items():
            require(attrgetter(key)(self.run) == attrgetter(key)(_USUAL),
                    f"run.{key} has no effect in a comparison: give {other}")  # fmt: skip
        for kind in self.schedules:
            check("schedules", kind, SCHEDULES)
            require(not SCHEDULES[kind].by_hand or self.warmups != [], "warmups must not be empty")
        in_range = all(0 <= warmup < math.inf for warmup in self.warmups or ())
        require(in_range, f"warmups must be finite and not negative, got {self.warmups}")
        super().__post_init__()

    @as_usage_error()
    def points(self) -> list[Point]:
        """List every run, seed by seed, so that an interrupted plan has complete seeds; UsageError if one is wrong."""
        if not self.run.is_own_task:
            for key, names in (("rates", self.rates), ("options", self.options)):
                for name in names:
                    check(key, name, OPTIMIZERS, "optimizer")
        base = dataclasses.replace(self.run.schedule, warmup_steps=None)
        steps = self.run.steps
        # A run of few updates has no room for every share.
        usual = [min(_updates(share, steps), steps - 1) for share in _GRID]
        lengths = usual if self.warmups is None else [_updates(warmup, steps) for warmup in self.warmups]
        by_hand = [dataclasses.replace(base, warmup_steps=length, div=base.div or _DIV) for length in lengths]
        schedules = [dataclasses.replace(one, kind=kind) for kind in self.schedules
                     for one in (by_hand if SCHEDULES[kind].by_hand else [base])]  # fmt: skip
        points = []
        for seed, (name, rates) in itertools.product(self.seeds, self.rates.items()):
            options = self.run.optimizer.options | self.options.get(name, {})
            for lr, schedule in itertools.product(rates, schedules):
                optimizer = dataclasses.replace(self.run.optimizer, name=name, lr=lr, options=options)
                run = dataclasses.replace(self.run, optimizer=optimizer, schedule=schedule, seed=seed)
                points.append(Point(f"{title(name)} {lr:g}, {schedule.words}, seed {seed}", run))
        return _distinct(points)


@dataclass(frozen=True, kw_only=True)
class SweepConfig(Plan):
    """A sweep: cells of runs, and where to make them.

    Args:
        base: keys that all runs share.
        cells: name → {set: the cell's keys, grid: its own blocks}; null drops a cell of the file that this one extends.
        grid: blocks for cells without a grid of their own.
        override: keys that override base, cells and grid, for a quick test.
        only: run only these cells.
    """

    base: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    grid: list[dict[str, Any]] = field(default_factory=lambda: [{"schedule.kind": "adaptive"}])
    override: dict[str, Any] = field(default_factory=dict)
    only: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        require(len(self.cells) > 0, "cells must not be empty: name each with its settings, as in cells: {small: {set: "
                "{batch_size: 8}}}, or give a preset by --config, such as tiny/baselines")  # fmt: skip
        super().__post_init__()
        for name in self.only:
            require(name in self.cells, f"only: no cell {name!r}; {nearest(name, self.cells)}")
        for name, cell in self.cells.items():
            extra = sorted(set(cell or {}) - {"set", "grid"})
            require(not extra, f"cells.{name}: unknown key {extra[:1]}; a cell has the keys set and grid")

    @as_usage_error()
    def points(self) -> list[Point]:
        """List every run, seed by seed, so that an interrupted plan has complete seeds; UsageError if one is wrong."""
        chosen = []
        for name, cell in self.cells.items():
            if cell is None or (self.only and name not in self.only):
                continue
            place = f"cells.{name}"
            for settings, varied in combinations(cell.get("grid") or self.grid, place):
                parts = (self.base, cell.get("set") or {}, settings, self.override)
                keys = {key: value for part in parts for key, value in leaves(part, RunConfig, place).items()}
                require("seed" not in keys, f"{place}: seed is set by the sweep's seeds, such as seeds: [0, 1]")
                warmup, steps = keys.get("schedule.warmup_steps"), keys.get("steps", RunConfig.steps)
                if isinstance(warmup, float) and warmup <= 1 and isinstance(steps, int):
                    keys["schedule.warmup_steps"] = _updates(warmup, steps)
                chosen.append((name, varied, build(RunConfig, keys, place)))
        _check_effect(chosen)
        fixed, points = leaves(self.override, RunConfig, "override"), []
        for seed, (name, varied, run) in itertools.product(self.seeds, chosen):
            axes = {key: value for key, value in varied.items() if key not in fixed}
            words = [name, run.schedule.words, *(f"{key.split('.')[-1]} {value}" for key, value in axes.items())]
            points.append(Point(", ".join([*words, f"seed {seed}"]), dataclasses.replace(run, seed=seed), name, axes))
        return _distinct(points)


def _check_effect(chosen: Iterable[tuple[str, Mapping[str, Any], RunConfig]]) -> None:
    """Raise LabError if two values on an axis give the same run: what varies must have an effect."""
    first: dict[tuple[str, str], Mapping[str, Any]] = {}
    for name, varied, run in chosen:
        kind = run.schedule.kind
        ignored = {key: None for key, kinds in FOLLOWED.items() if kind not in kinds}
        other = first.setdefault((name, repr(merged(dataclasses.asdict(run), {"schedule": ignored}))), varied)
        if key := next((key for key in varied if varied[key] != other.get(key, varied[key])), None):
            raise LabError(f"cells.{name}: {key} {other[key]} and {varied[key]} give the same {kind} run, because "
                           "another key or the override has the last word: leave one out")  # fmt: skip


def _distinct(points: Sequence[Point]) -> list[Point]:
    """Leave out repeated runs: two shares may round to the same update. Different runs need different names.

    Runs of one curve differ in the length of their warm-ups alone.
    """
    settings_of: dict[Any, dict[str, Any]] = {}
    for point in points:
        run, settings = point.run, dataclasses.asdict(point.run)
        varied = repr(sorted(point.varied.items()))
        curve = point.cell, varied, run.optimizer.name, run.optimizer.lr, run.schedule.kind, run.seed
        whole = merged(settings, {"schedule": {"warmup_steps": None}})
        for key, values in ((point.name, settings), (curve, whole)):
            if differ := differences(settings_of.setdefault(key, values), values):
                raise LabError(f"two runs like {point.name!r} differ in {differ[0]}: give both values in one list, or "
                               "make two cells")  # fmt: skip
    require(len(points) > 0, "the plan has no runs: one of its lists is empty")
    return list({point.name: point for point in points}.values())


def combinations(grid: Sequence[Mapping[str, Any]], source: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield every combination of every block as its settings and their subset on the grid's axes; last axis fastest."""
    for block in (leaves(block, RunConfig, source) for block in grid):
        axes = {key for key, value in block.items() if isinstance(value, list)} - _OF_A_CURVE
        for values in itertools.product(*(value if isinstance(value, list) else [value] for value in block.values())):
            settings = dict(zip(block, values, strict=True))
            yield settings, {key: value for key, value in settings.items() if key in axes}


def read_by(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison's settings without what none of its runs reads; those of a sweep are what its file sets."""
    if "schedules" not in config:
        return dict(config)
    run, kinds = config["run"], set(config["schedules"])
    unread = {*_INSTEAD, *(f"schedule.{key}" for key, followers in FOLLOWED.items() if kinds.isdisjoint(followers))}
    unread |= {*(BROUGHT if run["task"] else OF_IMAGES if run["model"]["name"] == "llama" else OF_TEXT)}
    if OPTIMIZERS.keys().isdisjoint(config["rates"]):  # the task makes its own
        unread |= {"optimizer"}

    def kept(values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
        return {key: kept(value, f"{place}{key}.") if isinstance(value, Mapping) else value
                for key, value in values.items() if f"{place}{key}" not in unread}  # fmt: skip

    task = run["task"] and run["task"].partition("@")[0]  # a user's own has a checksum after its name
    return {**config, "run": {**kept(run), "task": task}}


def _updates(warmup: float, steps: int) -> int:
    """Convert a warm-up length to updates; a float up to 1.0 is a share of the run, and above 0 at least one update."""
    is_share = isinstance(warmup, float) and warmup <= 1
    return max(int(warmup > 0), round(warmup * steps)) if is_share else round(warmup)


@dataclass(frozen=True)
class FigureConfig(Where):
    """Figures and tables of the paper, by name.

    Args:
        name: the figure, or all; `autowarm figure --list` lists names and costs.
        scale: "tiny", for minutes on a CPU; "horizon", the paper's numbers of steps on a small model, for hours on a
            CPU; or "paper", which needs GPUs and FineWeb.
        figures: folder for the figures and tables.
        out: folder of runs and measurements; null is runs/SCALE.
        override: keys that override those of the sweeps, such as {steps: 20} for a quick test.
        seeds: seeds to use instead of the sweeps' own.
    """

    name: str = ""
    scale: Literal["tiny", "horizon", "paper"] = "tiny"
    figures: str = "figures"
    out: str | None = None
    override: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None

    def __post_init__(self) -> None:
        require(self.name != "", "figure needs a name, or all; autowarm figure --list names them")
        super().__post_init__()
