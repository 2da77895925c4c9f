"""Compares schedules on a user's own task, from Python."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis import report
from ..analysis.results import Results
from ..config import CompareConfig, LabError, UsageError
from ..config.build import build, leaves
from ..config.yaml_files import merged, nested, read_yaml
from ..tasks import OwnTask
from ..tasks.own import PackedTask, pack
from ..training.stopping import Stop
from .display import Display
from .engine import make

__all__ = ["compare", "defaults", "with_task"]


def compare(
    task: OwnTask,
    *,
    rates: Mapping[str, Sequence[float]] | None = None,
    steps: int | None = None,
    seeds: Sequence[int] | None = None,
    schedules: Sequence[str] | None = None,
    warmups: Sequence[float] | None = None,
    out: str | Path | None = None,
    **more: Any,
) -> Results:
    """Train your own task under adaptive and hand-set warm-ups, and write table, figures and report.

    Finished runs in ``out`` are not repeated, so an interrupted comparison continues where it stopped. Worker processes
    make the runs and receive the task by value, so a script needs no ``__main__`` guard.

    Args:
        task: an object with the methods of `autowarm.lab.tasks.OwnTask`. Its ``defaults``, keys of
            `autowarm.lab.config.CompareConfig`, replace arguments that are not given.
        rates: peak rates to try with each optimizer, by name: one of the lab's ("muon", "lion", "adamw", …) or of the
            task's own.
        steps: updates in a run.
        seeds: each run is repeated with every seed; a verdict needs two or more.
        schedules: names of `autowarm.lab.registry.SCHEDULES`; "linear" is the hand-set one.
        warmups: hand-set warm-up lengths, in steps, or below 1 as a share of the run.
        out: folder of the results; "runs/compare" by default.
        more: any other key of `autowarm.lab.config.CompareConfig`, such as ``workers=1`` or ``run={"clip": 1.0}``.

    Returns:
        The results. Print them for a table with verdicts, or use ``summaries`` (one per optimizer and rate, with
        ``difference``), ``rows`` (the runs), ``failed`` and ``folder`` (which contains report.html).

    Raises:
        LabError: a key is wrong, or the task's code fails in every run; the message names the line.
    """
    given = {"rates": rates, "run.steps": steps, "seeds": seeds, "schedules": schedules, "warmups": warmups,
             "out": None if out is None else str(out)}  # fmt: skip
    chosen = {key: _plain(value) for key, value in given.items() if value is not None}
    values = merged(defaults(task), merged(nested(_plain(more)), nested(chosen)))
    if rates is not None:
        values["rates"] = chosen["rates"]  # replace the task's own rates instead of adding to them
    config, own = with_task(build(CompareConfig, values, "compare"), task)
    display = Display()
    with Stop(), display:
        results = make(config, config.points(), display, own)
    report.make(results)
    return results


def defaults(task: Any) -> dict[str, Any]:
    """Return the defaults of `CompareConfig`'s keys: the task's own, otherwise those of the preset `own`.

    Raises:
        UsageError: the task's `defaults` contain an unknown key.
    """
    theirs, name = getattr(task, "defaults", {}), getattr(task, "__name__", type(task).__name__)
    if not isinstance(theirs, Mapping):
        raise UsageError(f"defaults of the task {name} must be keys and values, got {theirs!r}")
    theirs = nested(_plain(theirs))
    try:
        leaves(theirs, CompareConfig, f"defaults of the task {name}")
    except LabError as error:
        raise UsageError(str(error)) from None
    found = merged(read_yaml("own")[0], theirs)
    usual: dict[str, list[float]] = {} if getattr(task, "optimizers", None) else {"adamw": [1e-3]}
    return {"rates": usual, **found}


def with_task(config: CompareConfig, task: Any) -> tuple[CompareConfig, PackedTask]:
    """Put the task into every run of the comparison, and pack it for other processes; it prepares itself in `out`.

    Raises:
        LabError: the task is broken, `rates` names an unknown optimizer, or the runs set what the task brings.
    """
    own = pack(task, Path(config.out) / "task")
    own.check_optimizers(config.rates)
    try:
        run = dataclasses.replace(config.run, task=own.key)
    except ValueError as error:
        raise UsageError(f"run: {error}") from None
    return dataclasses.replace(config, run=run), own


def _plain(value: Any) -> Any:
    """Convert mappings and sequences to dicts and lists, and NumPy's numbers to Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value
