"""What a value meets on its way: the calls, the files and the returns to a file already left, profiled on real runs.

    python benchmarks/walks.py

A *call* is one of a Python function of this package. A *return* is a move, by a call or back from one, into a file that
the walk has been in before and has left since. The walk of a config through `autowarm compare` counts rooms of the lab
in place of files.
"""

import io
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch

import autowarm
from autowarm import AdaptiveWarmup, Muon

ROOT = str(Path(autowarm.__file__).parent)
Place = tuple[str, str]  # a file of the package, and a function in it


def walk(act: Callable[[], Any], root: str = ROOT) -> tuple[list[Place], list[str]]:
    """The package's functions that are called, in order, and the files that the walk is in, one after the other."""
    met: list[Place] = []
    files: list[str] = []
    inside: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(root):
            return
        file = code.co_filename[len(root) + 1 :]
        if event == "call":
            met.append((file, code.co_name))
            inside.append(file)
        else:
            inside.pop()
        if inside and (not files or files[-1] != inside[-1]):
            files.append(inside[-1])

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return met, files


def a_loss(tensor: bool) -> Callable[[], Any]:
    """``sched.step(loss)`` in the middle of a warm-up."""
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    weight.grad = torch.ones(4, 4)
    lr = torch.tensor(0.01) if tensor else 0.01
    opt = autowarm.Lion([weight], lr=lr)
    sched = AdaptiveWarmup(opt, 1000)
    for t in range(40):  # past the first losses, which are looked at more closely
        opt.step()
        sched.step(torch.tensor(5.0 - t / 40))
    opt.step()
    return lambda: sched.step(torch.tensor(4.0))


def a_gradient() -> Callable[[], Any]:
    """A step of Muon on three matrices, and of its AdamW on three biases."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    opt = Muon.from_model(model, lr=0.01, heads=[])
    for _ in range(4):  # past the first updates, which are looked at more closely
        model(torch.ones(2, 8)).sum().backward()
        opt.step()
    return opt.step


def a_state() -> Callable[[], Any]:
    """``load_state_dict`` of a schedule."""
    a_step = a_loss(False)
    a_step()
    sched = a_step.__closure__[0].cell_contents  # type: ignore[index]
    state = sched.state_dict()
    return lambda: sched.load_state_dict(state)


def a_config() -> tuple[list[Place], list[str]]:
    """The functions of the lab, but for its properties, that ``autowarm compare`` gives a config, and their folders."""
    from autowarm import lab
    from autowarm.lab import commands
    from autowarm.lab.config import CompareConfig, RunConfig
    from autowarm.lab.execution import engine
    from autowarm.lab.execution.pool import Job, perform

    root, met, rooms = str(Path(lab.__file__).parent), [], []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(root):
            return
        given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
        configs = [one for one in given if isinstance(one, CompareConfig | RunConfig)]
        if configs and not isinstance(getattr(type(configs[0]), code.co_name, None), property):
            file = code.co_filename[len(root) + 1 :]
            met.append((file, code.co_name))
            if not rooms or rooms[-1] != file.split("/")[0]:
                rooms.append(file.split("/")[0])

    def run_jobs(jobs: Sequence[Job], *_: Any) -> dict[str, str]:
        for job in jobs:
            perform(job, lambda event: None, lambda: False)
        return {}

    words = {"config": "smoke", "run.steps": "1", "rates": "{muon: [0.01]}", "schedules": "[adaptive]", "seeds": "[0]"}
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(engine, "run_jobs", run_jobs):
        options = [f"--{key}={value}" for key, value in words.items()]
        sys.setprofile(note)
        try:
            with redirect_stdout(io.StringIO()):
                commands.main(["compare", *options, "--out", folder])
        finally:
            sys.setprofile(None)
    return met, rooms


def main() -> None:
    """Print a line for each walk; with a name, the walk itself."""
    walks = {"loss": a_loss(False), "loss, tensor lr": a_loss(True), "gradient": a_gradient(), "state": a_state()}
    wanted = sys.argv[1:]
    for name, act in walks.items():
        met, files = walk(act)
        distinct = len(set(files))
        print(f"{name:<16} {len(met)} calls, {distinct} files, {len(files) - distinct} returns")
        if name in wanted:
            print("\n".join(f"    {file}:{function}" for file, function in met))
    met, rooms = a_config()
    again = len(rooms) - len(set(rooms))
    print(f"{'config':<16} {len(met)} calls, {len(rooms)} stays in {len(set(rooms))} rooms, {again} returns")
    if "config" in wanted:
        print("\n".join(f"    {file}:{function}" for file, function in met))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
