"""Runs that are killed or stopped at any moment, and then end with the bits of one that was left in peace."""

import json
import os
import random
import signal
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from safetensors.torch import load_file

from autowarm.lab.commands import main
from tests.programs import Launcher

from .helpers import MODEL, logged, numbers

RUN = {**{f"model.{key}": value for key, value in MODEL.items()}, "steps": 16, "batch_size": 4, "eval_batches": 2,
       "checkpoint_every": 3, "engine.eval_every": 5}  # fmt: skip
# What is going on, and the how-manieth call of it is struck.
PHASES = {
    "a step": ("loop._Run._update", 8),
    "saving a checkpoint": ("checkpoint.Checkpoints.save", 2),
    "writing the log": ("metrics.MetricsLog.flush", 2),
    "an evaluation": ("loop._Run.evaluate", 2),
    "the last evaluation": ("loop._Run.evaluate", 4),
    "saving the weights": ("loop.save_weights", 1),
}


def words(corpus: Path, out: Path) -> list[str]:
    options = {**RUN, "data.corpus": corpus}
    return ["train", *(f"--{key}={value}" for key, value in options.items()), "--out", str(out)]


def outcome(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, list[Any]]]:
    weights = load_file(folder / "model.safetensors")
    result = json.loads((folder / "result.json").read_text())
    return numbers(result), logged(folder), {name: value.tolist() for name, value in weights.items()}


@pytest.fixture(scope="module")
def straight(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("straight")
    assert main(words(corpus_folder, folder)) == 0
    return outcome(folder)


@pytest.mark.parametrize(("phase", "number"), [*((one, signal.SIGTERM) for one in PHASES), ("a step", signal.SIGINT)])
def test_a_signal_in_any_phase_costs_nothing(
    phase: str, number: int, straight: Any, corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, which = f"autowarm.lab.training.{PHASES[phase][0]}", PHASES[phase][1]
    with monkeypatch.context() as patched:
        call, count = resolve_name(place), 0

        def struck(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == which:
                signal.raise_signal(number)
            return call(*args, **options)

        patched.setattr(place, struck)
        # Where only the result is left to be written, it is.
        assert main(words(corpus_folder, tmp_path)) == (0 if phase == "saving the weights" else 128 + number)
        assert count >= which
    assert main(words(corpus_folder, tmp_path)) == 0
    assert outcome(tmp_path) == straight


@pytest.mark.parametrize(
    "moments", [range(3), pytest.param(range(3, 30), marks=[pytest.mark.generated])], ids=["a few", "the rest"]
)
def test_sigkill_at_any_change_of_a_file_costs_nothing(
    moments: range, straight: Any, corpus_folder: Path, tmp_path: Path, lab_launcher: Launcher
) -> None:
    for number in moments:
        draw, folder = random.Random(number), tmp_path / str(number)
        for moment in (draw.randint(5, 60), draw.randint(5, 60), 0):
            program = [str(Path(__file__).with_name("killed.py")), str(moment), *words(corpus_folder, folder)]
            ended = lab_launcher.run(program, {"AUTOWARM_CACHE": os.environ["AUTOWARM_CACHE"]})
            assert ended.status in ((0, 137) if moment else (0,)), ended.stderr[-2000:]
        assert outcome(folder) == straight, number
