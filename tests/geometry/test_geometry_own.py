"""A geometry of one's own in ten lines: it steps like ours, as fast as what it declares of itself allows."""

import pytest
import torch
from torch import nn

from autowarm import LMO
from autowarm.geometry import Columns, Frobenius, Geometry, Rows, Sign, Spectral


class Steps(Geometry):
    """Largest absolute entry, as `Sign`."""

    locality = "entry"

    def _norm(self, x):
        return x.abs().amax()

    def _dual(self, g):
        return g.abs().sum()

    def _lmo(self, g):
        return -g.sign()

    def _kappa(self, shape):
        return float(torch.Size(shape).numel())


class Lines(Geometry):
    """Largest norm of a row, as `Rows`; matrices are all that it is given."""

    locality = "row"
    dim = 1

    def _norm(self, x):
        return x.norm(dim=self.dim).amax()

    def _dual(self, g):
        return g.norm(dim=self.dim).sum()

    def _lmo(self, g):
        return -g / g.norm(dim=self.dim, keepdim=True).clamp_min(1e-30)

    def _kappa(self, shape):
        return float(shape[0])


class Stripes(Lines):
    """Largest norm of a column, as `Columns`."""

    locality = "column"
    dim = 0

    def _kappa(self, shape):
        return float(torch.Size(shape[1:]).numel())


class Whole(Lines):
    """The norm of all entries, as `Frobenius`: nothing is declared."""

    def _norm(self, x):
        return x.norm()

    def _dual(self, g):
        return g.norm()

    def _lmo(self, g):
        return -g / g.norm().clamp_min(1e-30)

    def _kappa(self, shape):
        return 1.0


SHAPES = [(4, 3), (5, 3), (4, 6), (7,), (4, 3, 2, 2), (2, 3), (), (0, 3)]
# Each of them, and what of ours it equals.
OWN = {
    "entry": (Steps, Sign),
    "row": (Lines, Rows),
    "column": (Stripes, Columns),
    "tensor": (Whole, Frobenius),
}


def params_of(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=dtype)
    return params


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("radius", [1.0, 0.3, "original"])
@pytest.mark.parametrize("kind", OWN)
def test_it_steps_as_ours(kind, radius, tensor_lr):
    own, ours = OWN[kind]
    moved = []
    for geometry in (own(radius), ours(radius)):
        params = params_of()
        lr = torch.tensor(0.1, dtype=torch.float64) if tensor_lr else 0.1
        opt = LMO(params, lr=lr, geometry=geometry, momentum=0.9, nesterov=True, weight_decay=0.1)
        opt.step()
        moved.append(params)
    torch.testing.assert_close(moved[0], moved[1])


@pytest.mark.parametrize("kind", OWN)
def test_one_tensor_and_many_are_measured_and_stepped_alike(kind):
    own, ours = OWN[kind]
    for p in params_of():
        if p.numel():
            for measure in ("norm", "dual"):
                torch.testing.assert_close(getattr(own(0.5), measure)(p), getattr(ours(0.5), measure)(p))
    torch.testing.assert_close(own().lmo_each(params_of()), [ours().lmo(p) for p in params_of()])


@pytest.mark.parametrize("base", [Sign, Frobenius, Rows, Columns, Spectral])
def test_another_oracle_inherits_no_fact_of_the_old_one(base):
    class Halved(base):
        def _lmo(self, g):
            return super()._lmo(g) / 2

    assert Halved().locality == "tensor"
    assert Halved().polar is None
    assert not Halved().sums
    p, q = (nn.Parameter(torch.zeros(3, 4)) for _ in range(2))
    p.grad = q.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    LMO([p], lr=1.0, geometry=Halved(), momentum=0.0).step()
    LMO([q], lr=0.5, geometry=base(), momentum=0.0).step()
    torch.testing.assert_close(p, q)


def test_a_changed_radius_alone_keeps_the_fast_step():
    class Wide(Spectral):
        def radius_of(self, shape):
            return 2.0 * super().radius_of(shape)

    assert Wide(method="polar-express").polar is not None
    moved = []
    for geometry, lr in ((Wide(method="polar-express"), 0.1), (Spectral(method="polar-express"), 0.2)):
        p = nn.Parameter(torch.zeros(3, 4))
        p.grad = torch.eye(3, 4)
        LMO([p], lr=lr, geometry=geometry, momentum=0.0).step()
        moved.append(p.detach())
    torch.testing.assert_close(*moved)
