import json
from pathlib import Path

import pytest

from autowarm.lab.analysis.results import read_results
from autowarm.lab.commands import main
from autowarm.lab.files import claim

from ..helpers import refused, stored


def test_json_is_strict_and_has_the_promised_keys(tmp_path: Path) -> None:
    written = stored(tmp_path)
    read = read_results(tmp_path)
    assert read.document == json.loads(json.dumps(written.document, allow_nan=False))
    assert read.summaries == written.summaries
    assert set(read.document) == {"schema", "environment", "corpus", "config", "runs", "summary"}
    assert read.document["schema"] == 1
    promised = {"cell", "optimizer", "schedule", "warmup_steps", "seed", "train_loss", "val_loss", "metric",
                "switched_at", "diverged", "seconds", "tokens_per_second"}  # fmt: skip
    assert promised <= set(read.rows[0])
    (summary,) = read.document["summary"]
    assert set(summary) == {"cell", "optimizer", "best_manual", "adaptive", "difference", "stderr"}
    assert set(summary["best_manual"]) == set(summary["adaptive"]) == {"warmup_steps", "val_loss", "stderr"}


def test_of_a_comparison_that_was_stopped_it_is_said_what_is_finished_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(tmp_path)
    monkeypatch.chdir(tmp_path)
    runs = [{"name": f"Muon 0.1, warm-up {length}, seed 0", "folder": f"out/runs/{length}"} for length in (0, 5, 9)]
    (tmp_path / "manifest.json").write_text(json.dumps({"runs": runs}))
    message = f"{tmp_path}: 0 of 3 runs are finished. Repeat its command to go on"
    assert message in refused(["report", str(tmp_path)], capsys, 1)
    for length, place in ((5, tmp_path / "runs"), (9, tmp_path / "out" / "runs")):  # from elsewhere, and from here
        (place / f"{length}").mkdir(parents=True)
        (place / f"{length}" / "result.json").touch()
    message = f"{tmp_path}: 2 of 3 runs are finished (Muon 0.1, warm-up 5, seed 0; Muon 0.1, warm-up 9, seed 0). Repeat"
    assert message in refused(["report", str(tmp_path)], capsys, 1)
    stored(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    assert message in capsys.readouterr().out  # also beside the results of an earlier command
    (tmp_path / "runs" / "0").mkdir()
    (tmp_path / "runs" / "0" / "result.json").touch()
    assert main(["report", str(tmp_path)]) == 0
    assert "runs are finished" not in capsys.readouterr().out
