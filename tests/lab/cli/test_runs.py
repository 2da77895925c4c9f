import re
import signal
from pathlib import Path

import pytest

from autowarm.lab.cli import main

KEYS = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.ff": 32, "model.vocab_size": 280,
        "model.seq_len": 8, "steps": 5, "batch_size": 4, "eval_batches": 1}  # fmt: skip
TINY = [word for key, value in KEYS.items() for word in (f"--{key}", str(value))]


def test_train_makes_one_run_and_prints_where(
    corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *TINY, "--data.corpus", str(corpus_folder), "--out", str(tmp_path)]
    before = signal.getsignal(signal.SIGINT)
    assert main(words) == 0
    assert signal.getsignal(signal.SIGINT) is before
    text = capsys.readouterr().out
    assert "step 5/5" in text
    assert all(re.search(r"ETA \d+:\d\d$", line) for line in text.splitlines() if line.startswith("step "))
    ended = re.search(r"^warm-up ended after (\d) updates, by (\w+)$", text, re.MULTILINE)
    assert ended
    assert f"warm-up {ended[1]} steps (ended by {ended[2]})" in text
    assert str(tmp_path) in text
    assert main([*words, "--steps", "6"]) == 1
    assert "config.steps: 5 → 6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--schedule.sigma_f2", "-1"], "schedule: sigma_f2 must be positive and finite, got -1.0"),
        (["--schedule.target_loss", "99"], "is not above the target loss f* = 99"),
        (["--optimizer.weight_decay", "-1"], "weight_decay must not be negative, got -1.0"),
        (["--schedule.options", "{warmup_shape: x}"], "unexpected keyword argument 'warmup_shape'"),
        (["--optimizer.options", "{momentum: 2}"], "momentum must be in [0, 1), got 2"),
    ],
)
def test_what_the_library_refuses_is_one_line(
    words: list[str], message: str, corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *TINY, "--data.corpus", str(corpus_folder), *words, "--out", str(tmp_path / "run")]) in (1, 2)
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
