import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import CompareConfig, LabError
from autowarm.lab.analysis.results import document, read_results, summarise, to_json, verdict, write_results

CELL = {"task": "t", "model": "m", "optimizer": "muon", "batch_size": 4, "steps": 100, "lr": 0.01}


def row(schedule: str, warmup: int, seed: int, val_loss: float | None, **more: Any) -> dict[str, Any]:
    return {
        "id": f"{schedule}{warmup}{seed}", "cell": CELL, "optimizer": "muon", "schedule": schedule,
        "warmup_steps": warmup, "seed": seed, "train_loss": 2.0, "val_loss": val_loss, "metric": {},
        "switched_at": None, "diverged": val_loss is None, "seconds": 1.0, "tokens_per_second": 10.0,
        "warnings": [], **more,
    }  # fmt: skip


ROWS = [
    row("linear", 1, 0, 3.0), row("linear", 1, 1, 3.2),
    row("linear", 20, 0, 2.0), row("linear", 20, 1, 2.4),
    row("linear", 40, 0, 1.0), row("linear", 40, 1, None),
    row("adaptive", 10, 0, 2.1), row("adaptive", 14, 1, 2.3),
    row("paper", 100, 0, 5.0), row("paper", 100, 1, 5.0),
]  # fmt: skip


def test_the_best_is_by_mean_and_a_diverged_run_never_wins() -> None:
    (summary,) = summarise(ROWS)
    assert summary.best is not None
    assert summary.best.warmup_steps == 20
    assert summary.best.val_loss == pytest.approx(2.2)
    assert summary.best.stderr == pytest.approx(0.2)
    assert summary.manual[-1].diverged == 1
    assert summary.adaptive is not None
    assert summary.adaptive.warmup_steps == 12


def test_the_difference_is_paired_over_seeds() -> None:
    (summary,) = summarise(ROWS)
    difference, stderr = summary.difference or (math.nan, math.nan)
    assert difference == pytest.approx(0.0)  # +0.1 with one seed, −0.1 with the other
    assert stderr == pytest.approx(0.1)


def test_json_is_strict_and_has_the_promised_keys(tmp_path: Path) -> None:
    results = document(asdict(CompareConfig()), {"name": "t", "sha256": "0", "tokens": 9}, ROWS)
    write_results(tmp_path, results)
    read = read_results(tmp_path)
    assert read == json.loads(json.dumps(results, allow_nan=False))
    assert set(read) == {"schema", "environment", "corpus", "config", "runs", "summary"}
    assert read["schema"] == 1
    promised = {"cell", "optimizer", "schedule", "warmup_steps", "seed", "train_loss", "val_loss", "metric",
                "switched_at", "diverged", "seconds", "tokens_per_second"}  # fmt: skip
    assert promised <= set(read["runs"][0])
    (summary,) = read["summary"]
    assert set(summary) == {"cell", "optimizer", "best_manual", "adaptive", "difference", "stderr"}
    assert set(summary["best_manual"]) == set(summary["adaptive"]) == {"warmup_steps", "val_loss", "stderr"}


def test_what_is_missing_or_infinite_is_null() -> None:
    only_manual = to_json(summarise(ROWS[:1])[0])
    assert only_manual["adaptive"] is only_manual["difference"] is None
    assert only_manual["best_manual"]["stderr"] is None
    diverged = to_json(summarise([row("linear", 1, 0, 2.0), row("adaptive", 5, 0, None)])[0])
    assert diverged["adaptive"]["val_loss"] is diverged["difference"] is None


@pytest.mark.parametrize(
    ("adaptive", "words"),
    [
        ((2.01, 2.41), "level with the best hand-set one (+0.010 ± 0.000 nats)"),
        ((1.9, 2.3), "better than the best hand-set one by 0.100 ± 0.000 nats"),
        ((2.1, 2.5), "worse than the best hand-set one by 0.100 ± 0.000 nats"),
        ((2.1, 2.3), "with noise (two standard errors) above the margin of 0.02"),
        ((None, 2.3), "Adaptive diverged"),
    ],
)
def test_the_verdict_says_what_the_numbers_say(adaptive: tuple[float | None, float], words: str) -> None:
    rows = [*ROWS[:4], row("adaptive", 9, 0, adaptive[0]), row("adaptive", 9, 1, adaptive[1])]
    assert words in verdict(summarise(rows)[0])


def test_a_grid_without_differences_is_said_to_show_nothing() -> None:
    flat = [row("linear", warmup, seed, 2.0 + 0.001 * warmup) for warmup in (1, 5) for seed in (0, 1)]
    assert "within 0.004 nats: there is little to choose here" in verdict(summarise(flat)[0])
    noisy = [row("linear", w, seed, 2.0 + 0.01 * w * (1 - 2 * seed) + 0.001 * w) for w in (1, 5) for seed in (0, 1)]
    assert "no more than the noise: nothing is shown here" in verdict(summarise(noisy)[0])
    assert "nothing is shown" not in verdict(summarise(ROWS[:4])[0])


def test_rates_are_cells_of_their_own() -> None:
    other = [{**r, "cell": {**CELL, "lr": 0.02}} for r in ROWS]
    assert [summary.cell["lr"] for summary in summarise([*ROWS, *other])] == [0.01, 0.02]


def test_reading_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"holds no results\.json"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(LabError, match=r"results\.json is damaged"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('{"schema": 99}')
    with pytest.raises(LabError, match="has schema 99, this version reads 1"):
        read_results(tmp_path)
