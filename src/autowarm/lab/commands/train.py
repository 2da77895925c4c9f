"""`autowarm train`: one run, in its own folder."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import RunConfig, ScheduleConfig, UsageError
from ..config.build import merged, parse, take, take_task
from ..files import claim, free
from ..processes import Interrupted, Stop
from ..registry import FOLLOWED, either


def run(argv: list[str]) -> int:
    dry, argv = "--dry-run" in argv, [word for word in argv if word != "--dry-run"]
    out, argv = take(argv, "--out")
    start, argv = take(argv, "--resume-from")
    about = "Train one run. Its folder receives the config, metrics, TensorBoard events and weights."
    also = {"--out": "folder of the run (default: runs/LABEL)",
            "--resume-from": "begin with this checkpoint of another run, which may have had a higher rate",
            "--dry-run": "say what is known of the run, and make nothing"}  # fmt: skip
    place, argv = take_task(argv)
    if place is None:
        own, config = None, parse(argv, RunConfig, "train", about, also=also)
    else:
        from ..tasks.own import defaults, load, pack

        task = load(place)
        own, values = pack(task), defaults(task)
        optimizer = next(({"name": name, "lr": lr} for name, rates in values["rates"].items() for lr in rates), {})
        usual = merged({"optimizer": optimizer}, values["run"]) | {"task": own.key}
        config = parse(argv, RunConfig, "train", about, also=also, defaults=usual, own=own.key)
        own.check_optimizers({config.optimizer.name: config.optimizer.options}, "optimizer.name")
        config = dataclasses.replace(config, task=own.key)  # whatever a config file says of it
    schedule = config.schedule
    for name, kinds in FOLLOWED.items():
        if schedule.kind not in kinds and getattr(schedule, name) != getattr(ScheduleConfig(), name):
            raise UsageError(
                f"schedule.{name} belongs to kinds {either(kinds)}; kind {schedule.kind} does not follow it"
            )
    if start is not None and not Path(start).is_dir():
        raise UsageError(f"--resume-from {start}: no such folder; give a checkpoint-… in a run's folder")
    folder = Path(out or f"runs/{config.label}")
    if dry:
        from ..paper.costs import describe

        print(*describe(config, folder), sep="\n")
        return 0
    if config.missing_corpus:
        raise UsageError(config.missing_corpus)
    if own is not None:
        claim(folder)
        own = own.prepared(Path(out or "runs") / "task")
    speaks = os.environ.get("RANK", "0") == "0"  # under torchrun the first rank speaks for all

    with Stop() as stop:
        try:
            if speaks:
                print(f"{config.label}, in {folder}: loading PyTorch", flush=True)
            from ..training.loop import train

            if speaks:
                print("preparing the data and the network", flush=True)
            result = train(config, folder, _step_line(config) if speaks else None, stop=stop, own=own,
                           resume_from=Path(start) if start else None)  # fmt: skip
        except Interrupted as error:
            if speaks:
                print(f"\n{error}; the same command continues from here", file=sys.stderr)
            return 128 + error.signal
    if not speaks:
        return int(result["diverged"])
    outcome = "diverged" if result["val_loss"] is None else f"validation loss {result['val_loss']:.4f}"
    if result["diverged"] and result["val_loss"] is not None:
        outcome += f" (counts as diverged: it is above the first training loss, {result['first_loss']:.4f})"
    outcome += "".join(f", {name} {value:.4f}" for name, value in result["metric"].items() if value is not None)
    ended = f" (ended by {result['ended_by']})" if result["ended_by"] else ""
    print(f"{outcome}, warm-up {result['warmup_steps']} updates{ended}, in {folder}")
    for text in result["warnings"]:
        print(f"warning: {text}", file=sys.stderr)
    if result["diverged"] and (checkpoint := result.get("resume_from")):
        words = f"--resume-from {shlex.quote(str(folder / checkpoint))} --out {shlex.quote(str(free(folder)))}"
        rate = f"--optimizer.lr {config.optimizer.lr / 2:g}"
        print(f"to go on from the newest checkpoint, repeat the command with {words} {rate}", file=sys.stderr)
    return int(result["diverged"])


def _step_line(config: RunConfig) -> Callable[[Any], None]:
    """Print the loss, rate, time of an update and time left every few steps, and once that the warm-up has ended."""
    from ..execution.display import duration

    every = max(1, min(20, config.steps // 10))
    last: tuple[int, float] | None = None

    def on_step(progress: Any) -> None:
        nonlocal last
        if progress.switched_at == progress.step:
            print(f"warm-up ended after {progress.step} updates, by {progress.ended_by}", flush=True)
        line = f"update {progress.step}/{config.steps}  loss {progress.loss:.4f}  rate {progress.lr:.3e}"
        if last is None:  # the first update loads and compiles, and says nothing of the speed
            print(*[f"resumes after update {progress.step - 1}"] * (progress.step > 1), line, sep="\n", flush=True)
            last = progress.step, progress.seconds
        elif progress.step % every == 0 or progress.step == config.steps:
            before, last = last, (progress.step, progress.seconds)
            seconds = max(1e-9, (progress.seconds - before[1]) / (progress.step - before[0]))
            left = duration(seconds * (config.steps - progress.step))
            print(f"{line}  {seconds * 1e3:.0f} ms/update  ETA {left}", flush=True)

    return on_step
