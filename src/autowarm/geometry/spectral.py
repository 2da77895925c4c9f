"""The geometry of Muon: the largest singular value, of one matrix or of many."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ..orthogonalize import Method, as_matrices, checked_steps, nuclear_norm, orthogonalize, spectral_norm
from .base import Geometry, Locality, rows_columns


class Polar(NamedTuple):
    """The iterations that compute an oracle as polar factors; see `autowarm.orthogonalize.orthogonalize_`.

    Attributes:
        method: their polynomials.
        steps: their number; None for the method's usual number.
        dtype: what they compute in; None for the fastest on the device.
    """

    method: Method
    steps: int | None
    dtype: torch.dtype | None


@dataclass(frozen=True, eq=False)
class Spectral(Geometry):
    """Largest singular value; dual: nuclear norm; LMO: −UVᵀ. The geometry of Muon.

    A vector is read as one column, a convolution kernel as the matrix (out, in·k·k), or one for each of its groups,
    which are its ``blocks``. The kernel of a transposed convolution is read as (out·k·k, in). With ``stacked=True``,
    leading dimensions count independent matrices instead, as in a mixture of experts (experts, m, n): the norm is then
    the largest over the matrices, and the dual norm and κ are sums.

    Args:
        radius: see `Geometry`.
        stacked: read leading dimensions as a stack of matrices.
        method: how `lmo` computes UVᵀ: "svd" (exact), "newton-schulz" or "polar-express", see `autowarm.orthogonalize`.
        steps: number of iterations; None for the method's usual number.
        blocks: number of blocks of rows to split each matrix into, each treated as a matrix: 3 for a fused
            query-key-value weight, or one per head if queries, keys and values differ in number. A radius rule uses the
            block's shape.
        transposed: whether the tensor stores its matrices as (…, n, m), as GPT-2's layers store (in, out), and
            transposed convolutions their kernels. Rows are then its last dimension, for ``blocks`` and for a radius
            rule; the blocks of a kernel are its groups, which lie along its first dimension.
        dtype: dtype of the iterations; None for the fastest on the device.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Spectral
        >>> g = torch.tensor([[3.0, 0.0], [0.0, -4.0]])
        >>> Spectral().norm(g).item(), Spectral().dual(g).item(), Spectral().kappa((2, 3))
        (4.0, 7.0, 2.0)
    """

    stacked: bool = False
    method: Method = "svd"
    steps: int | None = None
    blocks: int = 1
    dtype: torch.dtype | None = None
    transposed: bool = False

    costly = True

    @property
    def locality(self) -> Locality:  # type: ignore[override]
        return "matrix" if self.stacked else "tensor"

    @property
    def polar(self) -> Polar | None:
        """The iterations of the method; None if it does not iterate."""
        return None if self.method == "svd" else Polar(self.method, self.steps, self.dtype)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_steps(self.method, self.steps)
        if self.blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {self.blocks}")

    def __repr__(self) -> str:
        # Checkpoints contain this text. A field that it leaves out has its default, so checkpoints older than a field
        # still match.
        names = ("radius", "stacked", "method", "steps", "blocks", "dtype", *["transposed"] * self.transposed)
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def matrices(self, x: Tensor) -> Tensor:
        """Return the tensor as matrices (…, m, n), as a view if its layout allows one."""
        return as_matrices(x, stacked=self.stacked, blocks=self.blocks, transposed=self.transposed)

    def tensor(self, matrices: Tensor, shape: torch.Size) -> Tensor:
        """Return the tensor of this shape with these `matrices`."""
        if not self.transposed:
            return matrices.reshape(shape)
        if not self.turns(shape):
            return matrices.mT.reshape(shape)
        return matrices.reshape(*shape[:-2], shape[-1], shape[-2]).mT

    def _norm(self, x: Tensor) -> Tensor:
        return spectral_norm(self.matrices(x)).amax() if x.numel() else x.new_zeros(())

    def _dual(self, g: Tensor) -> Tensor:
        return nuclear_norm(self.matrices(g)).sum() if g.numel() else g.new_zeros(())

    def _lmo(self, g: Tensor) -> Tensor:
        factor = orthogonalize(self.matrices(g), method=self.method, steps=self.steps, dtype=self.dtype)
        return -self.tensor(factor, g.shape)

    def reading(self, *, stacked: bool = False, blocks: int = 1, transposed: bool = False) -> Self:
        blocks = math.lcm(self.blocks, blocks)
        return replace(self, stacked=self.stacked or stacked, blocks=blocks, transposed=self.transposed or transposed)

    def plain(self) -> Self:
        return replace(self, radius=1.0, stacked=False, blocks=1, transposed=False)

    def check_shape(self, shape: Sequence[int]) -> None:
        self.matrices(torch.empty(tuple(shape), device="meta"))

    def radius_of(self, shape: Sequence[int]) -> float:
        return super().radius_of(self.matrix_shape(shape))

    def _kappa(self, shape: tuple[int, ...]) -> float:
        stack = math.prod(shape[:-2]) if self.stacked else 1
        return float(stack * self.blocks * min(self.matrix_shape(shape)))

    def matrix_shape(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the rows and columns of the matrices that a tensor of this shape is read as."""
        m, n = shape[-2:] if self.stacked else rows_columns(shape)
        if self.turns(shape):
            m, n = n, m
        elif self.transposed:
            return n, m // self.blocks  # a transposed convolution's groups share out its inputs
        return m // self.blocks, n

    def stack_size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the rows and columns of a tensor's matrices as they are stacked to be orthogonalised.

        A polar factor's transpose is that of the transpose, so a transposed convolution's kernel is stacked as it lies.
        """
        rows, columns = self.matrix_shape(shape)
        return (columns, rows) if self.transposed and not self.turns(shape) else (rows, columns)

    def turns(self, shape: Sequence[int]) -> bool:
        """Whether a tensor's last two dimensions are the columns and rows of its matrices, in this order."""
        return self.transposed and (self.stacked or len(shape) == 2)
