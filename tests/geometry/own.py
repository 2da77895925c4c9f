"""Geometries of one's own in ten lines, which declare what their oracle depends on; no step asks for their κ."""

from collections.abc import Sequence

import torch
from torch import Tensor

from autowarm.geometry import Geometry


class Whole(Geometry):
    """The norm of all entries, as `Frobenius`: nothing is declared."""

    dim: int | None = None

    def _norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=self.dim).amax()

    def _dual(self, g: Tensor) -> Tensor:
        return torch.linalg.vector_norm(g, dim=self.dim).sum()

    def _lmo(self, g: Tensor) -> Tensor:
        return -g / torch.linalg.vector_norm(g, dim=self.dim, keepdim=True).clamp_min(1e-30)

    def _kappa(self, shape: Sequence[int]) -> float:
        return 1.0


class Lines(Whole):
    """Largest norm of a row, as `Rows`; matrices are all that it is given."""

    locality, dim = "row", 1


class Stripes(Whole):
    """Largest norm of a column, as `Columns`."""

    locality, dim = "column", 0


class Steps(Whole):
    """Largest absolute entry, as `Sign`."""

    locality = "entry"

    def _norm(self, x: Tensor) -> Tensor:
        return x.abs().amax()

    def _dual(self, g: Tensor) -> Tensor:
        return g.abs().sum()

    def _lmo(self, g: Tensor) -> Tensor:
        return -g.sign()


class Taxicab(Whole):
    """The sum of all entries, whose unit ball has corners."""

    def _norm(self, x: Tensor) -> Tensor:
        return x.abs().sum()

    def _dual(self, g: Tensor) -> Tensor:
        return g.abs().amax()

    def _lmo(self, g: Tensor) -> Tensor:
        largest = torch.arange(g.numel()).reshape(g.shape) == g.abs().argmax()
        return -g.sign() * largest
