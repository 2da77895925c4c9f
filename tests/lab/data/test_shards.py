"""Token shards: one sequence over files, and damage that a header shows or does not."""

from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.config import DataConfig, LabError
from autowarm.lab.data import batch, prepare
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


def test_the_damaged_shard_is_named_also_across_a_border(folder: Path) -> None:
    write_shard(folder / "train_1.bin", np.array([50304], dtype=np.uint16))
    write_shard(folder / "train_2.bin", np.arange(9, dtype=np.uint16))
    corpus = read_shards(folder, 50304)
    with pytest.raises(LabError, match=r"train_1\.bin holds the token 50304 and its vocabulary ends at 50303"):
        batch(corpus.train, 0, 0, 64, 105)


def test_shards_are_files_of_fineweb_s_kind_and_a_corpus_has_both_parts(tmp_path: Path) -> None:
    paths = [tmp_path / f"fineweb_train_{i:06d}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        write_shard(path, np.arange(i * 10, i * 10 + 10, dtype=np.uint16))
        assert path.stat().st_size == 1024 + 20  # as kjj0/fineweb10B-gpt2 has them
        assert np.fromfile(path, "<i4", 3).tolist() == [20240520, 1, 10]
    assert Shards(paths).windows(np.array([9, 28, 5]), 2).tolist() == [[9, 10], [28, 29], [5, 6]]
    folder = DataConfig(corpus=str(tmp_path))
    with pytest.raises(LabError, match="no shard with 'val' in its name"):
        prepare(folder, 50304)
    write_shard(tmp_path / "fineweb_val_000000.bin", np.zeros(40, dtype=np.uint16))
    assert len(prepare(folder, 50304).train) == 30
