"""A task's results are used again as long as its files and its attributes are known to be the same."""

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autowarm.lab.commands import main
from autowarm.lab.config import LabError
from autowarm.lab.files import claim
from autowarm.lab.tasks.fingerprint import fingerprint
from autowarm.lab.tasks.own import load, pack
from autowarm.lab.training.loop import train

from ..helpers import LINE
from .own_runs import Line, config_of


def layer(trained: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).requires_grad_(trained))


SOME = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
# Makes a value by a number: the same number gives the same value, and another number another.
VALUES: dict[str, Callable[[int], Any]] = {
    "a frozen layer": lambda n: layer(n == 1),
    "a regular expression": lambda n: re.compile("a" * n),
    "a closure": lambda n: lambda: n,
    "a partial": lambda n: functools.partial(print, n),
    "a cached function": lambda n: functools.cache(lambda x: x + n),
    "a set": lambda n: {"a", "b", "c" * n},
    "a nested set": lambda n: [frozenset({("x", n)})],
    "a tensor": lambda n: n * SOME,
    "conjugated": lambda n: torch.complex(n * SOME, SOME).conj(),
    "an array": lambda n: np.arange(3) * n,
    "a number of another type": lambda n: (1, 1.0)[n - 1],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_known_again_and_another_is_another(name: str) -> None:
    once, again, other = (fingerprint([VALUES[name](n)]) for n in (1, 1, 2))
    assert once == again != other


def test_equal_texts_and_bytes_count_alike_whether_they_are_one_object_or_two() -> None:
    for one, other in (("a text", "".join(["a ", "text"])), (b"bytes", b"".join([b"by", b"tes"]))):
        assert one is not other
        assert fingerprint([one, one]) == fingerprint([one, other])
    assert fingerprint("a") != fingerprint(b"a")


class Unreadable:
    def __reduce__(self) -> Any:
        raise ValueError("it is changing")


UNKNOWN = {"raises": Unreadable(), "no values": torch.empty(2, device="meta"), "below itself": [threading.Lock()]}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_hashed_never_counts_as_finished(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fingerprint(UNKNOWN[name]) != fingerprint(UNKNOWN[name])
    task = Line()
    task.odd = UNKNOWN[name]  # type: ignore[attr-defined]
    monkeypatch.setattr("autowarm.lab.tasks.own._pickled", lambda task: b"")
    first, again = pack(task), pack(task)
    assert first.sha256 != again.sha256
    assert [key for key in first.attributes if first.attributes[key] != again.attributes[key]] == ["odd"]


# What changes in the task's folder, and whether its results are made again.
EDITS: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "nothing": (lambda folder: None, False),
    "its file": (lambda folder: (folder / "task.py").write_text(f"{LINE}    width = 3\n"), True),
    "a module beside it": (lambda folder: (folder / "helper.py").write_text("A = 2\n"), True),
    "a module below": (lambda folder: (folder / "pkg/helper.py").write_text("A = 2\n"), True),
    "a new module": (lambda folder: (folder / "new.py").write_text(""), True),
    "data of another size": (lambda folder: (folder / "data.csv").write_text("1,2,3\n"), True),
    "data of the same size": (lambda folder: os.utime(folder / "data.csv", (1, 1)), True),
    "a log": (lambda folder: (folder / "run.log").write_text("more"), False),
    "a hidden file": (lambda folder: (folder / ".notes").write_text("more"), False),
    "a folder of ours": (lambda folder: (folder / "runs" / "results.json").write_text("{}"), False),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_any_file_is_seen(name: str, tmp_path: Path) -> None:
    change, counts = EDITS[name]
    folder = tmp_path / "project"
    for place in (folder, folder / "pkg"):
        place.mkdir()
        (place / "helper.py").write_text("A = 1\n")
    (folder / "task.py").write_text(LINE)
    (folder / "data.csv").write_text("1,2\n")
    claim(folder / "runs")
    first = pack(load(f"{folder / 'task.py'}:Line"))
    change(folder)
    again = pack(load(f"{folder / 'task.py'}:Line"))
    assert (first.sha256 != again.sha256) == counts


TEACHER = Path(__file__).with_name("teacher.py")


@pytest.mark.long
def test_a_task_that_draws_as_it_is_made_is_known_again_in_every_process_and_folder(tmp_path: Path) -> None:
    checksums = []
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        file = shutil.copy(TEACHER, tmp_path / seed)
        environment = os.environ | {"PYTHONHASHSEED": seed}
        checksums.append(subprocess.check_output([sys.executable, file], env=environment, text=True))
    assert checksums[0] == checksums[1] != ""


def test_a_run_ends_where_a_module_beside_the_task_has_changed(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(LINE)
    (tmp_path / "helper.py").write_text("A = 1\n")
    own = pack(load(f"{tmp_path / 'task.py'}:Line"))
    assert train(config_of(own), tmp_path / "one", own=own)["val_loss"] > 0
    (tmp_path / "helper.py").write_text("A = 2\n")
    with pytest.raises(LabError, match=r"helper\.py has changed since this command started: start it again"):
        train(config_of(own), tmp_path / "two", own=own)


NEW_AT_EACH_START = f"""{LINE}
    defaults = {{"rates": {{"adamw": [0.1]}}, "run": {{"steps": 2}}, "warmups": [0], "seeds": [0]}}

    def __init__(self):
        self.started, self.width = time.time_ns(), 8
"""


def test_what_is_new_in_a_task_at_each_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(NEW_AT_EACH_START)
    statuses = [main(["train", "--task", "task.py:Line", "--out", "one", "--schedule=constant"]) for _ in range(2)]
    assert statuses == [0, 1]
    message = capsys.readouterr().err
    assert "task.started: " in message
    assert "task.width" not in message
