"""Damage to token shards that their headers do not show."""

from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.config import LabError
from autowarm.lab.data import batch
from autowarm.lab.data.shards import Shards, open_shard, read_shards, write_shard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("train", "val"):
        write_shard(tmp_path / f"{part}_0.bin", np.arange(100, dtype=np.uint16))
    return tmp_path


def test_an_odd_byte_at_the_end(folder: Path) -> None:
    path = folder / "train_0.bin"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(LabError, match=r"is damaged: its header says 100 tokens, it holds 100\.5"):
        open_shard(path)


def test_a_token_above_the_vocabulary(folder: Path) -> None:
    write_shard(folder / "train_0.bin", np.array([1, 2, 60000, 3], dtype=np.uint16))
    corpus = read_shards(folder, 50304)
    assert corpus.train.windows(np.array([0]), 2).tolist() == [[1, 2]]
    with pytest.raises(LabError, match=r"train_0\.bin holds the token 60000 and its vocabulary ends at 50303"):
        corpus.train.windows(np.array([1]), 2)


def test_the_damaged_shard_is_named_also_across_a_border(folder: Path) -> None:
    write_shard(folder / "train_1.bin", np.array([60000], dtype=np.uint16))
    write_shard(folder / "train_2.bin", np.arange(9, dtype=np.uint16))
    corpus = read_shards(folder, 50304)
    with pytest.raises(LabError, match=r"train_1\.bin holds the token 60000"):
        batch(corpus.train, 0, 0, 64, 105)


@pytest.mark.parametrize("start", [-1, 96])
def test_a_window_outside_the_tokens_is_refused(folder: Path, start: int) -> None:
    shards = Shards([folder / "train_0.bin"])
    with pytest.raises(IndexError, match="windows of 5 tokens must lie in 0 to 100"):
        shards.windows(np.array([0, start]), 5)
