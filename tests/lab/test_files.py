"""Files are whole, and readable by whom the umask lets read them."""

import os
import stat
from pathlib import Path

import pytest

from autowarm.lab.files import sha256, write_atomically


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_umask_decides_who_may_read_a_file(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a" / "file", "text")
        (tmp_path / "plain").write_text("text")
    finally:
        os.umask(before)
    found = stat.S_IMODE((tmp_path / "a" / "file").stat().st_mode)
    assert found == mode == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "file", "old")

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert sha256(tmp_path / "file") == sha256(b"old")
