"""Whatever becomes of a file: it is refused by name, the last good one is used, and nothing is overwritten."""

import json
import logging
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import LabError
from autowarm.lab.files import sha256
from autowarm.lab.training.checkpoint import Checkpoints
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import read_metrics, write_log

from .conftest import small_run
from .helpers import ALONE, contents, crash_at, numbers, refused, stored, trained

Damage = Callable[[Path], object]


def flip_a_bit(path: Path) -> None:
    """Anywhere in a file of numbers; of text the first, for elsewhere it may leave valid text."""
    content = bytearray(path.read_bytes())
    text = path.suffix in (".json", ".yaml")
    place = 0 if text else random.Random(path.name).randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


DAMAGES: dict[str, Damage] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "bit-flipped": flip_a_bit,
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b'{"hello": "world"}'),
    "missing": lambda path: path.unlink(),
}
every_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


def put(other: str) -> Damage:
    """Another checkpoint in the place of one."""
    return lambda path: (shutil.rmtree(path), shutil.copytree(path.parent / other, path))


SPOILT = {
    **{f"{name} {file}": (lambda path, file=file, damage=damage: damage(next(path.glob(file))), "does not match its")
       for file in ("*.safetensors", "rest.pt", "manifest.json") for name, damage in DAMAGES.items()},
    "swapped": (put("checkpoint-00000004"), "is of update 4 of the run 'mine'"),
    "of another run": (put("../another/checkpoint-00000008"), "is of update 8 of the run 'another'"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_checkpoint_is_named_and_kept_and_the_one_before_is_used(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, message = SPOILT[how]
    model, optimizer = trained(1)
    for name in ("mine", "another"):
        for step in (4, 8):
            Checkpoints(tmp_path / name, ALONE, name).save(step, model, optimizer, {"step": step})
    newest, aside = (tmp_path / "mine" / f"{name}checkpoint-00000008" for name in ("", "damaged-"))
    aside.mkdir()  # an earlier one, which stays
    (aside / "kept").write_text("mine")
    spoil(newest)
    spoilt = contents(newest)
    with caplog.at_level(logging.WARNING):
        rest = Checkpoints(tmp_path / "mine", ALONE, "mine").load(model, optimizer)
    assert rest["step"] == 4
    assert f"checkpoint-00000008 {message}" in caplog.text
    assert "setting it aside" in caplog.text
    assert contents(aside) == {"kept": b"mine"}
    assert contents(aside.with_name(f"{aside.name}-2")) == spoilt


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory, corpus_folder: Path) -> dict[str, Any]:
    """A run that was never stopped, and the folder of one that was cut off after step 9 of 12, twice saved."""
    config = small_run(corpus_folder)
    folder = tmp_path_factory.mktemp("halves")
    straight = train(config, folder / "straight")
    with pytest.raises(RuntimeError):
        train(config, folder / "cut", crash_at(9))
    return {"config": config, "result": straight, "cut": folder / "cut"}


def keep(count: int) -> Damage:
    """So many lines of the curve, and a part of one."""

    def cut(folder: Path) -> None:
        lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(lines[:count]) + '{"step": 7, "lo')

    return cut


def edited(step: int, key: str) -> Damage:
    """A log that was changed while the run was stopped, in a valid way."""

    def edit(folder: Path) -> None:
        rows = read_metrics(folder)
        rows[step - 1][key] /= 2
        write_log(folder, rows)

    return edit


@pytest.mark.parametrize(
    ("damage", "first", "message"),
    [
        (lambda folder: [DAMAGES["empty"](path) for path in folder.glob("checkpoint-*/rest.pt")], 0, "checksums"),
        (keep(8), 8, ""), (keep(6), 4, "cut off before update 8"), (keep(2), 0, "cut off before update 4"),
        (edited(9, "loss"), 8, ""), (edited(8, "loss"), 4, "does not match metrics.jsonl"),
        (edited(3, "seconds"), 0, "does not match metrics.jsonl"),
        (lambda folder: (folder / "metrics.jsonl").unlink(), 0, "does not match metrics.jsonl"),
    ],
)  # fmt: skip
def test_a_run_goes_on_behind_what_is_whole_and_ends_as_one_that_was_never_stopped(
    halves: dict[str, Any], tmp_path: Path, damage: Damage, first: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, steps = Path(shutil.copytree(halves["cut"], tmp_path / "run")), []
    damage(folder)
    with caplog.at_level(logging.WARNING):
        result = train(halves["config"], folder, lambda progress: steps.append(progress.step))
    assert numbers(result) == numbers(halves["result"])
    assert steps[0] == first + 1
    assert [row["step"] for row in read_metrics(folder)] == list(range(1, 13))
    assert ("setting it aside" in caplog.text) == bool(message)
    assert message in caplog.text


def test_a_checkpoint_that_names_code_is_not_followed(tmp_path: Path) -> None:
    """As an attacker has it, who makes the checksums fit."""

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    model, optimizer = trained(1)
    Checkpoints(tmp_path, ALONE).save(1, model, optimizer, {})
    checkpoint = tmp_path / "checkpoint-00000001"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in (".metadata", "rest.pt"):  # DCP's own index, if it were read, is a pickle
        (checkpoint / name).write_bytes(pickle.dumps(Trap(), protocol=2))
        manifest["files"][name] = sha256(checkpoint / name)
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        if name == ".metadata":
            assert Checkpoints(tmp_path, ALONE).load(model, optimizer) is not None
        else:
            with pytest.raises(pickle.UnpicklingError):
                Checkpoints(tmp_path, ALONE).load(model, optimizer)
    assert not (tmp_path / "sprung").exists()


def of_another(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "id": "0" * 12}))


@pytest.mark.parametrize("damage", [*DAMAGES.values(), of_another], ids=[*DAMAGES, "of another"])
@pytest.mark.parametrize("file", ["result.json", "config.yaml"])
def test_a_damaged_result_or_config_is_refused_by_name(
    halves: dict[str, Any], tmp_path: Path, file: str, damage: Damage
) -> None:
    folder = shutil.copytree(halves["cut"].parent / "straight", tmp_path / "run")
    damage(folder / "result.json" if damage is of_another else folder / file)
    before = contents(folder)
    if damage is DAMAGES["missing"]:
        again = train(halves["config"], folder)  # made again, or claimed again
        assert numbers(again) == numbers(halves["result"])
        return
    message = r"result\.json is of the run '0{12}', but this is" if damage is of_another else f"{file} is damaged"
    with pytest.raises(LabError, match=f"{message}|holds another run"):
        train(halves["config"], folder)
    assert contents(folder) | {".lock": b""} == before | {".lock": b""}


def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    checkpoints = Checkpoints(tmp_path, ALONE)
    checkpoints.save(1, model, optimizer, {})
    (tmp_path / "secret").write_text("mine")
    path = tmp_path / "checkpoint-00000001" / "manifest.json"
    manifest = json.loads(path.read_text())
    others = ["../secret", str(tmp_path / "secret"), "..", "", ".", "a\0b"]
    path.write_text(json.dumps({**manifest, "files": manifest["files"] | dict.fromkeys(others, "0")}))
    checkpoints.drop()
    assert [one.name for one in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_results_json_is_refused_by_name(
    tmp_path: Path, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path)
    damage(tmp_path / "results.json")
    before = contents(tmp_path)
    assert "results.json" in refused(["report", str(tmp_path)], capsys, 1)
    assert contents(tmp_path) == before
