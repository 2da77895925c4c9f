"""Draws packages that a user's task may be made of; as a program, prints the checksum of the task in each folder.

A task and up to three modules call one another in a row, each in a drawn way. Every folder is loaded as by a command
and tried out as in a new process. Both are forks of one process, since starting a process takes seconds.
"""

import importlib.abc
import importlib.util
import os
import pickle
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

LAYOUTS = ("flat", "package", "namespace", "nested", "path", "finder", "lazy", "replaced")
# How a module reaches the next one, whose dotted name is {name}, its parent {parent} and its last part {last}.
TOP = {
    "import": ("import {name}", "{name}"),
    "import as": ("import {name} as other", "other"),
    "from": ("from {name} import get as other_get", None),
    "from parent": ("from {parent} import {last} as other", "other"),
    "import_module": ("import importlib\nother = importlib.import_module('{name}')", "other"),
    "__import__": ("other = __import__('{name}', fromlist=['get'])", "other"),
    "by path": (
        "import importlib.util as u\nspec = u.spec_from_file_location('anything', {file!r})\n"
        "other = u.module_from_spec(spec)\nspec.loader.exec_module(other)", "other",
    ),
    "relative": ("from . import {last} as other", "other"),
    "relative from": ("from .{last} import get as other_get", None),
    "attribute": ("import {top}", "{name}"),
}  # fmt: skip
PLACES = ("top", "__init__", "model", "batches", "loss", "training", "evaluation", "validation", "scores", "optimizer")
TASK = """import torch
{top}
{made}
class Task:
    optimizers = {{"mine": lambda model, lr: mine(model, lr)}}
    def __init__(self):
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
        return model(batch).square().mean() * getattr(self, "found", 1)
    def validation(self):
        {validation}
        return [torch.ones(3, 2)]
    def scores(self, model, batch):
        {scores}
        return {{}}
def mine(model, lr):
    {optimizer}
    return torch.optim.SGD(model.parameters(), lr)
"""


class Drawn(NamedTuple):
    """A drawn package.

    Attributes:
        files: texts by path.
        edited: the file whose constant is in use, `VALUE = 1`.
        about: what was drawn.
    """

    files: dict[str, str]
    edited: str
    about: str


def _indented(lines: str, by: int) -> str:
    return lines.replace("\n", "\n" + " " * by)


def _reach(kind: str, name: str, file: str) -> tuple[str, str]:
    """Statements, and the expression for the next module's number."""
    parent, _, last = name.rpartition(".")
    given = {"name": name, "parent": parent, "last": last, "file": file, "top": name.partition(".")[0]}
    statement, other = TOP[kind]
    return statement.format(**given), f"{other.format(**given)}.get()" if other else "other_get()"


def draw(seed: int) -> Drawn:
    """Draw a package; about each layout is as frequent, and each kind of import."""
    choose = random.Random(seed).choice
    layout, place = LAYOUTS[seed % len(LAYOUTS)], choose(PLACES)
    prefix, folder = {
        "flat": ("", ""), "path": ("", "elsewhere/"), "nested": ("pkg.sub.deep.", "pkg/sub/deep/"),
        "finder": ("dist.", "elsewhere/src/dist/"),
    }.get(layout, ("pkg.", "pkg/"))  # fmt: skip
    names = [f"{prefix}{name}" for name in ("aaa", "bbb", "ccc")[: choose((1, 2, 3))]]
    paths = [f"{folder}{name.rpartition('.')[2]}.py" for name in names]
    files: dict[str, str] = {}
    if layout not in ("flat", "path", "namespace"):
        parts = folder.rstrip("/").split("/")
        start = 2 if layout == "finder" else 0
        for end in range(start + 1, len(parts) + 1):
            files["/".join([*parts[:end], "__init__.py"])] = ""
    loading = "import importlib, sys\n"
    if layout == "lazy":
        files["pkg/__init__.py"] = (
            f"{loading}def __getattr__(name):\n    if name in ('aaa', 'bbb', 'ccc'):\n"
            "        return importlib.import_module('pkg.' + name)\n    raise AttributeError(name)\n"
        )
    if layout == "replaced":
        files["pkg/__init__.py"] = (
            f"{loading}import types\nclass Lazy(types.ModuleType):\n    def __getattr__(self, name):\n"
            "        if name in ('aaa', 'bbb', 'ccc'):\n            return importlib.import_module('pkg.' + name)\n"
            "        raise AttributeError(name)\nlazy = Lazy(__name__)\nlazy.__path__ = __path__\n"
            "lazy.__spec__ = __spec__\nsys.modules[__name__] = lazy\n"
        )
    kinds = []
    for index in range(len(names)):
        packaged = index > 0 and kinds[-1] != "by path"
        allowed = [kind for kind in TOP if _suits(kind, layout, packaged)]
        kinds.append(choose(allowed))
    late = [choose((True, False)) for _ in names]
    for index, path in enumerate(paths):
        lines, value = "", ""
        if index + 1 < len(names):
            lines, value = _reach(kinds[index + 1], names[index + 1], paths[index + 1])
            value = f" + {value}"
        body = f"    {_indented(lines, 4)}\n" if lines and late[index] else ""
        head = f"{lines}\n" if lines and not late[index] else ""
        files[path] = f"{head}VALUE = 1\ndef get():\n{body}    return VALUE{value}\n"
    lines, value = _reach(kinds[0], names[0], paths[0])
    used = f"int({value})"
    fields = dict.fromkeys((*PLACES, "made"), "pass")
    if place == "top":
        fields |= {"top": lines, "loss": used}
    else:
        by = {"training": 12, "evaluation": 12, "optimizer": 4}.get(place, 8)
        keeps = "self.found = " if place == "__init__" else ""  # what is not kept plays no part in a run
        fields[place] = _indented(f"{lines}\n{keeps}{used}", by)
    files["task.py"] = TASK.format(**fields)
    edited = choose(paths)
    return Drawn(files, edited, f"{seed}: {layout}, {' → '.join(kinds)}, in {place}, late {late}, edits {edited}")


def _suits(kind: str, layout: str, packaged: bool) -> bool:
    """Whether this kind of import works, in a module that knows its package or in another."""
    dotted = layout not in ("flat", "path")
    if kind == "from parent":
        return dotted
    if kind.startswith("relative"):
        return dotted and packaged
    if kind == "attribute":
        return layout in ("lazy", "replaced")
    if kind == "import":
        return layout != "replaced"
    return True


def write(drawn: Drawn, folder: Path) -> None:
    for path, text in drawn.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


class _Finder(importlib.abc.MetaPathFinder):
    """As the hook of an editable install: a name of a package, and where it lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "dist":
            return None
        file = self.folder / "__init__.py"
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(self.folder)])


def _forked(call: Callable[[], bytes]) -> bytes:
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
    from autowarm.lab.tasks import own

    def installed() -> None:
        os.chdir(folder)  # for modules imported by path
        sys.path.insert(0, str(folder / "elsewhere"))
        sys.meta_path.append(_Finder(folder / "elsewhere/src/dist"))

    def packed() -> bytes:
        installed()
        return pickle.dumps((own.pack(own.load(f"{folder}/task.py:Task")), sys.path))

    def tried() -> bytes:
        installed()
        sys.path[:] = path
        own.in_new_process = lambda call, *given: call(*given)
        return task.prepared(folder).sha256.encode()

    task, path = pickle.loads(_forked(packed))
    return _forked(tried).decode()


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    import torch

    import autowarm.lab.tasks.own  # noqa: F401 - forks share what is loaded

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])
    for line in sys.stdin.read().splitlines():
        print(checksum(Path(line)), flush=True)
