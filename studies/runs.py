"""Makes the study's runs on the lab's engine: turns planned rows into configs of runs, and their results into rows."""

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autowarm.lab.config import EngineConfig, LabError, OptimizerConfig, Point, RunConfig, ScheduleConfig, Where
from autowarm.lab.execution.display import Display
from autowarm.lab.execution.engine import execute, plan
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import Progress

from .cells import DEFAULT
from .plans.horizon import TASKS as HORIZON_TASKS
from .plans.realistic import PART as REALISTIC
from .rows import Cell, PlannedRow, Row, append
from .tasks import StudyTask

_ALARM = "recover=True would have"  # in the warning of each alarm under recover="warn"

Curve = Sequence[tuple[float, float]]
"""For each update, its rate as a share of the peak and its training loss."""

_NO_LENGTH = ("untuned", "wsd", "greedy", "own")  # schedules whose results have no length of a warm-up


def make(planned: Sequence[PlannedRow], rows: Path, store: Path, display: Display, where: Where) -> None:
    """Make these runs, which have no rows yet. As each one finishes, append it to the rows and delete its folder.

    Unfinished runs go on from the folder `store`. See `autowarm.lab.execution.engine.execute` for the rest.

    Raises:
        LabError: a run failed. Finished runs are kept.
    """
    by_name = {f"{one.part}: {one.cell.name} {one.schedule} seed{one.seed}": one for one in planned}
    runs = [plan([Point(name, run_of(one))], store, StudyTask(one.cell.task))[0] for name, one in by_name.items()]
    folders = {run.name: run.folder for run in runs}

    def keep(name: str, result: dict[str, Any]) -> None:
        append(rows, row_of(by_name[name], result))
        shutil.rmtree(folders[name])

    left = [run for run in runs if not run.finished]
    for run in runs:
        if run.finished:  # the command was killed before its row was written
            keep(run.name, run.row())
    if failed := execute(left, display, where, on_row=keep):
        name, message = next(iter(failed.items()))
        raise LabError(f"{len(failed)} runs of the study failed, the first is {name}: {message}")


def run_of(planned: PlannedRow) -> RunConfig:
    """The config of a planned run.

    The study's names of schedules:

    - "linear 0.1": a hand-set linear warm-up over 10 % of the run, from 0.
    - "tenth 0.1": the same, from a tenth of the peak.
    - "default": ours.      - "average 250", "average 0.05": ours, the loss averaged over 250 updates, 5 % of the run.
    - "limit 0.1": ours, from trained weights, with a longest warm-up of 10 % of the run.      - "paper": Algorithm 1.
    - "untuned": a linear warm-up of 2/(1 − β2) updates.
    - "wsd", "greedy": the schedules of transformers.
    - "own": for optimizers that need no warm-up schedule; a constant rate or a cosine, whichever the optimizer needs.
    """
    cell = planned.cell
    decay, clip = (0.1, 1.0) if planned.part == REALISTIC else (0.0, 0.0)
    return RunConfig(
        task=StudyTask(cell.task).key,
        optimizer=OptimizerConfig(cell.optimizer, cell.lr, weight_decay=decay, options=_options(cell)),
        schedule=_schedule(planned),
        steps=cell.steps,
        seed=planned.seed,
        clip=clip,
        checkpoint_every=4000,
        # Each process compiles the network once, which pays off only in long runs.
        engine=EngineConfig(precision="float32", device="cpu", keep_weights=False, compile=cell.task in HORIZON_TASKS),
    )


def curve_of(planned: PlannedRow) -> Curve:
    """Make the run in this process and return its curve."""
    found: list[tuple[float, float]] = []

    def note(progress: Progress) -> None:
        found.append((progress.lr / planned.cell.lr, progress.loss))

    with tempfile.TemporaryDirectory() as folder:
        train(run_of(planned), Path(folder), note, own=StudyTask(planned.cell.task))
    return found


def row_of(planned: PlannedRow, result: dict[str, Any]) -> Row:
    """The row of a finished run."""
    row = {
        "part": planned.part,
        "cell": vars(planned.cell),
        "schedule": planned.schedule,
        "seed": planned.seed,
        **{key: result[key] for key in ("val_loss", "train_loss", "first_loss", "diverged")},
        "warmup_steps": None if planned.schedule.split()[0] in _NO_LENGTH else result["warmup_steps"],
        "ended_by": result["ended_by"],
        **({"metric": result["metric"]} if result["metric"] else {}),
        "seconds": round(result["seconds"], 2),
    }
    if planned.schedule == DEFAULT:
        row["alarms"] = sum(_ALARM in text for text in result["warnings"])
    said = sorted({re.sub(r"\s+", " ", text) for text in result["warnings"] if "sign geometry" not in text})
    return {**row, **({"warnings": said} if said else {})}


def _beta(steps: int, longest: float, shortest: float = 10) -> float:
    """The β whose memory is 2 % of the run, within bounds.

    A momentum that remembers half the run does not test a warm-up (see the notebook on Lion's β2).
    """
    return 1 - 1 / min(longest, max(shortest, 0.02 * steps))


def _options(cell: Cell) -> dict[str, Any]:
    steps = cell.steps
    options: dict[str, dict[str, Any]] = {
        "muon": {"momentum": _beta(steps, 20), "heads": []},  # every matrix by Muon, the last layer too
        "lion": {"betas": [0.9, _beta(steps, 100, shortest=20)]},
        "signsgd": {"momentum": _beta(steps, 10)},
        "normsgd": {"momentum": _beta(steps, 20)},
        "adamw": {"betas": [0.9, _beta(steps, 1000)], "fused": True},
        "radam": {"betas": [0.9, _beta(steps, 1000)]},
        "schedule-free": {"warmup_steps": max(1, steps // 20)},  # as its authors advise
        "prodigy": {},
    }
    return options[cell.optimizer]


def _schedule(planned: PlannedRow) -> ScheduleConfig:
    kind, *words = planned.schedule.split()
    match kind:
        case "linear" | "tenth":
            div = 10.0 if kind == "tenth" else None
            return ScheduleConfig("linear", round(float(words[0]) * planned.cell.steps), div=div)
        case "own":
            # Schedule-Free needs no schedule. Prodigy needs a cosine; RAdam needs no warm-up.
            cosine = planned.cell.optimizer in ("prodigy", "radam")
            return ScheduleConfig("linear", 0) if cosine else ScheduleConfig("constant")
        case "untuned" | "wsd" | "greedy":
            return ScheduleConfig(kind)
        case "paper":
            return ScheduleConfig("paper", target_loss=planned.target_loss)
        case "average":
            length = float(words[0])
            return ScheduleConfig("adaptive", options={"smoothing": length / (planned.cell.steps if length > 1 else 1)})
        case "limit":
            return ScheduleConfig("adaptive", options={"max_warmup": float(words[0]), "trained": False})
        case "default":
            # Watching changes no rate, and each alarm is a warning in the row: none is due in a run without a fault.
            return ScheduleConfig("adaptive", options={"recover": "warn"})
        case _:
            raise LabError(f"the study knows no schedule {planned.schedule!r}")
