"""Norms, their duals and the step each one dictates.

A norm-constrained optimizer moves by a *linear minimisation oracle* (LMO): of all steps of unit norm, it takes the one
along which the loss falls fastest. Choosing the norm chooses the optimizer (paper, Table "optimizers"):

=======================  ===================  ===============  ===============  =====================
geometry                 norm ‖x‖             dual norm ‖g‖⋆   LMO(g)           κ of an m × n matrix
=======================  ===================  ===============  ===============  =====================
`Spectral` (Muon)        largest σᵢ           Σ σᵢ             −U Vᵀ            min(m, n)
`Sign` (signSGD, Lion)   largest abs(entry)   Σ abs(entry)     −sign(g)         m·n
`Frobenius` (normSGD)    √Σ entry²            √Σ entry²        −g/‖g‖           1
`Rows` (Scion)           largest ‖rowᵢ‖       Σ ‖rowᵢ‖         −rowᵢ/‖rowᵢ‖     m
`Columns` (Scion)        largest ‖colⱼ‖       Σ ‖colⱼ‖         −colⱼ/‖colⱼ‖     n
=======================  ===================  ===============  ===============  =====================

A geometry measures one tensor. `MaxOverLayers` combines geometries into a norm of the whole model: the largest of its
tensors' norms. Its dual norm and its κ are sums over the tensors.

Every geometry has a *radius* R, a number or a rule that computes it from the shape (`RADIUS_RULES`). It scales the unit
ball, so the norm becomes ‖x‖/R, the dual norm R‖g‖⋆, the oracle R·LMO(g), and κ becomes R²κ. Muon's "learning-rate
adjustment" is such a radius.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from .modes import without_autocast
from .orthogonalize import (
    METHODS,
    Method,
    as_matrices,
    least_norm,
    nuclear_norm,
    orthogonalize,
    orthogonalize_each,
    spectral_norm,
)

__all__ = [
    "RADIUS_RULES",
    "Columns",
    "Frobenius",
    "Geometry",
    "GeometryName",
    "MaxOverLayers",
    "RadiusRule",
    "Rows",
    "Sign",
    "Spectral",
    "resolve",
    "total_kappa",
]


def __dir__() -> list[str]:
    return __all__


GeometryName = Literal["spectral", "sign", "frobenius", "rows", "columns"]
RadiusRule = Literal["original", "match_rms_adamw", "spectral_unclamped"]

# Radius from (rows m, columns n). The names are those of `torch.optim.Muon(adjust_lr_fn=…)`.
RADIUS_RULES: dict[RadiusRule, Callable[[int, int], float]] = {
    "original": lambda m, n: math.sqrt(max(1.0, m / n)),  # Jordan's Muon
    "match_rms_adamw": lambda m, n: 0.2 * math.sqrt(max(m, n)),  # Moonlight: the step's RMS is about AdamW's
    "spectral_unclamped": lambda m, n: math.sqrt(m / n),  # Bernstein, Scion: unit RMS → RMS operator norm
}


_HALVES = (torch.float16, torch.bfloat16)


def _rows_columns(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the matrix that a tensor is read as: a vector is one column, a kernel is (out, in·k·k)."""
    if len(shape) < 2:
        return math.prod(shape), 1
    return shape[0], math.prod(shape[1:])


@dataclass(frozen=True, eq=False, repr=False)
class Geometry(ABC):
    """A norm on one parameter tensor, with its dual norm, its linear minimisation oracle and its κ.

    To add a geometry, subclass this and define `_norm`, `_dual`, `_lmo` and `_kappa` for radius 1. Every optimizer, the
    scheduler and the smoothness probe then accept it.

    Args:
        radius: R > 0, or the name of a rule in `RADIUS_RULES` that computes R from the tensor's shape.

    Raises:
        ValueError: the radius is not positive and finite, or the rule is unknown.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Sign
        >>> g = torch.tensor([[3.0, -4.0]])
        >>> Sign().dual(g).item(), Sign(radius=0.5).lmo(g).tolist()
        (7.0, [[-0.5, 0.5]])
    """

    radius: float | RadiusRule = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.radius, str):
            if self.radius not in RADIUS_RULES:
                raise ValueError(f"unknown radius rule {self.radius!r}: use a number or one of {sorted(RADIUS_RULES)}")
            return
        try:
            radius = float(self.radius)
        except (TypeError, ValueError):
            radius = math.nan
        if not (radius > 0 and math.isfinite(radius)):
            raise ValueError(f"radius must be a positive finite number, got {self.radius}")
        object.__setattr__(self, "radius", radius)  # equal radii look alike in a saved state

    # A subclass need not be a dataclass: all of its attributes count.

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *sorted(vars(self).items())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @without_autocast
    def norm(self, x: Tensor) -> Tensor:
        """Return ‖x‖/R, a scalar tensor of at least single precision."""
        return self._norm(_at_least_single(x)) / self.radius_of(x.shape)

    @without_autocast
    def dual(self, g: Tensor) -> Tensor:
        """Return the dual norm R‖g‖⋆ = max{⟨g, q⟩ : ‖q‖ ≤ R}, a scalar tensor of at least single precision."""
        return self._dual(_at_least_single(g)) * self.radius_of(g.shape)

    @without_autocast
    def lmo(self, g: Tensor) -> Tensor:
        """Return argmin{⟨g, q⟩ : ‖q‖ ≤ R}, of g's shape; zero if g is zero, where every q is a minimiser."""
        return self._lmo(g) * self.radius_of(g.shape)

    def kappa(self, shape: Sequence[int]) -> float:
        """Return κ = sup{‖u‖²_F : ‖u‖ ≤ R}, which is R² times the unit ball's (paper, App. "kappas")."""
        return self._kappa(tuple(shape)) * self.radius_of(shape) ** 2

    def radius_of(self, shape: Sequence[int]) -> float:
        """Return R for a tensor of this shape."""
        if isinstance(self.radius, str):
            rows, columns = _rows_columns(shape)
            return RADIUS_RULES[self.radius](max(1, rows), max(1, columns))  # an empty matrix has a radius, too
        return float(self.radius)

    def at_radius(self, radius: float | RadiusRule) -> Self:
        """Return the same geometry with another radius."""
        other = copy.copy(self)
        object.__setattr__(other, "radius", radius)
        other.__post_init__()
        return other

    @without_autocast
    def lmo_each(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """Return `lmo` of each tensor; geometries override this to batch the work."""
        return [self.lmo(g) for g in gs]

    @abstractmethod
    def _norm(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _dual(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def _lmo(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def _kappa(self, shape: tuple[int, ...]) -> float: ...


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}: use one of {METHODS}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {self.blocks}")

    def __repr__(self) -> str:
        # Checkpoints contain this text. A field that it leaves out has its default, so checkpoints older than a field
        # still match.
        names = [
            "radius",
            "stacked",
            "method",
            "steps",
            "blocks",
            "dtype",
            *(["transposed"] if self.transposed else []),
        ]
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
        if x.numel() == 0:
            return x.new_zeros(())
        return spectral_norm(self.matrices(x)).amax()

    def _dual(self, g: Tensor) -> Tensor:
        if g.numel() == 0:
            return g.new_zeros(())
        return nuclear_norm(self.matrices(g)).sum()

    def _lmo(self, g: Tensor) -> Tensor:
        factor = orthogonalize(self.matrices(g), method=self.method, steps=self.steps, dtype=self.dtype)
        return -self.tensor(factor, g.shape)

    @without_autocast
    def lmo_each(self, gs: Sequence[Tensor]) -> list[Tensor]:
        matrices = [self.matrices(g) for g in gs]
        factors = orthogonalize_each(matrices, method=self.method, steps=self.steps, dtype=self.dtype)
        scales = [-self.radius_of(g.shape) for g in gs]
        return [self.tensor(f, g.shape) * scale for f, g, scale in zip(factors, gs, scales, strict=True)]

    def radius_of(self, shape: Sequence[int]) -> float:
        return super().radius_of(self.matrix_shape(shape))

    def _kappa(self, shape: tuple[int, ...]) -> float:
        stack = math.prod(shape[:-2]) if self.stacked else 1
        return float(stack * self.blocks * min(self.matrix_shape(shape)))

    def matrix_shape(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the rows and columns of the matrices that a tensor of this shape is read as."""
        m, n = shape[-2:] if self.stacked else _rows_columns(shape)
        if not self.turns(shape) and self.transposed:
            return n, m // self.blocks  # a transposed convolution's groups share out its inputs
        if self.transposed:
            m, n = n, m
        return m // self.blocks, n

    def turns(self, shape: Sequence[int]) -> bool:
        """Whether a tensor's last two dimensions are the columns and rows of its matrices, in this order."""
        return self.transposed and (self.stacked or len(shape) == 2)


@dataclass(frozen=True, eq=False, repr=False)
class Sign(Geometry):
    """Largest absolute entry; dual: sum of absolute entries; LMO: −sign(g). The geometry of signSGD and Lion.

    Example:
        >>> from autowarm.geometry import Sign
        >>> Sign().kappa((4, 8)), Sign(radius=0.5).kappa((4, 8))
        (32.0, 8.0)
    """

    def _norm(self, x: Tensor) -> Tensor:
        return x.abs().amax() if x.numel() else x.new_zeros(())

    def _dual(self, g: Tensor) -> Tensor:
        return g.abs().sum()

    def _lmo(self, g: Tensor) -> Tensor:
        return -g.sign()

    @without_autocast
    def lmo_each(self, gs: Sequence[Tensor]) -> list[Tensor]:
        if not gs:
            return []
        signs = list(torch._foreach_sign(list(gs)))
        torch._foreach_mul_(signs, [-self.radius_of(g.shape) for g in gs])
        return signs

    def _kappa(self, shape: tuple[int, ...]) -> float:
        return float(math.prod(shape))


@dataclass(frozen=True, eq=False, repr=False)
class Frobenius(Geometry):
    """Root of the sum of squares, its own dual; LMO: −g/‖g‖. The geometry of normSGD.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Frobenius
        >>> Frobenius().lmo(torch.tensor([3.0, -4.0])).tolist()
        [-0.6000000238418579, 0.800000011920929]
    """

    def _norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x)

    def _dual(self, g: Tensor) -> Tensor:
        return torch.linalg.vector_norm(g)

    def _lmo(self, g: Tensor) -> Tensor:
        return -unit(g, _euclidean(g))

    @without_autocast
    def lmo_each(self, gs: Sequence[Tensor]) -> list[Tensor]:
        return [unit(g, norm).mul_(-self.radius_of(g.shape)) for g, norm in zip(gs, frobenius_norms(gs), strict=True)]

    def _kappa(self, shape: tuple[int, ...]) -> float:
        return 1.0 if math.prod(shape) else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Rows(Geometry):
    """Largest Euclidean norm of a row; dual: their sum; LMO: −g with each row at unit norm. κ is the number of rows.

    Scion uses it for output heads, and for embeddings stored as (vocabulary, width): every token's row moves by R.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Rows
        >>> Rows().dual(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).item(), Rows().kappa((2, 5))
        (7.0, 2.0)
    """

    _along = 1  # the dimension a row runs along

    def _norms(self, x: Tensor) -> Tensor:
        return _euclidean(as_matrices(x), dim=self._along, keepdim=True)

    def _norm(self, x: Tensor) -> Tensor:
        return self._norms(x).amax() if x.numel() else x.new_zeros(())

    def _dual(self, g: Tensor) -> Tensor:
        return self._norms(g).sum()

    def _lmo(self, g: Tensor) -> Tensor:
        return -unit(as_matrices(g), self._norms(g)).reshape(g.shape)

    def _kappa(self, shape: tuple[int, ...]) -> float:
        return float(_rows_columns(shape)[1 - self._along]) if math.prod(shape) else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Columns(Rows):
    """Largest Euclidean norm of a column; dual: their sum; LMO: −g with each column at unit norm. κ: their number.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Columns
        >>> Columns().lmo(torch.tensor([[3.0, 0.0], [0.0, -2.0]])).tolist()
        [[-1.0, -0.0], [-0.0, 1.0]]
    """

    _along = 0


def unit(g: Tensor, norm: Tensor) -> Tensor:
    """Return g/‖g‖ in g's dtype, or less if the norm is too small to divide by."""
    return (g.to(norm.dtype) / norm.clamp(min=least_norm(norm.dtype))).to(g.dtype)


def frobenius_norms(gs: Sequence[Tensor]) -> list[Tensor]:
    """Return each tensor's Frobenius norm, in at least single precision: half precision overflows at 65504."""
    if any(g.dtype in _HALVES for g in gs):
        return [_euclidean(g) for g in gs]
    return list(torch._foreach_norm(list(gs))) if gs else []


def _euclidean(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim, dtype=torch.float32 if x.dtype in _HALVES else None)


def _at_least_single(x: Tensor) -> Tensor:
    return x.float() if x.dtype in _HALVES else x


_BY_NAME: Mapping[str, type[Geometry]] = {
    "spectral": Spectral,
    "sign": Sign,
    "frobenius": Frobenius,
    "rows": Rows,
    "columns": Columns,
}


def resolve(geometry: str | Geometry) -> Geometry:
    """Return the geometry itself, or the one with this name at radius 1.

    Raises:
        ValueError: the name is unknown; the message lists the known ones.
        TypeError: the argument is neither a name nor a `Geometry`.

    Example:
        >>> from autowarm.geometry import resolve
        >>> resolve("sign")
        Sign(radius=1.0)
    """
    if isinstance(geometry, Geometry):
        return geometry
    if not isinstance(geometry, str):
        raise TypeError(f"a geometry is one of {sorted(_BY_NAME)} or a Geometry, got {type(geometry).__name__}")
    if geometry not in _BY_NAME:
        raise ValueError(f"unknown geometry {geometry!r}: use one of {sorted(_BY_NAME)} or a Geometry of your own")
    return _BY_NAME[geometry]()


class MaxOverLayers:
    """The norm of a whole model: the largest over its tensors (paper, Table "optimizers", row "Layer-wise").

    Args:
        geometries: one for all tensors, or one per tensor (so hybrids are lists).

    Every method takes the model's tensors in order.

    Raises:
        ValueError: the number of tensors is not the number of geometries.

    Example:
        >>> import torch
        >>> from autowarm.geometry import MaxOverLayers, Sign, Spectral
        >>> hybrid = MaxOverLayers([Spectral(), Sign()])
        >>> tensors = [torch.eye(3), torch.tensor([2.0, -5.0])]
        >>> hybrid.norm(tensors).item(), hybrid.dual(tensors).item(), hybrid.kappa([(3, 3), (2,)])
        (5.0, 10.0, 5.0)
    """

    def __init__(self, geometries: str | Geometry | Sequence[str | Geometry]) -> None:
        self._one = resolve(geometries) if isinstance(geometries, (str, Geometry)) else None
        self._each = [] if isinstance(geometries, (str, Geometry)) else [resolve(g) for g in geometries]

    def __repr__(self) -> str:
        return f"MaxOverLayers({self._one or self._each})"

    def each(self, count: int) -> list[Geometry]:
        """Return the geometries of this many tensors."""
        if self._one is not None:
            return [self._one] * count
        if len(self._each) != count:
            raise ValueError(f"{len(self._each)} geometries were given for {count} tensors: give one, or one for each")
        return self._each

    @without_autocast
    def norm(self, xs: Sequence[Tensor]) -> Tensor:
        """Return maxᵢ ‖xᵢ‖ over the tensors."""
        return torch.stack([g.norm(x) for g, x in zip(self.each(len(xs)), xs, strict=True)]).amax()

    @without_autocast
    def dual(self, gs: Sequence[Tensor]) -> Tensor:
        """Return Σᵢ ‖gᵢ‖⋆ over the tensors."""
        return torch.stack([g.dual(x) for g, x in zip(self.each(len(gs)), gs, strict=True)]).sum()

    @without_autocast
    def lmo(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """Return each tensor's own `lmo`."""
        return [g.lmo(x) for g, x in zip(self.each(len(gs)), gs, strict=True)]

    def kappa(self, shapes: Sequence[Sequence[int]]) -> float:
        """Return Σᵢ Rᵢ²κᵢ over the tensors."""
        return sum(g.kappa(shape) for g, shape in zip(self.each(len(shapes)), shapes, strict=True))


def total_kappa(params: Iterable[Tensor], geometry: str | Geometry) -> float:
    """Return κ of a model as the paper counts it: all its matrices under one geometry.

    Every tensor of two or more dimensions counts once, embeddings included; a tied weight is one tensor. Vectors and
    scalars do not count. For a mixture of geometries and radii, use ``MaxOverLayers(...).kappa(shapes)``.

    Args:
        params: the trained tensors.
        geometry: a name or a `Geometry`; the paper's has radius 1.

    Returns:
        κ, dimensionless. The authors' LLaMA-124M with fused query-key-value matrices has 46848 for "spectral",
        123568128 for "sign" and 61 for "frobenius"; with split ones 65280, the same, and 85.

    Raises:
        ValueError: there is no tensor of two or more dimensions.

    Example:
        >>> import torch
        >>> from autowarm.geometry import total_kappa
        >>> total_kappa(torch.nn.Linear(8, 4).parameters(), "spectral")
        4.0
    """
    unique = {id(p): p for p in params if p.ndim >= 2}
    if not unique:
        raise ValueError(
            "κ needs at least one trained tensor of two or more dimensions; pass kappa= to set it yourself"
        )
    return MaxOverLayers(geometry).kappa([p.shape for p in unique.values()])
