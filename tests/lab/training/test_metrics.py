import dataclasses
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autowarm.lab.config import LabError, RunConfig, differences
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import identity, run_id

from ..helpers import crash_at


def test_without_its_package_a_remote_log_is_one_line(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    wanted = dataclasses.replace(run, engine=dataclasses.replace(run.engine, wandb="project"))
    with pytest.raises(LabError, match="pip install wandb"):
        train(wanted, tmp_path)


@pytest.fixture
def offline(run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunConfig]:
    """A run that logs to W&B, which keeps it in files and asks no server."""
    import wandb

    for name in ("WANDB_DIR", "WANDB_RUN_ID", "WANDB_NAME", "WANDB_PROJECT", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield dataclasses.replace(run, engine=dataclasses.replace(run.engine, wandb="project"))
    wandb.teardown()


def records(path: Path) -> list[bytes]:
    """The records of a W&B log, LevelDB's format: parts in blocks of 32 KiB, each behind checksum, length and kind."""
    data, start, parts, whole = path.read_bytes(), 7, [], []
    assert data.startswith(b":W&B")
    while start + 7 <= len(data):
        if (left := -start % 32768) and left < 7:
            start += left
            continue
        length, kind = struct.unpack_from("<HB", data, start + 4)
        parts.append(data[start + 7 : start + 7 + length])
        start += 7 + length
        if kind in (1, 4):  # whole, or the last part
            whole.append(b"".join(parts))
            parts = []
    return whole


def logged(folder: Path) -> tuple[str, list[dict[str, float]]]:
    """Id and steps of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("run-*.wandb")
    rows, ids = [], set()
    for data in records(file):
        record = Record.FromString(data)
        if record.HasField("run"):
            ids.add(record.run.run_id)
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append({key: json.loads(value) for key, value in items.items()})
    (name,) = ids
    return name, rows


@pytest.mark.long
def test_offline_wandb_keeps_a_run_under_one_id_in_its_folder(offline: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with pytest.raises(RuntimeError, match="power cut"):
        train(offline, folder, on_step=crash_at(9))
    result = train(offline, folder)
    (first, before), (second, after) = map(logged, sorted(folder.glob("wandb/offline-run-*")))
    assert first == second == result["id"]
    assert [row["_step"] for row in before] == list(range(1, 10))
    assert [row["_step"] for row in after] == list(range(9, offline.steps + 1))  # behind the checkpoint, step 8
    assert before[8]["loss"] == after[0]["loss"]
    noted = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in before[:8] + after] == [row["loss"] for row in noted]
    assert result["warnings"] == []

    other = tmp_path / "b" / "run"  # another run, in a folder of the same name
    train(dataclasses.replace(offline, seed=1), other)
    ((third, _),) = map(logged, other.glob("wandb/offline-run-*"))
    assert third != first


def test_an_id_follows_from_all_that_decides_the_numbers() -> None:
    run = RunConfig()
    who = identity(run, "corpus")
    assert run_id(who) == run_id(json.loads(json.dumps(who)))
    assert run_id(who) != run_id(identity(dataclasses.replace(run, seed=1), "corpus"))
    assert run_id(who) != run_id(identity(run, "another"))
    changed = identity(dataclasses.replace(run, steps=7), "corpus")
    assert differences(who, changed) == [f"config.steps: {run.steps} → 7"]
