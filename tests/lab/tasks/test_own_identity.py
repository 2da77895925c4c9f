"""A user's own task prepares once, is known again, and a change of its code is seen."""

import functools
import importlib
import os
import subprocess
import sys
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


IDENTITIES = """
import sys
from collections.abc import Callable
from autowarm.lab.commands import main
from autowarm.lab.config import LabError
from autowarm.lab.tasks.fingerprint import fingerprint
from autowarm.lab.tasks.own import load
for folder in sys.argv[1:]:
    print(fingerprint(load(f"{folder}/task.py:Task"), frozenset({"defaults"})))
    sys.path.pop(0)
    for name in ("model", "layers", "more"):
        sys.modules.pop(name, None)
"""
FILE = """
import torch
from model import Net
SCALE = torch.tensor([1.0, 2.0])
KINDS = {"a", "b", "c"}
def scaled(x):
    return x * SCALE.sum()
class Task:
    defaults = {"seeds": [0, 1]}
    def __init__(self):
        self.table, self.names = {"x": torch.ones(2)}, {"p", "q", "r"}
    def model(self):
        import layers
        return Net(layers.WIDTH)
    def batches(self, seed):
        while True:
            yield torch.randn(4)
    def loss(self, model, batch):
        return scaled(model(batch)).mean() if "a" in {"a", "b"} else KINDS
    def validation(self):
        return [torch.randn(4)]
if __name__ == "__main__":
    print("compare")
"""


OTHERS = {
    "model": "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self, n):\n        super().__init__(n, 1)\n",
    "layers": "from more import WIDTH\n",
    "more": "WIDTH = 4\n",
}
SAME = [
    ("task", "import torch\n", "# a remark\n\nimport torch\n"),
    ("task", "[0, 1]", "[0, 1, 2]"),  # what `defaults` do stands in the config
    ("task", 'print("compare")', "print(1)"),
]
CHANGED = [
    ("task", "x * SCALE", "x + SCALE"),
    ("task", "2.0", "3.0"),
    ("task", '"x": torch.ones', '"x": torch.zeros'),
    ("task", '"c"}', '"d"}'),
    ("task", "        import layers\n", "        import layers\n        torch.rand(1)\n"),
    ("model", "(n, 1)", "(n, 1, bias=False)"),  # a file beside it
]


@pytest.mark.long
def test_a_task_is_known_again_and_a_change_of_its_code_is_seen(tmp_path: Path) -> None:
    folders = []
    for index, (changed, old, new) in enumerate([("task", "", ""), *SAME, *CHANGED]):
        folders.append(tmp_path / str(index))
        folders[-1].mkdir()
        for name, text in {"task": FILE, **OTHERS}.items():
            assert name != changed or old in text
            (folders[-1] / f"{name}.py").write_text(text.replace(old, new) if name == changed and old else text)
    found = []
    for seed in ("1", "2"):  # sets in another order
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", IDENTITIES, *map(str, folders)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found[0] == found[1]
    here, *others = found[0]
    assert others[: len(SAME)] == [here] * len(SAME)
    assert len({here, *others}) == 1 + len(CHANGED)


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


NEW_AT_EACH_START = """import time
import torch
class Task:
    defaults = {"rates": {"adamw": [0.1]}, "run": {"steps": 2}, "warmups": [0], "seeds": [0], "schedules": ["linear"]}
    def __init__(self):
        self.started, self.width = time.time_ns(), 4
    def model(self):
        return torch.nn.Linear(self.width, 1)
    def batches(self, seed):
        return [torch.ones(3, 4)] * 9
    def loss(self, model, batch):
        return model(batch).square().mean()
    def validation(self):
        return self.batches(0)[:1]
"""


@pytest.mark.usefixtures("jobs_here")
def test_what_is_new_in_a_task_at_each_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(NEW_AT_EACH_START)
    for _ in range(2):
        assert main(["compare", "--task", "task.py:Task", "--out", "out"]) == 0
    assert capsys.readouterr().out.count("the task is new: started had other values at the last start") == 1
    assert [
        main(["train", "--task", "task.py:Task", "--out", "one", "--schedule.kind=linear", "--schedule.warmup_steps=1"])
        for _ in range(2)
    ] == [
        0,
        1,
    ]
    said = capsys.readouterr().err
    assert "task.started: " in said
    assert "task.width" not in said
