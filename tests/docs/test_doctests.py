"""Every example in a public docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import autowarm
import studies
from tests.cases import each

MODULES = [
    module.name
    for package in (autowarm, studies)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith(("__main__", "execution.server"))  # the second sets up the process that imports it
]


@each("name", MODULES)
def test_examples(name: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0


def test_there_are_examples() -> None:
    tests = [t for name in MODULES for t in doctest.DocTestFinder().find(importlib.import_module(name)) if t.examples]
    assert len(tests) > 10
