"""Whose folder is this: what someone else put into a folder is there after any command, killed at any moment."""

import json
import os
import random
import shutil
import stat
from pathlib import Path

import pytest
import torch

from autowarm.lab.commands import main
from autowarm.lab.config import ModelConfig
from autowarm.lab.files import MARKER, Busy, claim, free, is_ours, locked, sha256, write_atomically
from autowarm.lab.tasks.models import llama, save_weights
from autowarm.lab.training.checkpoint import Checkpoints, own_checkpoints
from tests.programs import Launcher

from .helpers import ALONE, MODEL, refused, stored, trained

RUN = {**{f"model.{key}": value for key, value in MODEL.items()}, "steps": 12, "batch_size": 4, "eval_batches": 1,
       "checkpoint_every": 4}  # fmt: skip
OURS = ["config.yaml", "config.json", "result.json", "metrics.jsonl", "model.safetensors", "results.json",
        "report.html", "manifest.json", "sweep.png", "curves.svg", "smoothness.md", "error.txt",
        "train_000001.bin", ".lock", "eta-behaviour.png"]  # fmt: skip
ANYTHING = ["notes.txt", "model-00001-of-00002.safetensors", "größe.txt", ".hidden", "checkpoint-note", "run.log", "-",
            "a b"]  # fmt: skip
FOLDERS = ["checkpoint-500", "checkpoint-best", "checkpoint-00000008", "checkpoint-00000012", ".checkpoint-00000012",
           "checkpoint-00000004-good", "damaged-checkpoint-00000008", "src"]  # fmt: skip


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
    said = refused(["figure", "eta-behaviour", "--figures", str(out)], capsys, 1)
    assert f"{out} is {kind}, and a folder is needed: choose another, such as {out}-2" in said


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
    before = {path: x for path, x in seen(tmp_path).items() if "00000001/" not in path or path.endswith("note")}
    rest = Checkpoints(tmp_path, ALONE).load(model, optimizer)  # the note does no harm
    assert rest is not None
    assert rest["step"] == 1
    checkpoints.save(2, model, optimizer, {"step": 2})
    assert before.items() <= seen(tmp_path).items()
    assert [path.name for path in own_checkpoints(tmp_path)] == ["checkpoint-000000002"]  # the other name was taken
    rest = Checkpoints(tmp_path, ALONE).load(model, optimizer)
    assert rest is not None
    assert rest["step"] == 2
    checkpoints.drop()
    assert not own_checkpoints(tmp_path)
    assert before.items() <= seen(tmp_path).items()


def strew(folder: Path, elsewhere: Path, draw: random.Random, names: list[str]) -> None:
    """Fill a folder with someone else's files, links and checkpoints, where their names are not taken."""

    def put(path: Path) -> None:
        kind = draw.choice(["file", "file", "link", "link to a folder", "link to nothing"])
        if os.path.lexists(path):
            return
        if kind == "file":
            path.write_bytes(draw.randbytes(draw.choice([0, 5, 3000])))
            return
        target = elsewhere / f"{'gone' if kind == 'link to nothing' else 'there'}-{draw.randrange(10**9)}"
        if kind == "link":
            target.write_bytes(draw.randbytes(9))
        elif kind == "link to a folder":
            target.mkdir()
            (target / "kept").write_bytes(draw.randbytes(9))
        path.symlink_to(target)

    folder.mkdir(parents=True, exist_ok=True)
    for name in draw.sample([*names, *FOLDERS], draw.randint(1, 6)):
        path = folder / name
        if name not in FOLDERS or draw.random() < 0.3:
            put(path)
        elif not os.path.lexists(path):
            path.mkdir()
            for inner in draw.sample(["trainer_state.json", "model.safetensors", "manifest.json", "rest.pt", "x"], 2):
                put(path / inner)


def seen(*folders: Path) -> dict[str, bytes | str]:
    """Every file and link below folders: its bytes, or where it points to."""
    found: dict[str, bytes | str] = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "a folder"
            found[str(path)] = content
    return found


def refuse(draw: random.Random, folder: Path, given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A command in a folder of someone else's changes nothing in it, and says so."""
    (elsewhere := folder.with_name(f"{folder.name}-elsewhere")).mkdir()
    if given[0] == "report":
        stored(folder)
        (folder / MARKER).unlink()
    strew(folder, elsewhere, draw, OURS + ANYTHING)
    before = seen(folder, elsewhere)
    assert main(given) == 1
    said = capsys.readouterr().err
    assert "is not autowarm's, so nothing in it was touched: it holds " in said or "no results.json" in said
    assert seen(folder, elsewhere) == before
    if folder.name.endswith("9"):  # the name that the message proposes
        assert f"such as {folder}-2;" in said


FEW, MANY = range(18), pytest.param(range(18, 200), marks=[pytest.mark.generated, pytest.mark.long])


@pytest.mark.parametrize("cases", [FEW, MANY], ids=["a few", "the rest"])
def test_no_command_touches_a_folder_of_someone_elses(
    cases: range, corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in cases:
        command, folder = COMMANDS[number % len(COMMANDS)], tmp_path / f"folder{number}"
        refuse(random.Random(number), folder, words(command, folder, corpus_folder), capsys)


def kill_twice(number: int, folder: Path, given: list[str], launcher: Launcher) -> None:
    """A command is killed, someone puts things beside what it has made, it is killed again, and then finishes."""
    draw = random.Random(number)

    def run(moment: int, *expected: int) -> None:
        command = [str(Path(__file__).with_name("killed.py")), str(moment), *given]
        ended = launcher.run(command, {"AUTOWARM_CACHE": os.environ["AUTOWARM_CACHE"]})
        assert ended.status in expected, ended.stderr[-2000:]

    (elsewhere := folder.with_name(f"{folder.name}-elsewhere")).mkdir()
    if given[0] == "report":
        stored(folder)
    most = 90 if given[0] in ("train", "compare", "sweep") else 25
    run(draw.randint(1, most), 0, 137)
    for made in own_checkpoints(folder):
        for name in (f"{made.name}-good", "checkpoint-best", "checkpoint-latest"):
            if not os.path.lexists(folder / name) and draw.random() < 0.5:
                shutil.copytree(made, folder / name)
        if not os.path.lexists(folder / "checkpoint-00000099"):
            (folder / "checkpoint-00000099").symlink_to(made)
    strew(folder, elsewhere, draw, ANYTHING)
    ours = is_ours(folder)
    guests = {path: x for path, x in seen(folder, elsewhere).items() if not _is_written_by_us(Path(path), folder)}
    run(draw.randint(1, most), *((0, 137) if ours else (1,)))
    assert guests.items() <= seen(folder, elsewhere).items()
    run(0, 0 if ours else 1)
    assert guests.items() <= seen(folder, elsewhere).items()


def _is_written_by_us(path: Path, folder: Path) -> bool:
    """Whether it is ours to replace: what a command writes by its name, in its folder or in a checkpoint of ours."""
    if path == folder or folder not in path.parents:
        return path == folder
    top = path.relative_to(folder).parts[0]
    foreign = top in ANYTHING or top in ("checkpoint-best", "checkpoint-latest", "checkpoint-00000099")
    return not foreign and not top.endswith("-good") and (top not in FOLDERS or is_ours(folder / top))


@pytest.mark.parametrize(
    "cases", [range(9), pytest.param(range(9, 100), marks=[pytest.mark.generated])], ids=["a few", "the rest"]
)
def test_what_is_put_beside_our_files_survives_a_killed_command(
    cases: range, corpus_folder: Path, tmp_path: Path, lab_launcher: Launcher
) -> None:
    for number in cases:
        command, folder = COMMANDS[number % len(COMMANDS)], tmp_path / f"folder{number}"
        try:
            kill_twice(number, folder, words(command, folder, corpus_folder), lab_launcher)
        except BaseException as error:
            error.add_note(f"in case {number}, {command}")
            raise


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
@pytest.mark.parametrize("kind", ["text", "a user's weights", "gathered weights", "transformers' weights"])
def test_the_umask_decides_who_may_read_a_file(kind: str, umask: int, mode: int, tmp_path: Path) -> None:
    config = ModelConfig(layers=1, width=8, heads=2, ff=8, vocab_size=16, seq_len=4)
    model = llama(config, 0) if "transformers" in kind else torch.nn.Linear(2, 2)
    before = os.umask(umask)
    try:
        if kind == "text":
            write_atomically(tmp_path / "file", "text")
        else:
            save_weights(model, tmp_path, model.state_dict() if "gathered" in kind else None)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {"file", "model.safetensors"} & modes.keys()
    assert set(modes.values()) == {mode}


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "file", "old")

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert sha256(tmp_path / "file") == sha256(b"old")
