"""A sweep by real processes; what two sweeps share is made once."""

import json
from pathlib import Path

import pytest
import yaml

from autowarm.lab.cli import main


@pytest.fixture
def preset(corpus_folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({
        "about": "Two cells",
        "base": {"model": {"layers": 1, "width": 16, "heads": 2, "ff": 32, "vocab_size": 280, "seq_len": 16},
                 "data": {"corpus": str(corpus_folder)}, "steps": 10, "batch_size": 4, "eval_batches": 2},
        "cells": {"muon": {"set": {"optimizer": {"name": "muon", "lr": 0.01}}},
                  "adamw": {"set": {"optimizer": {"name": "adamw", "lr": 0.01}},
                            "grid": [{"schedule.kind": "linear", "schedule.warmup_steps": 2},
                                     {"schedule.kind": "greedy"}]}},
        "grid": [{"schedule.kind": "paper", "schedule.target_loss": [0.5, 1.0]},
                 {"schedule.kind": "linear", "schedule.warmup_steps": [1, 0.3]}],
    }, sort_keys=False))  # fmt: skip
    return path


def test_a_sweep_ends_with_manifest_results_and_report_and_shares_its_runs(
    preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, one, two = tmp_path / "store", tmp_path / "one", tmp_path / "two"
    words = ["sweep", "--config", str(preset), "--store", str(store), "--workers", "2"]
    assert main([*words, "--out", str(one)]) == 0
    text = capsys.readouterr().out
    assert "6 runs; 2 side by side" in text
    manifest = json.loads((one / "manifest.json").read_text())["runs"]
    assert [run["name"] for run in manifest] == [
        "muon paper target_loss=0.5 seed0", "muon paper target_loss=1.0 seed0", "muon linear1 seed0",
        "muon linear3 seed0", "adamw linear2 seed0", "adamw greedy seed0",
    ]  # fmt: skip
    assert all(Path(run["folder"], "result.json").exists() and run["id"] in run["folder"] for run in manifest)
    assert manifest[3]["config"]["schedule"]["warmup_steps"] == 3
    results = json.loads((one / "results.json").read_text())
    assert [row["id"] for row in results["runs"]] == [run["id"] for run in manifest]
    assert {row["cell"]["name"] for row in results["runs"]} == {"muon", "adamw"}
    page = (one / "report.html").read_text()
    assert "<h1>Two cells</h1>" in page
    assert "muon, target_loss 0.5" in page

    made = {path: path.stat().st_mtime_ns for path in store.rglob("result.json")}
    assert main([*words, "--out", str(two), "--only", "[muon]", "--seeds", "[0, 1]"]) == 0
    assert "8 runs, 4 already finished" in capsys.readouterr().out
    assert len(list(store.rglob("result.json"))) == 6 + 4
    assert all(path.stat().st_mtime_ns == when for path, when in made.items())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "cells must not be empty"),
        (["--config", "tiny/baselnes"], "did you mean 'tiny/baselines'?"),
        (["--config", "tiny/baselines", "--only", "[prodgy]"], "only: no cell 'prodgy'; did you mean 'prodigy'?"),
        (["--config", "tiny/baselines", "--override", "{stesp: 3}"], "unknown key 'stesp'; did you mean 'steps'?"),
        (["--config", "tiny/baselines", "--address", "auto"], "address belongs to engine ray"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
