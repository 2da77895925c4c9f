"""What a user types is read as it is meant, or the message says what would be."""

import contextlib
from pathlib import Path

import pytest

from autowarm.lab.commands import main
from autowarm.lab.config import CompareConfig
from autowarm.lab.config.build import parse

from ..helpers import LINE

TASK = (
    LINE
    + """\
    defaults = {"rates": {"plain": [0.01]}, "run.steps": 6, "warmups": [0, 1, 2, 3, 4, 5], "schedules": ["linear"]}
"""
)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "line.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_hand_set_warm_up_of_one_with_a_point_is_the_whole_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It leaves no update for the decay."""
    steps = parse([], CompareConfig, "compare", "", preset="demo").run.steps
    assert main(["compare", "--warmups", "[1.0]"]) == 2
    assert f"needs warmup_steps from 0 to steps − 1 = {steps - 1}, got {steps}" in capsys.readouterr().err
    given = ["--warmups", "[1,0.5,2]", "--schedules", "[linear]"]
    compared = parse(given, CompareConfig, "compare", "", preset="demo")
    assert {point.run.schedule.warmup_steps for point in compared.points()} == {1, steps // 2, 2}


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["train", "--dry-run"], 0),
        (["train", "--help"], 0),
        (["train", "--stpes", "3"], 2),
        (["train", "--optimizer", "plian"], 2),
        (["train", "--schedule", "constant", "--schedule.peak_gap", "1"], 2),
        (["compare", "--run.batch_size", "7"], 2),
    ],
)
def test_a_task_prepares_itself_when_its_run_begins(words: list[str], status: int, project: Path) -> None:
    prepare = "    def prepare(self, folder):\n        raise RuntimeError\n\n"
    (project / "line.py").write_text(TASK.replace("    def model", prepare + "    def model"))
    with pytest.raises(SystemExit, match="0") if "--help" in words else contextlib.nullcontext():
        assert main([words[0], "--task", "line.py:Line", *words[1:]]) == status
    assert [one.name for one in project.iterdir() if one.suffix != ".py" and one.name != "__pycache__"] == []
