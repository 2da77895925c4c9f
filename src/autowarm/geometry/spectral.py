"""The geometry of Muon: the largest singular value, of one matrix or of many."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..orthogonalize import Method, as_matrices, checked_steps, nuclear_norm, orthogonalize, spectral_norm
from .base import Geometry, Locality, check_stacked, rows_columns


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
        stacked: read leading dimensions as a stack of matrices. None counts as False, but optimizers then refuse a
            tensor of three dimensions, which may be either.
        method: how `lmo` computes UVᵀ: "svd" (exact), "newton-schulz" or "polar-express", see `autowarm.orthogonalize`.
        steps: number of iterations; None for the method's usual number.
        blocks: number of blocks of rows to split each matrix into, each treated as a matrix: 3 for a fused
            query-key-value weight. Blocks of unequal size are a tuple of their sizes, in rows or in any unit that
            divides them: (32, 8, 8) for 32 heads of queries that share 8 of keys and of values. A radius rule uses the
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

    stacked: bool | None = None
    method: Method = "svd"
    steps: int | None = None
    blocks: int | tuple[int, ...] = 1
    dtype: torch.dtype | None = None
    transposed: bool = False

    costly = True

    @property
    def locality(self) -> Locality:  # type: ignore[override]
        return "matrix" if self.stacked else "tensor"

    @property
    def polar(self) -> Polar | None:
        """The iterations of the method; None if it does not iterate, or blocks of unequal size do not stack."""
        return None if self.method == "svd" or self.unequal else Polar(self.method, self.steps, self.dtype)

    @property
    def unequal(self) -> bool:
        """Whether the blocks have sizes of their own."""
        return isinstance(self.blocks, tuple)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_steps(self.method, self.steps)
        if not (self.dtype is None or getattr(self.dtype, "is_floating_point", False)):
            raise ValueError(f"dtype must be one of torch's floating-point dtypes, or None, got {self.dtype!r}")
        if isinstance(self.blocks, list):
            object.__setattr__(self, "blocks", tuple(self.blocks))
        sizes = self.blocks if isinstance(self.blocks, tuple) else (self.blocks,)
        if not sizes or not all(isinstance(n, int) and n >= 1 for n in sizes):
            raise ValueError(f"blocks must be at least 1, or a tuple of such sizes, got {self.blocks}")

    def __repr__(self) -> str:
        # Checkpoints contain this text. A field that it leaves out has its default, so checkpoints older than a field
        # still match.
        names = ("radius", "stacked", "method", "steps", "blocks", "dtype", *["transposed"] * self.transposed)
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def matrices(self, x: Tensor) -> Tensor:
        """Return the tensor as matrices (…, m, n), as a view if its layout allows one."""
        return as_matrices(x, stacked=bool(self.stacked), blocks=self._count, transposed=self.transposed)

    def tensor(self, matrices: Tensor, shape: torch.Size) -> Tensor:
        """Return the tensor of this shape with these `matrices`."""
        if not self.transposed:
            return matrices.reshape(shape)
        if not self.turns(shape):
            return matrices.mT.reshape(shape)
        return matrices.reshape(*shape[:-2], shape[-1], shape[-2]).mT

    @property
    def _count(self) -> int:
        assert isinstance(self.blocks, int), "blocks of unequal size are read one by one, see `_split`"
        return self.blocks

    @property
    def _each(self) -> Self:
        """How each block of unequal size is read."""
        return replace(self, blocks=1)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the blocks of unequal size of a tensor, as views."""
        assert isinstance(self.blocks, tuple)
        dim, total = self._rows_dim(x.shape), sum(self.blocks)
        if self.transposed and not self.turns(x.shape):
            raise ValueError("the blocks of a transposed convolution are its groups: give no sizes")
        if x.shape[dim] % total:
            raise ValueError(
                f"{x.shape[dim]} rows (shape {tuple(x.shape)}) do not divide into blocks of {self.blocks}, whose sum "
                f"is {total}: give rows, or heads"
            )
        return x.split([n * (x.shape[dim] // total) for n in self.blocks], dim)

    def _rows_dim(self, shape: Sequence[int]) -> int:
        return len(shape) - 1 if self.turns(shape) else len(shape) - 2 if self.stacked else 0

    def _norm(self, x: Tensor) -> Tensor:
        if self.unequal:
            return torch.stack([self._each.norm(block) for block in self._split(x)]).amax()
        return spectral_norm(self.matrices(x)).amax() if x.numel() else x.new_zeros(())

    def _dual(self, g: Tensor) -> Tensor:
        if self.unequal:
            return torch.stack([self._each.dual(block) for block in self._split(g)]).sum()
        return nuclear_norm(self.matrices(g)).sum() if g.numel() else g.new_zeros(())

    def _lmo(self, g: Tensor) -> Tensor:
        if self.unequal:
            return self._lmo_each([g])[0]
        factor = orthogonalize(self.matrices(g), method=self.method, steps=self.steps, dtype=self.dtype)
        return -self.tensor(factor, g.shape)

    def _lmo_each(self, gs: Sequence[Tensor]) -> list[Tensor]:
        if not self.unequal:
            return super()._lmo_each(gs)
        one = self._each
        split = [list(self._split(g)) for g in gs]
        alike: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for i, blocks in enumerate(split):
            for j, block in enumerate(blocks):
                alike[block.device, block.dtype, block.shape].append((i, j))
        for (*_, shape), places in alike.items():  # the queries of all layers at once, then their keys and values
            stack = torch.stack([one.matrices(split[i][j]) for i, j in places])
            factors = orthogonalize(stack, method=self.method, steps=self.steps, dtype=self.dtype)
            for (i, j), factor in zip(places, factors.unbind(), strict=True):
                split[i][j] = one.tensor(factor, shape) * -one.radius_of(shape)
        return [torch.cat(blocks, self._rows_dim(g.shape)) for g, blocks in zip(gs, split, strict=True)]

    def reading(self, *, stacked: bool = False, blocks: int | tuple[int, ...] = 1, transposed: bool = False) -> Self:
        if isinstance(self.blocks, int) and isinstance(blocks, int):
            blocks = math.lcm(self.blocks, blocks)
        elif blocks == 1:
            blocks = self.blocks
        stacked, transposed = bool(self.stacked or stacked), self.transposed or transposed
        return replace(self, stacked=stacked, blocks=blocks, transposed=transposed)

    def plain(self) -> Self:
        return replace(self, radius=1.0, stacked=None, blocks=1, transposed=False)

    def check_shape(self, shape: Sequence[int]) -> None:
        check_stacked(self, shape)
        x = torch.empty(tuple(shape), device="meta")
        for block in self._split(x) if self.unequal else (x,):
            (self._each if self.unequal else self).matrices(block)

    def radius_of(self, shape: Sequence[int]) -> float:
        return 1.0 if self.unequal else super().radius_of(self.matrix_shape(shape))  # each block has its own

    def _kappa(self, shape: tuple[int, ...]) -> float:
        if self.unequal:
            return sum(self._each.kappa(block.shape) for block in self._split(torch.empty(shape, device="meta")))
        stack = math.prod(shape[:-2]) if self.stacked else 1
        return float(stack * self._count * min(self.matrix_shape(shape)))

    def matrix_shape(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the rows and columns of the matrices that a tensor of this shape is read as."""
        m, n = shape[-2:] if self.stacked else rows_columns(shape)
        if self.turns(shape):
            m, n = n, m
        elif self.transposed:
            return n, m // self._count  # a transposed convolution's groups share out its inputs
        return m // self._count, n

    def stack_size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the rows and columns of a tensor's matrices as they are stacked to be orthogonalised.

        A polar factor's transpose is that of the transpose, so a transposed convolution's kernel is stacked as it lies.
        """
        rows, columns = self.matrix_shape(shape)
        return (columns, rows) if self.transposed and not self.turns(shape) else (rows, columns)

    def turns(self, shape: Sequence[int]) -> bool:
        """Whether a tensor's last two dimensions are the columns and rows of its matrices, in this order."""
        return self.transposed and (self.stacked or len(shape) == 2)
