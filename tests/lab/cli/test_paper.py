from pathlib import Path

import pytest

from autowarm.lab.cli import main
from autowarm.lab.paper.gallery import GALLERY


def test_figures_are_listed_drawn_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "--list"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in GALLERY if name not in listed] == []
    assert main(["figure", "eta-behaviour", "--figures", str(tmp_path)]) == 0
    assert (tmp_path / "eta-behaviour.svg").exists()
    assert main(["figure", "eta-behavior"]) == 2
    assert "did you mean 'eta-behaviour'" in capsys.readouterr().err
    assert main(["figure"]) == 2


def test_smoothness_measures_fits_and_draws(
    corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.ff": 32, "model.vocab_size": 280,
            "model.seq_len": 16, "steps": 24, "batch_size": 4, "eval_batches": 1, "schedule.warmup_steps": 12,
            "data.corpus": corpus_folder}  # fmt: skip
    keys = [word for key, value in tiny.items() for word in (f"--run.{key}", str(value))]
    words = ["smoothness", *keys, "--rates", "{lion: 0.002}", "--options", "{}", "--out", str(tmp_path)]
    assert main(words) == 0
    assert "**lion**" in capsys.readouterr().out
    found = {"smoothness-lion.json", "smoothness-lion.png", "smoothness-lion.svg", "smoothness.md"}
    assert {path.name for path in tmp_path.iterdir()} == found
