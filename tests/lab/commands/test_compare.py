"""Comparisons of tiny tasks of one's own: the grid of lengths, and what a second command makes again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autowarm.lab import compare
from autowarm.lab.analysis.results import Results, read_results
from autowarm.lab.analysis.summary import verdict

from ..helpers import numbers
from ..tasks import own_runs

pytestmark = pytest.mark.usefixtures("jobs_here")


class Line(own_runs.Line):
    """Least squares by small steps on one batch: only the sum of the rates counts, which grows with the ramp."""

    optimizers = {"sgd": lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr)}  # noqa: RUF012
    defaults = {"rates": {"sgd": [0.01]}, "run.steps": 16, "run.engine.keep_weights": False}  # noqa: RUF012

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def batches(self, seed: int) -> Iterator[Any]:
        while True:
            yield torch.eye(4)

    def validation(self) -> list[Any]:
        return [torch.eye(4)]


def lengths(results: Results) -> list[float]:
    (summary,) = results.summaries
    assert all(len(point.losses) == 2 for point in summary.manual)
    return [point.warmup_steps for point in summary.manual]


def test_the_grid_runs_as_it_stands_and_no_run_is_made_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autowarm.lab.analysis.report.make", lambda results: None)
    whole = compare(Line(), out=tmp_path)
    assert lengths(whole) == [0, 1, 2, 3, 6, 13]
    assert "It is the longest that was tried: the best may be longer." in verdict(whole.summaries[0])
    manifest = json.loads((tmp_path / "manifest.json").read_text())["runs"]
    assert [run["id"] for run in manifest] == [row["id"] for row in whole.rows]
    assert read_results(tmp_path).rows == whole.rows
    firsts = {json.loads(path.read_text().partition("\n")[0])["lr"] for path in tmp_path.glob("runs/*/metrics.jsonl")}
    assert firsts == {0.001, 0.01}  # lr/10, and without a warm-up lr

    (lost,) = tmp_path.glob("runs/*linear13-div10-seed1-*")
    shutil.rmtree(lost)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    capsys.readouterr()
    again = compare(Line(), out=tmp_path)
    assert f"{len(whole.rows)} runs, {len(times)} already finished" in capsys.readouterr().out
    assert [numbers(row) for row in again.rows] == [numbers(row) for row in whole.rows]
    given = compare(Line(), warmups=[0.2, 0.8], out=tmp_path)
    assert "all 6 runs are finished" in capsys.readouterr().out
    assert lengths(given) == [3, 13]
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())
