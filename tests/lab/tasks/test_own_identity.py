"""A user's own task prepares once, is known again, and a change of its code is seen."""

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autowarm.lab.commands import main
from autowarm.lab.config import LabError
from autowarm.lab.tasks.fingerprint import fingerprint
from autowarm.lab.tasks.own import load, pack
from autowarm.lab.training.loop import train

from ..helpers import LINE
from .own_runs import Line, config_of


class Prepared(Line):
    def prepare(self, folder: Path) -> None:
        self.forgotten = True  # on a copy: only files stay
        (folder / "calls").open("a").write("x")
        torch.save(torch.rand(3), folder / "weights.pt")

    def model(self) -> nn.Module:
        assert not hasattr(self, "forgotten")
        assert torch.load(self.folder / "weights.pt").shape == (3,)  # type: ignore[attr-defined]
        return super().model()


def test_prepare_is_called_once_and_its_folder_stays(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first, again = (pack(Prepared()).prepared(tmp_path) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first.folder == again.folder
    assert first.folder is not None
    assert (first.folder / "calls").read_text() == "x"
    assert train(config_of(first), tmp_path / "run", own=first)["val_loss"] > 0


def test_a_prepare_that_was_cut_off_is_called_again(tmp_path: Path) -> None:
    folder = pack(Prepared()).prepared(tmp_path).folder
    assert folder is not None
    (folder / ".prepared").unlink()
    (folder / "half").write_text("")
    assert pack(Prepared()).prepared(tmp_path).folder == folder
    assert not (folder / "half").exists()


def test_packing_leaves_the_task_as_it_was() -> None:
    task = Prepared()
    assert pack(task).sha256 == pack(task).sha256 == pack(Prepared()).sha256
    assert vars(task) == {}


def shifted(decorate: Callable[[Any], Any], by: int) -> Any:
    """A decorated function whose code differs by a number."""
    found: dict[str, Any] = {"decorate": decorate, "__name__": "__main__"}
    exec(f"@decorate\ndef shift(x):\n    return x + {by}\n", found)
    return found["shift"]


@pytest.mark.parametrize("decorate", [functools.cache, functools.lru_cache, functools.singledispatch, torch.no_grad()])
def test_a_change_behind_a_decorator_is_seen(decorate: Callable[[Any], Any]) -> None:
    one, same, other = (fingerprint(shifted(decorate, by)) for by in (1, 1, 2))
    assert one == same != other


def test_a_task_that_draws_as_it_is_made_is_known_again_and_leaves_the_generators(tmp_path: Path) -> None:
    lines = "import numpy\nimport torch\nFIRST = numpy.random.rand(3)\nclass Teacher:\n    def __init__(self):\n"
    (tmp_path / "teacher.py").write_text(f"{lines}        self.net, self.first = torch.nn.Linear(4, 2), FIRST\n")
    before = torch.get_rng_state()
    first, again = (load(f"{tmp_path / 'teacher.py'}:Teacher") for _ in range(2))
    assert fingerprint(first) == fingerprint(again)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_ends_where_a_module_beside_the_task_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside_the_task.py").write_text("VERSION = 1\n")
    importlib.import_module("beside_the_task")
    own = pack(Line()).prepared(tmp_path)
    assert train(config_of(own), tmp_path / "one", own=own)["val_loss"] > 0
    (tmp_path / "beside_the_task.py").write_text("VERSION = 2\n")
    with pytest.raises(LabError, match=r"beside_the_task\.py has changed since this command started: start it again"):
        train(config_of(own), tmp_path / "two", own=own)


@pytest.mark.parametrize(
    "values",
    [lambda x: x.to_sparse(), lambda x: x.to_sparse_csr(), lambda x: torch.complex(x, x).conj()],
    ids=["sparse", "compressed rows", "conjugated"],
)  # fmt: skip
def test_tensors_of_any_layout_are_known_again(values: Callable[[torch.Tensor], Any]) -> None:
    some = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    once, again, other = (fingerprint([values(x)]) for x in (some, some.clone(), 2 * some))
    assert once == again != other


NEW_AT_EACH_START = f"""{LINE}
    defaults = {{"rates": {{"adamw": [0.1]}}, "run": {{"steps": 2}}, "warmups": [0], "seeds": [0]}}

    def __init__(self):
        self.started, self.width = time.time_ns(), 8
"""


@pytest.mark.usefixtures("jobs_here")
def test_what_is_new_in_a_task_at_each_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(NEW_AT_EACH_START)
    for _ in range(2):
        assert main(["compare", "--task", "task.py:Line", "--schedules=linear", "--out", "out"]) == 0
    assert capsys.readouterr().out.count("the task is new: started had other values at the last start") == 1
    statuses = [main(["train", "--task", "task.py:Line", "--out", "one", "--schedule=constant"]) for _ in range(2)]
    assert statuses == [0, 1]
    said = capsys.readouterr().err
    assert "task.started: " in said
    assert "task.width" not in said
