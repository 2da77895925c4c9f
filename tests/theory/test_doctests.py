import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["constants", "rates", "problems", "families", "pairs", "runs", "verify"])
def test_examples_in_the_docstrings(module):
    results = doctest.testmod(importlib.import_module(f"autowarm.theory.{module}"), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
