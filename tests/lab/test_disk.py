"""A disk on which a write fails: one line of error, old files whole, and with room the same command continues."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autowarm.lab.commands import main
from autowarm.lab.config import LabError
from autowarm.lab.files import MARKER, write_atomically, write_json
from autowarm.lab.training.checkpoint import Checkpoints

from .helpers import ALONE, contents, stored, trained

TINY = """--model.layers 1 --model.width 16 --model.heads 2 --model.ff 32 --model.vocab_size 280 --model.seq_len 8
    --steps 6 --batch_size 2 --eval_batches 1 --checkpoint_every 2"""
Fail = Callable[[int], None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Makes the n-th and later flushes of a file to the disk fail; 0 is none."""
    flush = os.fsync

    def fail_from(first: int) -> None:
        count = 0

        def failing(file: int) -> None:
            nonlocal count
            count += 1
            if first and count >= first:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            flush(file)

        monkeypatch.setattr("autowarm.lab.files.os.fsync", failing)

    return fail_from


def test_files_and_checkpoints_are_replaced_whole_or_not_at_all(fail: Fail, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    stored(tmp_path)
    model, optimizer = trained(1)
    checkpoints = Checkpoints(tmp_path, ALONE)
    checkpoints.save(1, model, optimizer, {"step": 1})
    before = contents(tmp_path)
    for write in (lambda: write_atomically(path, b"x"), lambda: write_json(path, ["x"])):
        fail(1)
        with pytest.raises(OSError, match="No space left"):
            write()
    for first in (1, 2):  # the rest, the manifest
        fail(first)
        with pytest.raises(
            LabError, match=r"checkpoint-00000002 cannot be written: .*; earlier checkpoints are intact"
        ):
            checkpoints.save(2, model, optimizer, {"step": 2})
        assert contents(tmp_path) == before
    fail(0)
    checkpoints.save(2, model, optimizer, {"step": 2})
    assert sorted(file.name for file in tmp_path.iterdir() if file.name != MARKER) == [
        "checkpoint-00000001", "checkpoint-00000002", "results.json",
    ]  # fmt: skip


@pytest.mark.parametrize("first", [1, 3, 6])
def test_training_says_so_in_one_line_and_goes_on_with_room(
    fail: Fail, first: int, corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *TINY.split(), "--data.corpus", str(corpus_folder), "--out"]
    fail(0)
    assert main([*words, str(tmp_path / "straight")]) == 0
    fail(first)
    capsys.readouterr()
    assert main([*words, str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("autowarm: ")
    assert "No space left" in error
    assert "Traceback" not in error
    fail(0)
    assert main([*words, str(tmp_path / "run")]) == 0
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "run"))
    assert one == two
