import signal
import sys
from pathlib import Path

import pytest

from autowarm import __main__ as entry
from autowarm import __version__
from autowarm.lab.cli import main


def test_help_and_version_need_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "autowarm COMMAND [options]" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert main([]) == 2


def test_an_unknown_command_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["comapre"]) == 2
    assert "did you mean 'compare'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "train"])
def test_help_lists_every_key_with_its_default(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert "model.width" in text
    assert "a YAML file, or a preset:" in " ".join(text.split())


def test_train_makes_one_run_and_prints_where(
    corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"train --model.width 16 --model.heads 2 --model.ff 32 --model.vocab_size 280 --model.seq_len 8 --steps 5 \
        --eval_batches 1 --data.corpus {corpus_folder} --out {tmp_path}".split()
    before = signal.getsignal(signal.SIGINT)
    assert main(words) == 0
    assert signal.getsignal(signal.SIGINT) is before
    text = capsys.readouterr().out
    assert "step 5/5" in text
    assert str(tmp_path) in text
    assert main([*words, "--steps", "6"]) == 1
    assert "config.steps: 5 → 6" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    for name in [name for name in sys.modules if name.startswith("autowarm.lab")]:
        monkeypatch.delitem(sys.modules, name)
    assert entry.main() == 2
    assert "pip install 'autowarm[lab]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--schedule.sigma_f2", "-1"], "schedule: sigma_f2 must be positive and finite, got -1.0"),
        (["--schedule.target_loss", "99"], "is not above the target loss f* = 99"),
        (["--optimizer.weight_decay", "-1"], "weight_decay must not be negative, got -1.0"),
        (["--optimizer.options", "{momentum: 2}"], "momentum must be in [0, 1), got 2"),
    ],
)
def test_what_the_library_refuses_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--model.vocab_size", "300"]
    tiny += ["--data.max_bytes", "600000", "--steps", "3", "--eval_batches", "1", "--batch_size", "2"]
    assert main(["train", *tiny, *words, "--out", str(tmp_path / "run")]) in (1, 2)
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
