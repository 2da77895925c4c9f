"""`autowarm compare` and `autowarm.lab.compare`: schedules side by side, on the lab's task or your own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import CompareConfig, UsageError
from ..config.build import build, merged, nested, parse, plain, take_task
from .report import complain, show

if TYPE_CHECKING:
    from ..analysis.results import Results
    from ..tasks import OwnTask
    from ..tasks.own import PackedTask


def run(argv: list[str]) -> int:
    about = "Compare the adaptive warm-up with hand-set ones. If interrupted, run the same command to continue."
    config, own = asked(argv, "compare", about, preset="demo")
    if config.run.missing_corpus:
        raise UsageError(config.run.missing_corpus)
    if len(config.seeds) == 1:
        print(f"one seed, {config.seeds[0]}, decides nothing: for four seeds give --seeds [0,1,2,3]")
    points = config.points()

    from ..execution.engine import make_report

    return complain(show(*make_report(config, points, own)).failed)


def asked(
    argv: list[str], command: str, about: str, preset: str | None = None, usual: Mapping[str, Any] | None = None
) -> tuple[CompareConfig, "PackedTask | None"]:
    """Read a comparison from a command's words, and the user's own task, if they name one.

    Without one the preset counts, and `usual` are values of keys that neither it nor the task sets otherwise.
    """
    place, argv = take_task(argv, "run.task")
    also = {"--task": "yours, FILE.py:NAME, under the preset own, or a small one of the lab; see docs/training.md"}
    values = nested(usual or {})
    if place is None:
        preset = None if "--run.task" in argv else preset
        return parse(argv, CompareConfig, command, about, preset=preset, defaults=values, also=also), None

    from ..tasks.own import bring, defaults, load

    task = load(place)
    values = merged(defaults(task), values)
    return bring(task, parse(argv, CompareConfig, command, about, defaults=values, also=also))


def compare(
    task: "OwnTask",
    *,
    rates: Mapping[str, Sequence[float]] | None = None,
    steps: int | None = None,
    seeds: Sequence[int] | None = None,
    schedules: Sequence[str] | None = None,
    warmups: Sequence[float] | None = None,
    out: str | Path | None = None,
    **more: Any,
) -> "Results":
    """Train your own task under adaptive and hand-set warm-ups, and write table, figures and report.

    Finished runs in ``out`` are not repeated, so an interrupted comparison continues where it stopped. Worker processes
    make the runs and receive the task by value, so a script needs no ``__main__`` guard.

    Args:
        task: an object with the methods of `autowarm.lab.tasks.OwnTask`. Its ``defaults``, keys of
            `autowarm.lab.config.CompareConfig`, replace arguments that are not given.
        rates: peak rates to try with each optimizer, by name: one of `autowarm.lab.registry.OPTIMIZERS` or of the
            task's own.
        steps: updates in a run.
        seeds: each run is repeated with every seed; one decides nothing.
        schedules: names of `autowarm.lab.registry.SCHEDULES`; "linear" is the hand-set one.
        warmups: hand-set warm-up lengths: whole numbers are updates, floats below 1.0 shares of the run. By default
            0, 5, 10, 20, 40 and 80% of the run.
        out: folder of the results; "runs/compare" by default.
        more: any other key of `autowarm.lab.config.CompareConfig`, such as ``workers=1`` or ``run={"clip": 1.0}``.

    Returns:
        The results. Print them for a table with verdicts, or use ``summaries`` (one per optimizer and rate, with
        ``outcome`` and ``difference``), ``rows`` (the runs), ``failed`` and ``folder`` (which contains report.html).

    Raises:
        LabError: a key is wrong, or the task's code fails in every run; the message names the line.
    """
    from ..execution.engine import make_report
    from ..tasks.own import bring, defaults

    named = {"rates": rates, "run.steps": steps, "seeds": seeds, "schedules": schedules, "warmups": warmups,
             "out": None if out is None else str(out)}  # fmt: skip
    named = {key: plain(value) for key, value in named.items() if value is not None}
    values = merged(defaults(task), merged(nested(plain(more)), nested(named)))
    if rates is not None:
        values["rates"] = named["rates"]  # replace the task's rates instead of adding to them
    config, own = bring(task, build(CompareConfig, values, "compare"))
    results, _ = make_report(config, config.points(), own)
    return results
