"""Every example in a public docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import autowarm
import studies

MODULES = [
    module.name
    for package in (autowarm, studies)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith(("__main__", "execution.server"))  # the second sets up the process that imports it
]


def test_examples() -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = {name: doctest.testmod(importlib.import_module(name), optionflags=flags) for name in MODULES}
    assert [name for name, one in found.items() if one.failed] == []
    assert sum(one.attempted for one in found.values()) > 100
