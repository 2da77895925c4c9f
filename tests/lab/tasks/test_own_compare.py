"""A whole comparison of a user's own task: from the command line, from a script, and from a notebook."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from autowarm.lab import compare
from autowarm.lab.analysis.results import read_results
from autowarm.lab.config import CompareConfig, LabError
from autowarm.lab.config.build import build, parse
from autowarm.lab.tasks.own import defaults

from ..helpers import LINE, refused
from . import own_runs

DEFAULTS = '{"rates": {"adamw": [0.1], "sgd": [0.01]}, "run": {"steps": 12}, "warmups": [0, 0.25], "seeds": [0, 1]}'
TASK = LINE.replace('"plain"', '"sgd"').replace("class Line:\n", f"class Line:\n    defaults = {DEFAULTS}\n")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "COLUMNS": "200"}


BROKEN = {
    "unknown default": ("Line", TASK.replace('"warmups"', '"warmup"'), 2, "key 'warmup'; did you mean 'warmups'?"),
    "no rates": ("Line", TASK.replace('"rates": {"adamw": [0.1], "sgd": [0.01]}, ', ""), 2, "give peak rates"),
    "unknown rate": ("Line", TASK.replace('"adamw": [0.1]', '"sdg": [0.1]'), 2, "did you mean 'sgd'?"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_before_any_run_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task, text, expected, words = BROKEN[name]
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(text)
    assert words in refused(["compare", "--task", f"task.py:{task}"], capsys, expected)


class Line:
    defaults = {"run.steps": 40, "seeds": [5], "rates": {"muon": [0.1]}}  # noqa: RUF012


def test_the_command_counts_over_a_file_over_the_task_over_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("seeds: [6]\nrates: {lion: [0.1]}\nwarmups: [0.5]\n")
    words = ["--config", str(path), "--warmups=[0.3]"]
    config = parse(words, CompareConfig, "compare", "", defaults=defaults(Line()))
    assert (config.run.clip, config.run.steps, config.seeds, config.warmups) == (0.0, 40, [6], [0.3])
    assert parse([], CompareConfig, "compare", "", defaults=defaults(Line())).rates == {"muon": [0.1]}


SCRIPT = f"""{TASK}
from autowarm.lab import compare
results = compare(Line(), schedules=["adaptive", "linear"], rates={{"adamw": [0.1]}}, out="out", workers=1)
print(results)
"""


@pytest.mark.long
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("6 runs; 1 side by side") == 1
    assert "AdamW, peak rate 0.1: " in done.stdout
    assert done.stdout.rstrip().endswith("out/report.html")
    results = read_results(tmp_path / "out")
    assert results.summaries[0].own
    assert "nats" not in str(results)


@pytest.mark.long
def test_a_notebook(tmp_path: Path) -> None:
    cells = [
        "from autowarm.lab import compare\nimport torch\nWIDTH = 8\nclass Net(torch.nn.Linear):\n    pass\n",
        TASK.replace("torch.nn.Linear(8, 1)", "Net(WIDTH, 1)"),
        'results = compare(Line(), rates={"adamw": [0.1]}, seeds=[0], schedules=["linear"], warmups=[0])\nresults',
        'compare(Line(), rates={"adamw": [0.1]}, seeds=[0], schedules=["linear"], warmups=[0]).rows[0]["id"]',
        "WIDTH = 9",
        'try:\n    compare(Line(), rates={"adamw": [0.1]}, seeds=[0], schedules=["linear"], warmups=[0])\n'
        "except Exception as error:\n    print(type(error).__name__, error)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = [
        "".join(str(output.get("text", output.get("data", ""))) for output in cell.outputs) for cell in notebook.cells
    ]
    assert "report.html" in said[2]
    assert "all 1 runs are finished" in said[3]
    assert "LabError every run failed: " in said[5]
    assert ".py:18: RuntimeError: " in said[5]


@pytest.mark.usefixtures("jobs_here")
def test_a_failure_in_one_optimizer_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Line, own_runs.Line):
        optimizers = {"bad": lambda model, lr: 1 / 0}  # noqa: RUF012

    results = compare(
        Half(), rates={"bad": [1.0], "adamw": [0.1]}, schedules=["linear"], warmups=[0], out=tmp_path, steps=3
    )
    assert list(results.failed) == ["bad 1, warm-up 0, seed 5"]
    assert [row["optimizer"] for row in results.rows] == ["adamw"]
    assert "failed runs: 1. test_own_compare.py" in str(results)
    [log] = tmp_path.glob("runs/*/error.txt")
    assert "ZeroDivisionError" in log.read_text()
    with pytest.raises(LabError, match="every run failed: test_own_compare.py:"):
        compare(Half(), rates={"bad": [1.0]}, schedules=["linear"], warmups=[0], out=tmp_path, steps=3)
    with pytest.raises(LabError, match="unknown key 'stepz'"):
        compare(Half(), stepz=3)
    assert build(CompareConfig, defaults(Half()), "x").seeds == [5]


@pytest.mark.usefixtures("jobs_here")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"mine": {"momentum": 0.9}}}, "the task makes the optimizer 'mine' itself: set momentum there"),
        ({"run": {"optimizer": {"options": {"eps": 1}}}}, "the task makes the optimizer 'mine' itself: set eps there"),
        ({"warmups": [40]}, "needs warmup_steps from 0 to steps − 1 = 39, got 40"),
    ],
)
def test_what_would_be_ignored_is_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    class Mine(Line):
        optimizers = {"mine": lambda model, lr: 1 / 0}  # noqa: RUF012
        model = batches = loss = validation = lambda self, *_: None

    with pytest.raises(LabError, match=message):
        compare(Mine(), rates={"mine": [1.0]}, **{"schedules": ["linear"], "out": tmp_path} | given)
