"""Files are whole, and readable by whom the umask lets read them."""

import os
import stat
from pathlib import Path

import pytest
import torch

from autowarm.lab.config import ModelConfig
from autowarm.lab.files import sha256, write_atomically
from autowarm.lab.tasks.models import llama, save_weights


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
