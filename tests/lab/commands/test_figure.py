from pathlib import Path

import pytest

from autowarm.lab.commands import main
from autowarm.lab.folders import MARKER
from autowarm.lab.paper.gallery import GALLERY


@pytest.mark.long
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
    words = ["smoothness", *keys, "--options", "{}", "--out", str(tmp_path)]
    # One run diverges at once; a warm-up without points has no fit; AdamW is in no figure of the paper.
    rates = "{adamw: 0.002, lion: 1.0e25}"
    assert main([*words, "--rates", rates, "--run.schedule.warmup_steps", "0"]) == 1
    said = capsys.readouterr()
    assert "**adamw**" in said.out
    assert "no fit for lion, full run:" in said.err
    assert "Traceback" not in said.err
    found = {f"smoothness-adamw.{suffix}" for suffix in ("json", "png", "svg")}
    assert {path.name for path in tmp_path.iterdir()} == found | {"smoothness-lion.json", "smoothness.md", MARKER}
