"""Geometries whose oracle divides the tensor, its rows, its columns or its entries by their Euclidean norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..orthogonalize import HALVES, least_norm
from .base import DIMENSIONS, Geometry, Locality, Radii, Tensors, Total, check_stacked
from .rate import Rate, negated


class Euclidean(Geometry):
    """Largest Euclidean norm of a group; dual: their sum; LMO: −g with each group at unit norm; κ: their number."""

    sums = True
    # What is a group. Unlike `locality`, a subclass with another oracle inherits it.
    _group: Locality

    def _norm(self, x: Tensor) -> Tensor:
        return self._norms(x).amax() if x.numel() else x.new_zeros(())

    def _dual(self, g: Tensor) -> Tensor:
        return self._norms(g).sum()

    def _lmo(self, g: Tensor) -> Tensor:
        return -_unit(g, self._norms(g))

    def _kappa(self, shape: tuple[int, ...]) -> float:
        dims = DIMENSIONS[self._group](len(shape))
        return float(math.prod(n for i, n in enumerate(shape) if i not in dims)) if math.prod(shape) else 0.0

    def _norms(self, x: Tensor) -> Tensor:
        """Return the norm of each group, in at least single precision, in a shape that divides the tensor."""
        # Half precision overflows at 65504.
        dtype = torch.float32 if x.dtype in HALVES else None
        dims = tuple(DIMENSIONS[self._group](x.ndim))
        if not dims:  # an entry is its own group
            return x.abs().to(dtype or x.dtype)
        return torch.linalg.vector_norm(x, dim=dims, keepdim=True, dtype=dtype)

    def _norms_each(self, gs: list[Tensor], total: Total) -> list[Tensor]:
        if self._group == "tensor" and not any(g.dtype in HALVES for g in gs):
            norms = list(torch._foreach_norm(gs))
        else:
            norms = [self._norms(g) for g in gs]
        if total is None:
            return norms
        sums = total(torch.cat([norm.reshape(-1) for norm in norms]).square_()).sqrt_()
        pieces = sums.split([norm.numel() for norm in norms])
        return [piece.view(norm.shape) for piece, norm in zip(pieces, norms, strict=True)]

    def step_(
        self, xs: Tensors, directions: Tensors, rate: Rate, radii: Radii, *, owned: bool = False, total: Total = None
    ) -> None:
        norms = self._norms_each(directions, total)
        if any(norm.dtype != g.dtype for norm, g in zip(norms, directions, strict=True)):
            # In half precision, the norm in addcdiv's quotient could overflow.
            rate.step_(xs, [_unit(g, norm) for g, norm in zip(directions, norms, strict=True)], negated(radii))
            return
        torch._foreach_clamp_min_(norms, max(map(least_norm, {norm.dtype for norm in norms})))
        rate.keep_(xs)
        lr = rate.lr
        if isinstance(lr, Tensor):
            torch._foreach_div_(norms, lr)  # a rate of 0 makes the norm infinite and the step 0
            lr = 1.0
        factors = [-lr * radius for radius in radii] if isinstance(radii, list) else -lr * radii
        torch._foreach_addcdiv_(xs, directions, norms, factors)


@dataclass(frozen=True, eq=False, repr=False)
class Frobenius(Euclidean):
    """Root of the sum of squares, its own dual; LMO: −g/‖g‖. The geometry of normSGD.

    Args:
        radius: see `Geometry`.
        stacked: as in `Spectral`: whether leading dimensions count matrices, each with a norm of its own.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Frobenius
        >>> Frobenius().lmo(torch.tensor([3.0, -4.0])).tolist()
        [-0.6000000238418579, 0.800000011920929]
    """

    stacked: bool | None = None

    @property
    def locality(self) -> Locality:  # type: ignore[override]
        return "matrix" if self.stacked else "tensor"

    _group = locality

    def reading(self, *, stacked: bool = False, blocks: int | tuple[int, ...] = 1, transposed: bool = False) -> Self:
        return self._with(stacked=bool(self.stacked or stacked))

    def plain(self) -> Self:
        return self._with(radius=1.0, stacked=None)

    def check_shape(self, shape: Sequence[int]) -> None:
        check_stacked(self, shape)


@dataclass(frozen=True, eq=False, repr=False)
class Rows(Euclidean):
    """Largest Euclidean norm of a row; dual: their sum; LMO: −g with each row at unit norm. κ is the number of rows.

    Scion uses it for output heads, and for embeddings stored as (vocabulary, width): every token's row moves by R.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Rows
        >>> Rows().dual(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).item(), Rows().kappa((2, 5))
        (7.0, 2.0)
    """

    locality = _group = "row"


@dataclass(frozen=True, eq=False, repr=False)
class Columns(Euclidean):
    """Largest Euclidean norm of a column; dual: their sum; LMO: −g with each column at unit norm. κ: their number.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Columns
        >>> Columns().lmo(torch.tensor([[3.0, 0.0], [0.0, -2.0]])).tolist()
        [[-1.0, -0.0], [-0.0, 1.0]]
    """

    locality = _group = "column"


@dataclass(frozen=True, eq=False, repr=False)
class Sign(Euclidean):
    """Largest absolute entry; dual: sum of absolute entries; LMO: −sign(g). The geometry of signSGD and Lion.

    Example:
        >>> from autowarm.geometry import Sign
        >>> Sign().kappa((4, 8)), Sign(radius=0.5).kappa((4, 8))
        (32.0, 8.0)
    """

    locality = _group = "entry"

    def _lmo(self, g: Tensor) -> Tensor:
        return -g.sign()

    def step_(
        self, xs: Tensors, directions: Tensors, rate: Rate, radii: Radii, *, owned: bool = False, total: Total = None
    ) -> None:
        if owned:
            torch._foreach_sign_(directions)
        else:
            directions = list(torch._foreach_sign(directions))
        rate.step_(xs, directions, negated(radii))


def _unit(g: Tensor, norm: Tensor) -> Tensor:
    """Return g/‖g‖ in g's dtype, or less if the norm is too small to divide by."""
    return (g.to(norm.dtype) / norm.clamp(min=least_norm(norm.dtype))).to(g.dtype)
