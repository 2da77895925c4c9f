"""Wrong words: one line with what would be right, status 2, and nothing made."""

import re
import sys
from pathlib import Path

import pytest

from ..helpers import refused
from .test_train import TINY
from .test_words import TASK

WRONG: list[tuple[list[str] | str, str]] = [  # words, or a line of them
    (["compare", "--run.modle.width", "3"], "did you mean '--run.model.width'"),
    (["compare", "--config", "smok"], "did you mean 'smoke'"),
    (["compare", "--config"], "--config needs a value"),
    (["train", "--schedule", "gready"], "schedule.kind: unknown 'gready'; did you mean 'greedy'?"),
    (["compare", "--rates", "{adamW: [1e-3]}"], "did you mean 'adamw'"),
    (["compare", "--steps", "3"], "unknown option --steps, given '3'; did you mean '--run.steps'?"),
    (["compare", "--warmups", "[0,10%]"], "warmups: expected a list of numbers or null, got '[0,10%]'"),
    (["compare", "--run.model.heads", "5"], "width must be a multiple of 2·heads"),
    (["compare", "--rates", "{muon: [-1]}"], "lr must be positive"),
    (["compare", "stray"], "'stray' belongs to no option: give each as --KEY VALUE"),
    (["compare", "--tsk", "line.py:Line"], "; did you mean '--task'?"),
    (["train", "--config", "x.yaml"], "no such preset; known are as-the-authors, llama-124m, llama-210m"),
    (["train", "--task", "line.py:Line", "--batch_size", "7"], "batch_size has no effect with a task"),
    (["train", "--engine.accumulate", "3"], "batch_size must be a multiple of engine.accumulate, got 16 and 3"),
    (["compare", "--run.seed", "5"], "run.seed has no effect in a comparison: give seeds"),
    (["train", "--preset", "tiny"], "unknown option --preset, given 'tiny'; --config takes a preset, and --help lists"),
    (["train", "--optimizer"], "--optimizer.name needs a value: text"),
    (["train", "--steps", "--seed", "1"], "--steps needs a value: a whole number"),
    ("smoothness --task mlp --run.optimizer.lr 0.1", "run.optimizer.lr has no effect in a comparison: give rates"),
    (["train", *TINY, "--schedule", "untuned", "--schedule.peak_gap", "1"], "schedule.peak_gap belongs to kinds"),
    (["train", *TINY, "--schedule", "greedy", "--schedule.warmup", "cosine"], "kind greedy does not follow it"),
    (["figure"], "figure needs a name, or all"),
    (["sweep"], "cells must not be empty"),
    (["sweep", "--config", "tiny/baselines", "--only", "[prodgy]"], "only: no cell 'prodgy'; did you mean 'prodigy'?"),
    (["sweep", "--config", "tiny/baselines", "--address", "auto"], "address belongs to engine ray"),
    ("replay log.csv --loss los", "there is no column 'los': did you mean 'loss'? columns: step, loss"),
    ("replay log.csv --run z", "no run has 'z' in its name: 'log.csv'"),
    ("replay log.csv --figure replay.bmp", "replay.bmp cannot be written: its name must end in .png or .svg"),
    (["replay"], "FILE"),
    (["comapre"], "did you mean 'compare'?"),
    ("train --schedule paper", "the paper's Algorithm 1 needs schedule.target_loss"),
    ("train --schedule linear --steps 10 --schedule.warmup_steps 10", "from 0 to steps − 1 = 9, got 10"),
    ("train --schedule.warmup_steps 10", "schedule.warmup_steps belongs to kind linear"),
    (["compare", "--warmups=[.inf]"], ""),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_words_get_one_line_with_what_would_be_right(
    words: list[str] | str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "line.py").write_text(TASK)
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{i},{2 + 6 / i}\n" for i in range(1, 401)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # as `main` has it before the import
    output = refused(words.split() if isinstance(words, str) else words, capsys)
    assert message in output
    assert "traceback" not in output
    assert {path.name for path in tmp_path.iterdir()} <= {"line.py", "log.csv", "__pycache__"}


@pytest.mark.parametrize(
    "words",
    [["train", "--data.corpus", "missing"], ["compare", "--run.data.corpus", "missing"],
     ["compare", "--task", "missing:Task"], ["train", "--task", "missing.py:Task"]],
)  # fmt: skip
def test_what_is_missing_is_named_before_pytorch_is_loaded(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "autowarm.lab.tasks.own", None)  # to import it would fail
    monkeypatch.setitem(sys.modules, "autowarm.lab.training.loop", None)
    assert re.search("missing(.py)?: no such file|no such file: missing", refused(words, capsys))
