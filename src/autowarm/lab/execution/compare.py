"""A comparison of schedules on a user's own task, from Python."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis import report
from ..analysis.results import Results
from ..config import CompareConfig
from ..config.build import build, merged, nested, read_yaml
from ..tasks.own import OwnTask, PackedTask, pack
from ..training.stopping import Stop
from .display import Display
from .engine import make

__all__ = ["compare", "configured", "defaults", "packed"]


def compare(
    task: OwnTask,
    *,
    rates: Mapping[str, Sequence[float]] | None = None,
    steps: int | None = None,
    seeds: Sequence[int] | None = None,
    schedules: Sequence[str] | None = None,
    warmups: Sequence[float] | None = None,
    out: str | Path = "runs/compare",
    **more: Any,
) -> Results:
    """Train your own task under adaptive and hand-set warm-ups, and write table, figures and report.

    A run that is finished in ``out`` is not made again, so an interrupted comparison goes on where it stopped. Runs are
    made by worker processes: call this under ``if __name__ == "__main__":`` in a script. A notebook needs nothing.

    Args:
        task: an object with the methods of `autowarm.lab.tasks.own.OwnTask`. Its ``defaults``, a mapping of the keys
            below, count where an argument is not given.
        rates: peak rates of each optimizer, by name: the lab's ("muon", "lion", "adamw", …) or one of the task's own.
        steps: updates in a run.
        seeds: every run is made once with each; two or more for a verdict.
        schedules: "adaptive", "linear" (hand-set), "paper", "constant", "greedy", "wsd".
        warmups: hand-set lengths, below 1 a share of the steps.
        out: folder of the results.
        more: any other key of `autowarm.lab.config.CompareConfig`, such as ``workers=1`` or ``run={"clip": 1.0}``.

    Returns:
        The results: ``summaries`` (one for each optimizer and rate, with ``difference``), ``rows`` (the runs), and
        ``folder``, which holds report.html.

    Raises:
        LabError: a key is wrong, or the task's code fails; the message names the line.
    """
    given = {"rates": rates, "run.steps": steps, "seeds": seeds, "schedules": schedules, "warmups": warmups}
    chosen = {key: _plain(value) for key, value in given.items() if value is not None}
    values = merged(merged(read_yaml("own")[0], defaults(task)), nested(more))
    values = {**merged(values, nested({**chosen, "out": str(out)})), **({"rates": chosen["rates"]} if rates else {})}
    own = packed(task, Path(out))
    config = configured(build(CompareConfig, values, "compare"), own)
    display = Display()
    with Stop(), display:
        results = make(config, config.points(), display, own)
    report.make(results)
    return results


def defaults(task: OwnTask) -> dict[str, Any]:
    """The keys of `CompareConfig` that a task brings along; AdamW at its usual rate where it names no rates."""
    return {"rates": {"adamw": [1e-3]}, **nested(getattr(task, "defaults", {}))}


def packed(task: OwnTask, out: Path) -> PackedTask:
    """The task, ready to travel; what it prepares is kept beside the results."""
    return pack(task, out / "task")


def configured(config: CompareConfig, own: PackedTask) -> CompareConfig:
    """The comparison with the task in every run.

    Raises:
        LabError: a rate is of an unknown optimizer.
    """
    own.check_optimizers(config.rates)
    return dataclasses.replace(config, run=dataclasses.replace(config.run, task=own.key))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [*value] if isinstance(value, Sequence) and not isinstance(value, str) else value
