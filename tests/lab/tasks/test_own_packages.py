"""A task's result is used again exactly as long as the modules that it imports are the same, however it does that.

As a program, this prints the checksum of the task in each folder, loaded as by a command and tried out as in a new
process. Both are forks of one process, since starting a process takes seconds.
"""

import importlib
import importlib.abc
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from autowarm.lab.tasks import own

pytestmark = pytest.mark.long  # each starts processes that import PyTorch

# How a module reaches the next one, whose dotted name is {name}, its parent {parent} and its last part {last}.
WAYS = {
    "import": ("import {name}", "{name}.get()"),
    "import as": ("import {name} as other", "other.get()"),
    "from": ("from {name} import get as other_get", "other_get()"),
    "from parent": ("from {parent} import {last} as other", "other.get()"),
    "import_module": ("import importlib\nother = importlib.import_module('{name}')", "other.get()"),
    "__import__": ("other = __import__('{name}', fromlist=['get'])", "other.get()"),
    "by path": (
        "import importlib.util as u\nspec = u.spec_from_file_location('anything', {file!r})\n"
        "other = u.module_from_spec(spec)\nspec.loader.exec_module(other)", "other.get()",
    ),
    "relative": ("from . import {last} as other", "other.get()"),
    "relative from": ("from .{last} import get as other_get", "other_get()"),
    "attribute": ("import pkg", "{name}.get()"),
}  # fmt: skip
GET = (
    "if name in ('one', 'two'):\n{0}    return importlib.import_module('pkg.' + name)\n{0}raise AttributeError(name)\n"
)
LAZY = f"import importlib\ndef __getattr__(name):\n    {GET.format('    ')}"
REPLACED = f"""import importlib, sys, types
class Lazy(types.ModuleType):
    def __getattr__(self, name):
        {GET.format(8 * " ")}
lazy = Lazy(__name__)
lazy.__path__, lazy.__spec__ = __path__, __spec__
sys.modules[__name__] = lazy
"""
# The folder of its two modules, what stands before their names, and its other files.
LAYOUTS: dict[str, tuple[str, str, dict[str, str]]] = {
    "flat": ("", "", {}),
    "path": ("elsewhere/", "", {}),
    "package": ("pkg/", "pkg.", {"pkg/__init__.py": ""}),
    "namespace": ("pkg/", "pkg.", {}),
    "nested": ("pkg/sub/", "pkg.sub.", {"pkg/__init__.py": "", "pkg/sub/__init__.py": ""}),
    "finder": ("elsewhere/src/dist/", "dist.", {"elsewhere/src/dist/__init__.py": ""}),
    "lazy": ("pkg/", "pkg.", {"pkg/__init__.py": LAZY}),
    "replaced": ("pkg/", "pkg.", {"pkg/__init__.py": REPLACED}),
}
PLACES = ("top", "__init__", "model", "batches", "loss", "training", "evaluation", "validation", "scores", "optimizer")
TASK = """import torch
{top}
SCALE, KINDS = torch.tensor([1.0, 2.0]), {{"a", "b", "c"}}
def scaled(x):
    return x * SCALE.sum()
class Task:
    optimizers = {{"mine": lambda model, lr: mine(model, lr)}}
    defaults = {{"seeds": [0, 1]}}
    def __init__(self):
        self.table, self.names = {{"x": torch.ones(2)}}, {{"p", "q", "r"}}
        {__init__}
    def model(self):
        {model}
        return torch.nn.Linear(2, 1)
    def batches(self, seed):
        {batches}
        while True:
            yield torch.ones(3, 2)
    def loss(self, model, batch):
        {loss}
        if model.training:
            {training}
        else:
            {evaluation}
        found = scaled(model(batch)).square().mean() * getattr(self, "found", 1)
        return found if "a" in {{"a", "b"}} else KINDS
    def validation(self):
        {validation}
        return [torch.ones(3, 2)]
    def scores(self, model, batch):
        {scores}
        return {{}}
def mine(model, lr):
    {optimizer}
    return torch.optim.SGD(model.parameters(), lr)
if __name__ == "__main__":
    print("compare")
"""
# Edits of the task's own file, and whether its results are used again.
EDITS = [
    ("import torch\n", "# a remark\n\nimport torch\n", True), ('print("compare")', "print(1)", True),
    ("[0, 1]", "[0, 1, 2]", True),  # what `defaults` do stands in the config
    ("x * SCALE", "x + SCALE", False), ("2.0", "3.0", False), ('"x": torch.ones', '"x": torch.zeros', False),
    ('"c"}', '"d"}', False), ("        return torch.nn", "        torch.rand(1)\n        return torch.nn", False),
]  # fmt: skip
# The layout; how the task reaches `one`, and that `two`; whether late; where in the task; which of them is edited.
PACKAGES = [
    ("flat", "import", "by path", False, "top", "two"), ("flat", "by path", "import as", True, "scores", "one"),
    ("package", "from parent", "relative", True, "__init__", "two"),
    ("package", "__import__", "relative from", False, "model", "two"),
    ("namespace", "import as", "from", True, "batches", "one"),
    ("nested", "import_module", "relative", False, "loss", "two"), ("path", "from", "import", True, "training", "two"),
    ("finder", "import", "from parent", False, "evaluation", "two"),
    ("lazy", "attribute", "import_module", True, "validation", "two"),
    ("replaced", "attribute", "relative from", True, "optimizer", "two"),
    ("replaced", "from parent", "__import__", False, "top", "one"),
]  # fmt: skip


def reached(way: str, name: str, file: str) -> tuple[str, str]:
    """Statements, and the expression for the next module's number."""
    parent, _, last = name.rpartition(".")
    lines, value = (text.format(name=name, parent=parent, last=last, file=file) for text in WAYS[way])
    return lines, value


def write(package: tuple[str, str, str, bool, str, str], folder: Path) -> Path:
    """Write the package, and return the file that is to be edited."""
    layout, first, second, late, place, edited = package
    inside, prefix, others = LAYOUTS[layout]
    lines, value = reached(second, f"{prefix}two", f"{inside}two.py")
    here, there = ("", lines.replace("\n", "\n    ")) if late else (lines, "pass")
    one = f"{here}\nVALUE = 1\ndef get():\n    {there}\n    return VALUE + {value}\n"
    lines, value = reached(first, f"{prefix}one", f"{inside}one.py")
    fields = dict.fromkeys(PLACES, "pass")
    if place == "top":
        fields |= {"top": lines, "loss": f"int({value})"}
    else:
        by = {"training": 12, "evaluation": 12, "optimizer": 4}.get(place, 8)
        keeps = "self.found = " if place == "__init__" else ""  # what is not kept plays no part in a run
        fields[place] = f"{lines}\n{keeps}int({value})".replace("\n", "\n" + by * " ")
    two = "VALUE = 1\ndef get():\n    return VALUE\n"
    files = {**others, f"{inside}one.py": one, f"{inside}two.py": two, "task.py": TASK.format(**fields)}
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder / f"{inside}{edited}.py"


def checksums(folders: Sequence[Path], hash_seed: str) -> list[str]:
    """Of the tasks in these folders, by one process."""
    done = subprocess.run(
        [sys.executable, __file__], input="\n".join(map(str, folders)), capture_output=True, text=True, timeout=1800,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


def test_no_result_is_stale_and_none_is_made_again_without_a_change(tmp_path: Path) -> None:
    places = {name: [tmp_path / f"{name}{n}" for n in range(len(PACKAGES))] for name in ("first", "again", "edited")}
    tasks = [tmp_path / f"task{n}" for n in range(len(EDITS))]
    for name, folders in places.items():
        for package, folder in zip(PACKAGES, folders, strict=True):
            file = write(package, folder)
            if name != "first":  # what no task imports, and the names of the folders, do not count
                (folder / "unrelated.py").write_text("VALUE = 1\n")
            if name == "edited":
                file.write_text(file.read_text().replace("VALUE = 1", "VALUE = 2"))
    for (old, new, _), folder in zip(EDITS, tasks, strict=True):
        text = write(PACKAGES[0], folder).with_name("task.py").read_text()
        assert old in text
        (folder / "task.py").write_text(text.replace(old, new))
    first = checksums(places["first"], "1")  # sets in another order
    later = checksums([*places["again"], *places["edited"], *tasks], "2")
    again, edited = later[: len(PACKAGES)], later[len(PACKAGES) :]
    assert [package for package, a, b in zip(PACKAGES, first, again, strict=True) if a != b] == []
    assert [package for package, a, b in zip(PACKAGES, first, edited, strict=False) if a == b] == []
    assert [edit for edit, b in zip(EDITS, edited[len(PACKAGES) :], strict=True) if (b == first[0]) != edit[2]] == []


def test_a_new_process_tells_what_a_task_imports_from_what_its_caller_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "only_the_caller.py").write_text("raise_if_main = __name__\n")
    (tmp_path / "only_the_task.py").write_text("VALUE = 1\n")
    task = TASK.format(**dict.fromkeys(PLACES, "pass"))
    (tmp_path / "task.py").write_text(task.replace("return {}", "import only_the_task\n        return {}"))
    importlib.import_module("only_the_caller")
    found = own.pack(own.load(f"{tmp_path / 'task.py'}:Task")).prepared(tmp_path / "prepared")
    assert [Path(file).name for file in found.beside] == ["only_the_task.py"]
    assert "only_the_task" not in sys.modules
    assert not (tmp_path / "prepared").exists()


class Finder(importlib.abc.MetaPathFinder):
    """As the hook of an editable install: a name of a package, and where it lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "dist":
            return None
        file = self.folder / "__init__.py"
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(self.folder)])


def forked(call: Callable[[], bytes]) -> bytes:
    """Do it in a fork of this process, and return what it returns."""
    there, here = os.pipe()
    if not (child := os.fork()):
        with open(here, "wb") as file:
            file.write(call())
        os._exit(0)
    os.close(here)
    with open(there, "rb") as file:
        found = file.read()
    os.waitpid(child, 0)
    return found


def checksum(folder: Path) -> str:
    def installed() -> None:
        os.chdir(folder)  # for modules imported by path
        sys.path.insert(0, str(folder / "elsewhere"))
        sys.meta_path.append(Finder(folder / "elsewhere/src/dist"))

    def packed() -> bytes:
        installed()
        return pickle.dumps((own.pack(own.load(f"{folder}/task.py:Task")), sys.path))

    def tried() -> bytes:
        installed()
        sys.path[:] = path
        own.in_new_process = lambda call, *given: call(*given)
        return task.prepared(folder).sha256.encode()

    task, path = pickle.loads(forked(packed))
    return forked(tried).decode()


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # forks share what it loads
    for line in sys.stdin.read().splitlines():
        print(checksum(Path(line)), flush=True)
