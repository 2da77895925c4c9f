"""Plan, execute, gather: each run is planned, prepared and made once, whoever asks for it."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from autowarm.lab.commands import main
from autowarm.lab.config import SweepConfig
from autowarm.lab.execution import pool
from autowarm.lab.execution.display import Display
from autowarm.lab.execution.engine import execute, gather, make, plan
from autowarm.lab.files import claim, locked
from autowarm.lab.training.loop import train

from ..helpers import MODEL

pytestmark = pytest.mark.usefixtures("jobs_here")


def base(corpus: Path) -> dict[str, Any]:
    return {"model": MODEL, "data": {"corpus": str(corpus)}, "steps": 6, "batch_size": 4, "eval_batches": 2,
            "optimizer": {"name": "muon", "lr": 0.01}}  # fmt: skip


@pytest.mark.long
def test_a_sweep_ends_with_manifest_results_and_report_and_shares_its_runs(
    corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "sweep.yaml"
    preset.write_text(yaml.safe_dump({
        "about": "Two cells",
        "base": base(corpus_folder) | {"steps": 10},
        "cells": {"muon": {}, "adamw": {"set": {"optimizer.name": "adamw"}, "grid": [{"schedule.kind": "greedy"}]}},
        "grid": [{"schedule.kind": "paper", "schedule.target_loss": [0.5, 1.0]},
                 {"schedule.kind": "linear", "schedule.warmup_steps": 0.3}],
    }, sort_keys=False))  # fmt: skip
    store, one, two = tmp_path / "store", tmp_path / "one", tmp_path / "two"
    command = ["sweep", "--config", str(preset), "--store", str(store), "--workers", "2"]
    assert main([*command, "--out", str(one)]) == 0
    assert "4 runs; 2 side by side" in capsys.readouterr().out
    manifest = json.loads((one / "manifest.json").read_text())["runs"]
    names = ["Algorithm 1, target_loss 0.5", "Algorithm 1, target_loss 1.0", "warm-up 3"]
    assert [run["name"] for run in manifest] == [*(f"muon, {name}, seed 0" for name in names), "adamw, greedy, seed 0"]
    assert all(Path(run["folder"], "result.json").exists() and run["id"] in run["folder"] for run in manifest)
    assert manifest[2]["config"]["schedule"]["warmup_steps"] == 3
    results = json.loads((one / "results.json").read_text())
    assert [row["id"] for row in results["runs"]] == [run["id"] for run in manifest]
    assert {row["cell"]["name"] for row in results["runs"]} == {"muon", "adamw"}
    page = (one / "report.html").read_text()
    assert "<h1>Two cells</h1>" in page
    assert "muon, target_loss 0.5" in page

    times = {path: path.stat().st_mtime_ns for path in store.rglob("result.json")}
    assert main([*command, "--out", str(two), "--only", "[muon]", "--seeds", "[0, 1]"]) == 0
    assert "6 runs, 3 already finished" in capsys.readouterr().out
    assert len(list(store.rglob("result.json"))) == 4 + 3
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())


def test_a_run_that_two_cells_name_is_made_once_and_counts_in_both(corpus_folder: Path, tmp_path: Path) -> None:
    grid: list[dict[str, Any]] = [{"schedule.kind": "constant"}]
    two = {"grid": [*grid, {"schedule.kind": "adaptive"}]}
    config = SweepConfig(base=base(corpus_folder), cells={"one": {}, "two": two}, grid=grid)
    planned = plan(config.points(), tmp_path / "runs")
    assert execute(planned, Display(), config) == {}
    assert len(list((tmp_path / "runs").iterdir())) == 2
    actual = gather(tmp_path, {}, planned, {})
    assert [row["cell"]["name"] for row in actual.rows] == ["one", "two", "two"]
    assert actual.rows[0]["val_loss"] == actual.rows[1]["val_loss"]


def test_a_run_that_another_process_makes_is_waited_for_and_its_result_is_taken(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    config = SweepConfig(base=base(corpus_folder), cells={"a": {}}, out=str(out))
    claim(out)
    (planned,) = plan(config.points(), out / "runs")
    train(planned.point.run, tmp_path / "done")
    result = json.loads((tmp_path / "done" / "result.json").read_text())
    (tmp_path / "done" / "result.json").write_text(json.dumps({**result, "val_loss": 1.25}))  # to know it by
    with contextlib.ExitStack() as other:
        other.enter_context(locked(planned.folder))

        def wait(seconds: float) -> None:
            ignored = shutil.ignore_patterns(".lock")
            shutil.copytree(tmp_path / "done", planned.folder, dirs_exist_ok=True, ignore=ignored)
            other.close()

        monkeypatch.setattr(pool.time, "sleep", wait)
        results = make(config, config.points(), Display())
    assert [row["val_loss"] for row in results.rows] == [1.25]
