import json
import re
import signal
from pathlib import Path

import pytest

from autowarm.lab.commands import main
from autowarm.lab.config import RunConfig
from autowarm.lab.config.build import build, presets, read_yaml
from autowarm.lab.tasks.models import parameters

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
    assert "update 5/5" in text
    first, *others = (line for line in text.splitlines() if line.startswith("update "))
    assert re.fullmatch(r"update 1/5  loss \S+  rate \S+", first)  # which tells nothing of the speed
    assert all(re.search(r"ETA \d+:\d\d$", line) for line in others)
    ended = re.search(r"^warm-up ended after (\d) updates, by (\w+)$", text, re.MULTILINE)
    assert ended
    assert f"warm-up {ended[1]} updates (ended by {ended[2]})" in text
    assert str(tmp_path) in text
    assert main([*words, "--steps", "6"]) == 1
    assert "config.steps: 5 → 6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--schedule.sigma_f2", "-1"], "schedule: sigma_f2 must be positive and finite, got -1.0"),
        (["--schedule.target_loss", "99"], "autowarm: schedule: the first loss f(x0) = "),
        (["--optimizer.weight_decay", "-1"], "weight_decay must not be negative, got -1.0"),
        (["--schedule.options", "{warmup_shape: x}"], "has no warmup_shape"),
        (["--schedule.options", "{max_warmup: 7.5}"], "schedule: max_warmup"),
        (["--optimizer.options", "{momentum: 2}"], "momentum must be in [0, 1), got 2"),
        (["--optimizer.options", "{momentumm: 0.9}"], "momentumm"),
        (["--optimizer.options", "{blocks: {'(': 3}}"], "do not suit muon"),
    ],
)
def test_what_the_library_refuses_is_one_line(
    words: list[str], message: str, corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *TINY, "--data.corpus", str(corpus_folder), *words, "--out", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_a_run_that_explodes_ends_with_1(
    corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *TINY, "--data.corpus", str(corpus_folder), "--optimizer", "normsgd", "--schedule", "constant"]
    assert main([*words, "--optimizer.lr", "1e6", "--out", str(tmp_path / "run")]) == 1
    observed = capsys.readouterr()
    assert observed.out.splitlines()[-1].startswith("diverged"), observed.err


def test_the_speed_of_a_small_task_counts_no_examples(tmp_path: Path) -> None:
    words = ["train", "--task", "mlp", "--steps", "2", "--engine.precision", "float64", "--out", str(tmp_path)]
    assert main(words) == 0
    assert json.loads((tmp_path / "result.json").read_text())["tokens_per_second"] is None


@pytest.mark.parametrize("name", list(presets("train")))
def test_a_dry_run_says_what_a_preset_needs_and_makes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main(["train", "--config", name, "--dry-run"]) == 0
    text = capsys.readouterr().out
    run = build(RunConfig, read_yaml(name)[0], name)
    assert f"parameters   {parameters(run.model):,}, κ = " in text
    pieces = f"{run.engine.accumulate} micro-batches of {run.batch_size // run.engine.accumulate}"
    assert f"{run.steps:,}, each of {run.batch_size} sequences of 512 tokens: 1 rank × {pieces}" in text
    assert f"tokens       {run.steps * run.batch_size * 512:,}; data/fineweb" in text
    assert ("not the paper's" in text) == (name == "as-the-authors")  # which sets Δ'
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_names_what_is_not_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model.seq_len", "8", "--batch_size", "4", "--steps", "100", "--engine.accumulate", "1", "--dry-run"]
    assert main(["train", "--config", "llama-124m", *words]) == 0
    text = capsys.readouterr().out
    assert "3,200;" in text
    assert "model.seq_len 8 instead of 512 (Table main_hyperparams)" in text
