"""No circle of imports within the package. tests/docs/test_floors.py holds the rooms to their floors."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import autowarm

SOURCE = Path(autowarm.__file__).parent


def imported(path: Path, root: Path) -> set[str]:
    """The package's modules that a file imports while it is imported, by their paths."""
    package = [root.name, *path.relative_to(root).with_suffix("").parts][:-1]
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:  # what stands in functions or under TYPE_CHECKING comes later, or never
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(f"{root.name}.")):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            names = [".".join([*base, one.name]) for one in node.names]
            found |= {name if name_of(name, root) else ".".join(base) for name in names}
    return {name for name in found if name_of(name, root)}


def name_of(module: str, root: Path) -> Path | None:
    """The file of a module; None if there is none."""
    place = root.parent.joinpath(*module.split("."))
    files = [place.with_suffix(".py"), place / "__init__.py"]
    return next((file for file in files if file.exists()), None)


def graph(root: Path = SOURCE) -> dict[str, set[str]]:
    modules = {}
    for path in root.rglob("*.py"):
        name = ".".join([root.name, *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        modules[name] = imported(path, root) - {name}
    return modules


def test_no_imports_run_in_a_circle() -> None:
    TopologicalSorter(graph()).prepare()


def test_a_circle_would_be_found(tmp_path: Path) -> None:
    root = tmp_path / "house"
    (root / "room").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "room" / "__init__.py").write_text("from .a import A\n")
    (root / "room" / "a.py").write_text("from ..b import B\n")
    (root / "b.py").write_text("from house.room import a\n")
    with pytest.raises(CycleError):
        TopologicalSorter(graph(root)).prepare()
