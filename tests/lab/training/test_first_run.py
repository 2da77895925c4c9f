"""A first run, as it is started: the 124M preset on two ranks, killed and taken up again, two layers at width 16."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.config.build import read_yaml
from autowarm.lab.data.shards import write_shard
from autowarm.lab.training.metrics import read_metrics
from tests.programs import Ended, Launcher, Started, free_port, rank_environment

from ..helpers import gone, wait_for

pytestmark = pytest.mark.long

KEYS = {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.ff": 32, "model.seq_len": 8,
        "steps": 6, "optimizer.lr": 0.02, "batch_size": 8, "eval_batches": 1, "checkpoint_every": 2,
        "engine.eval_every": 2, "engine.curvature_every": 1}  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fineweb")
    random = np.random.default_rng(0)
    for name, count in (("train_000000", 20_000), ("train_000001", 20_000), ("val_000000", 4_000)):
        write_shard(made / f"{name}.bin", random.zipf(1.5, count).clip(max=511).astype(np.uint16))
    return made


def test_the_124m_preset_on_two_ranks_survives_a_kill(
    shards: Path, tmp_path: Path, lab_launcher: Launcher, request: pytest.FixtureRequest
) -> None:
    values, _ = read_yaml("llama-124m")
    engine = values["engine"]
    assert (values["model"]["layers"], engine["precision"], engine["accumulate"]) == (12, "bfloat16", 4)
    assert engine["compile"]
    command = [Path(__file__).with_name("captured.py"), "train", "--config", "llama-124m"]
    command += ["--data.corpus", str(shards), *(f"--{key}={value}" for key, value in KEYS.items())]

    running: list[int] = []
    # A rank that hangs does not outlive a failure.
    request.addfinalizer(lambda: [os.kill(pid, signal.SIGKILL) for pid in running])

    def start(out: str) -> Started:
        port = free_port()
        ranks = [rank_environment(rank, 2, port) for rank in (0, 1)]
        started = lab_launcher.start_together([*command, "--out", tmp_path / out], ranks)
        running.extend(started.pids)
        return started

    def ended(ranks: Started) -> list[Ended]:
        found = ranks.wait()
        running.clear()
        return found

    def finished(ranks: Started) -> None:
        found = ended(ranks)
        assert [rank.status for rank in found] == [0, 0], "".join(rank.stderr for rank in found)

    finished(start("straight"))
    killed = start("killed")
    wait_for(
        lambda: (tmp_path / "killed" / "checkpoint-00000002").exists(),
        lambda: not any(map(gone, killed.pids)),
        lambda: ended(killed),
    )
    for pid in killed.pids:
        os.kill(pid, signal.SIGKILL)
    assert [rank.status for rank in ended(killed)] == [-signal.SIGKILL] * 2
    assert not (tmp_path / "killed" / "result.json").exists()
    finished(start("killed"))

    rows = [read_metrics(tmp_path / name) for name in ("straight", "killed")]
    measured = {"loss", "lr", "grad_norm", "curvature", "curvature_above", "val_loss", "val_accuracy"}
    first, again = ([{name: row[name] for name in measured & row.keys()} for row in each] for each in rows)
    assert first == again
    assert len(first) == KEYS["steps"]
    assert measured == {name for row in first for name in row}
    assert [row["step"] for row in rows[0] if "val_loss" in row] == [2, 4]
    assert first[-1]["loss"] < first[0]["loss"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "killed")]
    assert weights[0] == weights[1]
