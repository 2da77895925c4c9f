"""A disk that is full or read-only at every write: one line of error, old files whole, and room makes it go on."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autowarm.lab.commands import main
from autowarm.lab.config import LabError
from autowarm.lab.data import prepare
from autowarm.lab.files import MARKER, write_atomically, write_json
from autowarm.lab.training.checkpoint import Checkpoints

from .helpers import ALONE, stored, trained

TINY = """--model.layers 1 --model.width 16 --model.heads 2 --model.ff 32 --model.vocab_size 280 --model.seq_len 8
    --steps 6 --batch_size 2 --eval_batches 1 --checkpoint_every 2"""


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.folder)], check=True)

    def fill(self, leave: int) -> None:
        """Leaves so many bytes free, more or less."""
        (self.folder / "filler").unlink(missing_ok=True)
        free = os.statvfs(self.folder)
        size = free.f_bavail * free.f_frsize - leave
        with open(self.folder / "filler", "wb") as file:
            file.write(b"\0" * max(0, size))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except OSError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def one_line(error: str) -> bool:
    """Log lines about checkpoints may come before it."""
    return error.count("autowarm: ") == 1 and error.splitlines()[-1].startswith("autowarm: ") and "Traceb" not in error


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_files_and_checkpoints_are_replaced_whole_or_not_at_all(disk: Disk, state: str) -> None:
    path = disk.folder / "results.json"
    stored(disk.folder)
    before = path.read_bytes()
    model, optimizer = trained(1)
    checkpoints = Checkpoints(disk.folder, ALONE)
    checkpoints.save(1, model, optimizer, {"step": 1})
    disk.fill(0) if state == "full" else disk.remount("ro")
    for write in (lambda: write_atomically(path, b"x" * 100_000), lambda: write_json(path, ["x" * 100_000])):
        with pytest.raises(OSError, match="No space left|Read-only"):
            write()
    with pytest.raises(LabError, match=r"checkpoint-00000002 cannot be written: .*; earlier checkpoints are intact"):
        checkpoints.save(2, model, optimizer, {"step": 2})
    assert path.read_bytes() == before
    assert [file.name for file in disk.folder.iterdir() if file.name.startswith(".")] == [MARKER]
    assert [path.name for path in disk.folder.glob("*checkpoint*")] == ["checkpoint-00000001"]
    disk.remount("rw,size=16m")
    again = Checkpoints(disk.folder, ALONE)
    rest = again.load(model, optimizer)
    assert rest is not None
    assert rest["step"] == 1
    again.save(2, model, optimizer, {"step": 2})


# TensorBoard writes in a thread of its own, which has nobody to tell.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_wherever_the_disk_is_full_training_says_so_and_goes_on_with_room(
    disk: Disk, corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def words(out: Path) -> list[str]:
        return ["train", *TINY.split(), "--data.corpus", str(corpus_folder), "--out", str(out)]

    assert main(words(tmp_path / "straight")) == 0
    needed = sum(path.stat().st_size for path in (tmp_path / "straight").rglob("*") if path.is_file())
    out, failed = disk.folder / "run", 0
    for leave in (0, *(needed * share // 10 for share in (1, 2, 4, 6, 8, 10, 12, 15, 20, 30, 50))):
        disk.fill(leave)
        capsys.readouterr()
        if main(words(out)) == 0:
            break
        error = capsys.readouterr().err
        assert one_line(error), error
        assert "No space left" in error or "bytes are free" in error
        failed += 1
    assert failed >= 3
    (disk.folder / "filler").unlink()
    assert main(words(out)) == 0
    kept = [json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "straight", out)]
    assert kept[0]["val_loss"] == kept[1]["val_loss"]
    assert kept[0]["train_loss"] == kept[1]["train_loss"]
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "straight" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "command",
    [["train", *TINY.split(), "--out"], ["compare", "--config", "smoke", "--workers", "1", "--out"]],
    ids=["train", "compare"],
)
def test_a_read_only_folder_is_one_line(
    disk: Disk, corpus_folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    disk.remount("ro")
    prefix = "--run." if command[0] == "compare" else "--"
    assert main([*command, str(disk.folder / "run"), f"{prefix}data.corpus", str(corpus_folder)]) == 1
    error = capsys.readouterr().err
    assert one_line(error), error
    assert "Read-only file system" in error


@pytest.mark.parametrize("leave", [0, 40_000])
def test_a_report_that_finds_no_room_leaves_the_old_one(
    disk: Disk, leave: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(disk.folder)
    assert main(["report", str(disk.folder)]) == 0
    before = {path.name: path.read_bytes() for path in disk.folder.iterdir()}
    disk.fill(leave)
    capsys.readouterr()
    assert main(["report", str(disk.folder)]) == 1
    assert one_line(capsys.readouterr().err)
    assert {path.name: path.read_bytes() for path in disk.folder.iterdir() if path.name != "filler"} == before


@pytest.mark.parametrize("leave", [0, 20_000])
def test_a_cache_that_finds_no_room_leaves_no_half(
    disk: Disk, corpus_folder: Path, leave: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOWARM_CACHE", str(disk.folder / "cache"))
    prepare.cache_clear()
    disk.fill(leave)
    words = ["train", *TINY.split(), "--data.corpus", str(corpus_folder), "--out", str(disk.folder / "run")]
    try:
        assert main(words) == 1
        assert one_line(capsys.readouterr().err)
        assert [path.name for path in disk.folder.glob("cache/*")] == []
        disk.fill(4_000_000)
        assert main(words) == 0
    finally:
        prepare.cache_clear()
