"""A geometry of one's own steps like ours, as fast as what it declares of itself allows."""

from typing import Any

import pytest
import torch
from torch import nn

from autowarm import LMO
from autowarm.geometry import Columns, Frobenius, Geometry, Rows, Sign, Spectral
from tests.cases import each
from tests.geometry.own import Lines, Steps, Stripes, Whole
from tests.optim.makers import drawn

SHAPES = [(4, 3), (5, 3), (4, 6), (7,), (4, 3, 2, 2), (2, 3), (), (0, 3)]
OWN = [(Steps, Sign), (Lines, Rows), (Stripes, Columns), (Whole, Frobenius)]  # and what of ours each equals


def given() -> list[nn.Parameter]:
    params = [nn.Parameter(x) for x in drawn(SHAPES, 0, torch.float64)]
    for p, g in zip(params, drawn(SHAPES, 1, torch.float64), strict=True):
        p.grad = g
    return params


def moved(geometry: Geometry, lr: Any, **options: Any) -> list[nn.Parameter]:
    params = given()
    LMO(params, lr, geometry=geometry, **options).step()
    return params


@each(("own", "ours"), OWN)
def test_one_tensor_and_many_are_measured_and_stepped_alike(own: type, ours: type) -> None:
    for p in given():
        if p.numel():
            for measure in ("norm", "dual"):
                torch.testing.assert_close(getattr(own(0.5), measure)(p), getattr(ours(0.5), measure)(p))
    torch.testing.assert_close(own().lmo_each(given()), [ours().lmo(p) for p in given()])


@pytest.mark.parametrize("base", [Sign, Frobenius, Rows, Columns, Spectral])
def test_another_oracle_inherits_no_fact_of_the_old_one(base: type) -> None:
    class Halved(base):
        def _lmo(self, g: torch.Tensor) -> torch.Tensor:
            return super()._lmo(g) / 2

    assert Halved().locality == "tensor"
    assert Halved().polar is None
    assert not Halved().sums
    torch.testing.assert_close(moved(Halved(), 1.0, momentum=0.0), moved(base(), 0.5, momentum=0.0))


def test_a_changed_radius_alone_keeps_the_fast_step() -> None:
    class Wide(Spectral):
        def radius_of(self, shape: torch.Size) -> float:
            return 2.0 * super().radius_of(shape)

    how = {"method": "polar-express", "dtype": torch.float64}
    assert Wide(**how).polar is not None
    torch.testing.assert_close(moved(Wide(**how), 0.1, momentum=0.0), moved(Spectral(**how), 0.2, momentum=0.0))
