"""How many workers there is room for, from files as the kernel writes them."""

import os
from pathlib import Path

import pytest

from autowarm.lab.processes import room

GB = 1 << 30
READ = f"anon 1\ninactive_file {2 * GB}"  # of files, which can be read again
MANY = {"cpu.max": "max 100000", "memory.max": "max", "memory.current": str(GB)}


@pytest.mark.parametrize(
    ("free", "groups", "expected"),
    [
        (100, {}, 16),  # no container: the cores
        (1, {}, 2),  # its memory
        (0.01, {}, 1),  # never none
        (100, {"": MANY}, 16),
        (100, {"": {"cpu.max": "250000 100000"}}, 2),
        (100, {"": {"cpu.max": "50000 100000"}}, 1),
        (100, {"": {"cpu.max": "no number"}}, 16),
        (100, {"": {"memory.max": str(3 * GB), "memory.current": str(GB)}}, 5),
        (100, {"": {"memory.max": str(3 * GB), "memory.current": str(3 * GB), "memory.stat": READ}}, 5),
        (1, {"": {"memory.max": str(9 * GB), "memory.current": "0"}}, 2),
        (100, {"pod": {"cpu.max": "400000 100000"}, "pod/us": MANY}, 4),  # the group around ours
        (100, {"pod": MANY, "pod/us": {"cpu.max": "300000 100000"}}, 3),
        (100, {"pod/others": {"cpu.max": "100000 100000"}, "pod/us": MANY}, 16),
    ],
)  # fmt: skip
def test_workers_are_bounded_by_cores_memory_and_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, groups: dict[str, dict[str, str]], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    (own := tmp_path / "own").write_text(f"1:cpu:/v1\n0::/{list(groups)[-1] if groups else ''}\n")
    (meminfo := tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {int(free * GB / 1024)} kB\n")
    for name, files in groups.items():
        (tmp_path / "groups" / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (tmp_path / "groups" / name / file).write_text(text + "\n")
    assert room(tmp_path / "groups", own, meminfo) == expected


def test_without_such_files_the_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert room(tmp_path, tmp_path / "none", tmp_path / "none") == 3
