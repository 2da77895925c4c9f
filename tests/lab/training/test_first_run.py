"""A first run, as it is started: the 124M preset on two ranks, killed and taken up again, two layers at width 32."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.config.yaml_files import read_yaml
from autowarm.lab.data.shards import write_shard
from autowarm.lab.training.metrics import read_metrics
from tests.programs import clean_environment, free_port, rank_environment

pytestmark = pytest.mark.long

KEYS = {"model.layers": 2, "model.width": 32, "model.heads": 2, "model.ff": 64, "model.seq_len": 32,
        "steps": 8, "batch_size": 8, "eval_batches": 1, "checkpoint_every": 2, "engine.eval_every": 2,
        "engine.curvature_every": 1, "ema": 0.9}  # fmt: skip
PATIENCE = 1200  # seconds
# Captured and differentiated as the preset is, but run without generated code, which takes a processor many minutes.
CAPTURED = """
import functools, torch
torch.compile = functools.partial(torch.compile, backend="aot_eager")
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fineweb")
    random = np.random.default_rng(0)
    for name, count in (("train_000000", 20_000), ("train_000001", 20_000), ("val_000000", 4_000)):
        write_shard(made / f"{name}.bin", random.zipf(1.5, count).clip(max=511).astype(np.uint16))
    return made


def test_the_124m_preset_on_two_ranks_survives_a_kill(
    shards: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    values, _ = read_yaml("llama-124m")
    engine = values["engine"]
    assert (values["model"]["layers"], engine["precision"], engine["accumulate"]) == (12, "bfloat16", 4)
    assert engine["compile"]
    command = [sys.executable, "-m", "autowarm", "train", "--config", "llama-124m", "--data.corpus", str(shards)]
    command += [f"--{key}={value}" for key, value in KEYS.items()]
    (tmp_path / "sitecustomize.py").write_text(CAPTURED)
    environment = clean_environment(tmp_path)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])])

    def start(out: str) -> list[subprocess.Popen[str]]:
        port = free_port()
        ranks = []
        for rank in (0, 1):
            where = environment | rank_environment(rank, 2, port)
            ranks.append(subprocess.Popen([*command, "--out", str(tmp_path / out)], env=where, text=True,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))  # fmt: skip
            request.addfinalizer(ranks[-1].kill)  # a rank that hangs does not outlive a failure
        return ranks

    def finished(ranks: list[subprocess.Popen[str]]) -> None:
        said = [rank.communicate(timeout=PATIENCE)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], "".join(said)

    finished(start("straight"))
    killed = start("killed")
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "killed" / "checkpoint-00000002").exists():
        assert time.monotonic() < until
        assert all(rank.poll() is None for rank in killed), killed[0].communicate()[1]
        time.sleep(0.01)
    for rank in killed:
        os.kill(rank.pid, signal.SIGKILL)
    assert [rank.wait() for rank in killed] == [-signal.SIGKILL] * 2
    assert not (tmp_path / "killed" / "result.json").exists()
    finished(start("killed"))

    rows = [read_metrics(tmp_path / name) for name in ("straight", "killed")]
    measured = {"loss", "lr", "grad_norm", "curvature", "curvature_above", "val_loss", "val_accuracy", "val_ema_loss"}
    first, again = ([{name: row[name] for name in measured & row.keys()} for row in each] for each in rows)
    assert first == again
    assert len(first) == KEYS["steps"]
    assert measured == {name for row in first for name in row}
    assert [row["step"] for row in rows[0] if "val_loss" in row] == [2, 4, 6]
    assert first[-1]["loss"] < first[0]["loss"]
    for file in ("model.safetensors", "ema/model.safetensors"):
        assert (tmp_path / "straight" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes()
