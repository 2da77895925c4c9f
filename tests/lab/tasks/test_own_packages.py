"""A task's result is used again exactly as long as the modules that it imports are the same, however it does that."""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from autowarm.lab.processes import in_new_process
from autowarm.lab.tasks import own

from . import drawn_packages
from .drawn_packages import draw, write

FEW = 12


def checksums(folders: Sequence[Path], hash_seed: str) -> list[str]:
    """Of the tasks in these folders, by one process."""
    done = subprocess.run(
        [sys.executable, drawn_packages.__file__], input="\n".join(map(str, folders)), capture_output=True, text=True,
        timeout=1800, env=os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, 200), marks=[pytest.mark.generated, pytest.mark.long])], ids=["a few", "the rest"]
)
def test_no_result_is_stale_and_none_is_made_again_without_a_change(seeds: range, tmp_path: Path) -> None:
    drawn = [draw(seed) for seed in seeds]
    places = {name: [tmp_path / f"{name}{seed}" for seed in seeds] for name in ("first", "again", "edited")}
    for index, one in enumerate(drawn):
        for name, folders in places.items():
            write(one, folders[index])
            if name != "first":  # what no task imports, and the names of the folders, do not count
                (folders[index] / "unrelated.py").write_text("VALUE = 1\n")
        file = places["edited"][index] / one.edited
        file.write_text(file.read_text().replace("VALUE = 1", "VALUE = 2"))
    first = checksums(places["first"], "1")
    later = checksums([*places["again"], *places["edited"]], "2")
    again, edited = later[: len(seeds)], later[len(seeds) :]
    assert [one.about for one, a, b in zip(drawn, first, again, strict=True) if a != b] == []
    assert [one.about for one, a, b in zip(drawn, first, edited, strict=True) if a == b] == []


def test_a_new_process_tells_what_a_task_imports_from_what_its_caller_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "in_new_process", in_new_process)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "only_the_caller.py").write_text("raise_if_main = __name__\n")
    (tmp_path / "only_the_task.py").write_text("VALUE = 1\n")
    task = drawn_packages.TASK.format(**dict.fromkeys((*drawn_packages.PLACES, "made"), "pass"))
    (tmp_path / "task.py").write_text(task.replace("return {}", "import only_the_task\n        return {}"))
    importlib.import_module("only_the_caller")
    found = own.pack(own.load(f"{tmp_path / 'task.py'}:Task")).prepared(tmp_path / "prepared")
    assert [Path(file).name for file in found.beside] == ["only_the_task.py"]
    assert "only_the_task" not in sys.modules
    assert not (tmp_path / "prepared").exists()
