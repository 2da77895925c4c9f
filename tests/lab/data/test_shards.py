from pathlib import Path

import numpy as np
import pytest

from autowarm.lab.config import DataConfig, LabError
from autowarm.lab.data import prepare
from autowarm.lab.data.shards import Shards, write_shard


def test_shards_read_as_one_sequence_and_damage_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"fineweb_train_{i:06d}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        write_shard(path, np.arange(i * 10, i * 10 + 10, dtype=np.uint16))
    shards = Shards(paths)
    starts = np.array([0, 9, 28, 19, 5])
    assert np.array_equal(shards.windows(starts, 2), starts[:, None] + [0, 1])
    assert paths[0].stat().st_size == 1024 + 20  # as kjj0/fineweb10B-gpt2 has them
    folder = DataConfig(corpus=str(tmp_path))
    with pytest.raises(LabError, match="no shard with 'val' in its name"):
        prepare(folder, 50304)
    write_shard(tmp_path / "fineweb_val_000000.bin", np.zeros(40, dtype=np.uint16))
    assert len(prepare(folder, 50304).train) == 30
    prepare.cache_clear()
    paths[1].write_bytes(paths[1].read_bytes()[:-4])
    with pytest.raises(LabError, match="is damaged: its header says 10 tokens, it holds 8"):
        prepare(folder, 50304)
