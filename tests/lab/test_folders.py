"""Whose folder is this: what someone else put into a folder is there after any command."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

from autowarm.lab.config import ModelConfig
from autowarm.lab.files import MARKER, Busy, claim, free, is_ours, locked, write_atomically
from autowarm.lab.tasks.models import llama, save_weights
from autowarm.lab.training.checkpoint import Checkpoints, own_checkpoints

from .helpers import ALONE, MODEL, refused, stored, trained

RUN = {**{f"model.{key}": value for key, value in MODEL.items()}, "steps": 12, "batch_size": 4, "eval_batches": 1,
       "checkpoint_every": 4}  # fmt: skip


def words(command: str, folder: Path, corpus: Path) -> list[str]:
    """The words of a command that is to write to this folder."""
    out, run = ["--out", str(folder)], {**RUN, "data.corpus": corpus}
    alone = [word for key, value in run.items() for word in (f"--{key}", str(value))]
    within = [word for key, value in run.items() for word in (f"--run.{key}", str(value))]
    linear = ["--schedule.kind", "linear", "--schedule.warmup_steps", "3"]
    return {
        "train": ["train", *alone, *linear, *out],
        "compare": ["compare", "--config", "smoke", *within, "--rates", "{muon: [0.01]}", "--warmups", "[0.2]",
                    "--schedules", "[linear]", "--seeds", "[0]", *out],
        "sweep": ["sweep", "--base", json.dumps({key: str(x) if x is corpus else x for key, x in run.items()}),
                  "--cells", "{one: {}}", *out],
        "figure": ["figure", "eta-behaviour", "--figures", str(folder)],
        "smoothness": ["smoothness", "--only", "[lion]", "--override", json.dumps({
            **{key: str(x) if x is corpus else x for key, x in run.items()}, "schedule.warmup_steps": 6}), *out],
               "report": ["report", str(folder)],
    }[command]  # fmt: skip


COMMANDS = ["train", "compare", "sweep", "figure", "smoothness", "report"]


def test_a_folder_is_ours_once_it_is_new_empty_or_marked(tmp_path: Path) -> None:
    for folder in (tmp_path / "a" / "new", tmp_path / "empty"):
        if folder.name == "empty":
            folder.mkdir()
        claim(folder)
        assert [path.name for path in folder.iterdir()] == [MARKER]
    (tmp_path / "empty" / "notes").write_text("mine")
    with locked(tmp_path / "empty"), pytest.raises(Busy), locked(tmp_path / "empty"):
        pass
    assert (free(tmp_path / "new"), free(tmp_path / "empty")) == (tmp_path / "new", tmp_path / "empty-2")
    (tmp_path / "empty-2").symlink_to("nowhere")
    assert free(tmp_path / "empty") == tmp_path / "empty-3"
    assert free(Path()) == Path("autowarm")
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    claim(tmp_path / "out")
    assert is_ours(tmp_path / "disk")


@pytest.mark.parametrize("kind", ["a file", "a link to nothing"])
def test_what_is_no_folder_is_named(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.touch() if kind == "a file" else out.symlink_to("nowhere")
    message = refused(["figure", "eta-behaviour", "--figures", str(out)], capsys, 1)
    assert f"{out} is no folder: choose another, such as {out}-2" in message


def test_checkpoints_of_others_neither_count_nor_go_nor_stand_in_the_way(tmp_path: Path) -> None:
    claim(tmp_path)
    model, optimizer = trained(1)
    checkpoints = Checkpoints(tmp_path, ALONE, keep=1)
    checkpoints.save(1, model, optimizer, {"step": 1})
    (tmp_path / "checkpoint-00000001" / "note").write_text("mine")
    shutil.copytree(tmp_path / "checkpoint-00000001", tmp_path / "checkpoint-00000009-good")
    (tmp_path / "checkpoint-00000008").symlink_to("checkpoint-00000001")
    (tmp_path / "checkpoint-latest").symlink_to("nowhere")
    for name in ("checkpoint-00000002", ".checkpoint-00000002", "checkpoint-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rest.pt").write_text("mine")
    before = {path: x for path, x in tree(tmp_path).items() if "00000001/" not in path or path.endswith("note")}
    rest = Checkpoints(tmp_path, ALONE).load(model, optimizer)  # the note does no harm
    assert rest["step"] == 1
    checkpoints.save(2, model, optimizer, {"step": 2})
    assert before.items() <= tree(tmp_path).items()
    assert [path.name for path in own_checkpoints(tmp_path)] == ["checkpoint-000000002"]  # the other name was taken
    rest = Checkpoints(tmp_path, ALONE).load(model, optimizer)
    assert rest["step"] == 2
    checkpoints.drop()
    assert not own_checkpoints(tmp_path)
    assert before.items() <= tree(tmp_path).items()


def tree(*folders: Path) -> dict[str, bytes | str]:
    """Every file and link below folders: its bytes, or where it points to."""
    actual: dict[str, bytes | str] = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "a folder"
            actual[str(path)] = content
    return actual


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_touches_a_folder_of_someone_elses(
    command: str, corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even where its files have the names of ours, are links, or lie in a checkpoint."""
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    if command == "report":
        stored(folder)
        (folder / MARKER).unlink()
    (elsewhere / "inner").mkdir(parents=True)
    (elsewhere / "file").write_text("mine")
    for name in ("config.yaml", "result.json", "größe.txt", ".hidden", "checkpoint-00000008/rest.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    for name, target in (("metrics.jsonl", "file"), ("runs", "inner"), ("report.html", "gone")):
        (folder / name).symlink_to(elsewhere / target)
    before = tree(folder, elsewhere)
    error = refused(words(command, folder, corpus_folder), capsys, 1)
    assert "is not autowarm's, so nothing in it was touched: it holds .hidden, " in error
    assert f"such as {folder}-2;" in error
    assert tree(folder, elsewhere) == before


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
@pytest.mark.parametrize("kind", ["text", "a user's weights", "transformers' weights"])
def test_the_umask_decides_who_may_read_a_file(kind: str, umask: int, mode: int, tmp_path: Path) -> None:
    config = ModelConfig(layers=1, width=8, heads=2, ff=8, vocab_size=16, seq_len=4)
    model = llama(config, 0) if "transformers" in kind else torch.nn.Linear(2, 2)
    before = os.umask(umask)
    try:
        if kind == "text":
            write_atomically(tmp_path / "file", "text")
        else:
            save_weights(model, tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {"file", "model.safetensors"} & modes.keys()
    assert set(modes.values()) == {mode}
