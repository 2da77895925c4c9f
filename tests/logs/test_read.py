"""Files and folders: binary, missing, with several runs."""

import gzip
import os
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from autowarm.logs import LogError, read

TEXT = "step,loss,lr\n1,4,0.1\n2,3,0.2\n3,2,0.2\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("name", ["log.csv", "any name"])
def test_the_content_decides_and_not_the_name(name: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(TEXT.encode(encoding))
    [log] = read(tmp_path / name)
    assert log.losses.tolist() == [4.0, 3.0, 2.0]
    assert log.name == f"{tmp_path.name}/{name}"


def test_a_folder_gives_its_log_and_the_newest_checkpoints_history(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 4}\n{"step": 2, "loss": 3}\n')
    [log] = read(str(tmp_path))
    assert log.losses.tolist() == [4.0, 3.0]
    trainer = tmp_path / "trainer"
    for step in (9, 10):
        (trainer / f"checkpoint-{step}").mkdir(parents=True)
        rows = ",".join(f'{{"step": {i}, "loss": {i}}}' for i in range(1, step + 1))
        (trainer / f"checkpoint-{step}" / "trainer_state.json").write_text(f'{{"log_history": [{rows}]}}')
        os.utime(trainer / f"checkpoint-{step}" / "trainer_state.json", (100 - step,) * 2)  # as a copy may have it
    assert len(read(trainer)[0].losses) == 10


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x81\x82\x00", "no text in UTF-8, and no event file of TensorBoard by its name: unpack it"),
        (TEXT.encode("utf-16"), "no text in UTF-8"),
        (gzip.compress(TEXT.encode(), mtime=0), "no text in UTF-8"),
        (b"", "the file is empty"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_words(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(LogError, match=message):
        read(tmp_path / "log")


def test_an_event_file_is_known_by_its_name(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "run")) as writer:
        for step, loss in enumerate((4.0, 3.0, 2.0), 1):
            writer.add_scalar("loss", loss, step)
    [file] = (tmp_path / "run").iterdir()
    for path, name in ((file, f"run/{file.name}"), (tmp_path, None)):
        [log] = read(path)
        assert log.losses.tolist() == [4.0, 3.0, 2.0]
        assert name is None or log.name == name
    (tmp_path / "log").write_bytes(file.read_bytes())
    with pytest.raises(LogError, match="no text in UTF-8|no column|no table"):
        read(tmp_path / "log")
