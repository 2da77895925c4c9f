"""Warm-up and decay shapes."""

import math

import numpy as np
import pytest

from autowarm.schedule.calibration import FALLS, KINKS
from autowarm.schedule.shapes import DECAYS, decay_shape

FORMULAS = {
    "linear": lambda p: 1 - p,
    "cosine": lambda p: (1 + math.cos(math.pi * p)) / 2,
    "wsd": lambda p: 1.0 if p <= 0.8 else (1 - p) / 0.2,
    "wso": lambda p: 1.0,
    "1-sqrt": lambda p: 1 - math.sqrt(p),
    "power": lambda p: (1 - p) ** 2,
}


@pytest.mark.parametrize("name", DECAYS)
def test_shapes_are_their_formulas(name: str) -> None:
    shape = decay_shape(name)
    ps = np.linspace(0, 1, 101)
    expected = [FORMULAS[name](p) for p in ps]
    assert [shape(float(p)) for p in ps] == pytest.approx(expected, abs=1e-12)
    assert (1 - FALLS[shape](ps)).tolist() == pytest.approx(expected, abs=1e-12)
    assert shape(0.0) == 1.0


def test_kinks_are_where_the_slope_jumps() -> None:
    for shape, at in KINKS.items():
        h = 1e-6
        left, right = (shape(at) - shape(at - h)) / h, (shape(at + h) - shape(at)) / h
        assert abs(left - right) > 1
