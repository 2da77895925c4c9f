"""No circle of imports within the package. tests/docs/test_floors.py holds the rooms to their floors."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import autowarm

SOURCE = Path(autowarm.__file__).parent


def imported(path: Path) -> set[str]:
    """The package's modules that a file imports while it is imported, by their paths."""
    package = [SOURCE.name, *path.relative_to(SOURCE).with_suffix("").parts][:-1]
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:  # what stands in functions or under TYPE_CHECKING comes later, or never
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("autowarm.")):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            names = [".".join([*base, one.name]) for one in node.names]
            found |= {name if is_module(name) else ".".join(base) for name in names}
    return {name for name in found if is_module(name)}


def is_module(name: str) -> bool:
    place = SOURCE.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def test_no_imports_run_in_a_circle() -> None:
    graph = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join([SOURCE.name, *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        graph[name] = imported(path) - {name}
    known = graph["autowarm.schedule.adaptive"] | graph["autowarm.geometry"] | graph["autowarm.lab.training.loop"]
    for name in ("losses", "schedule.core", "schedule.clock", "geometry.base", "integrations.metrics"):
        assert f"autowarm.{name}" in known  # by `from ..losses import`, `from . import core` and the other forms
    TopologicalSorter(graph).prepare()
