"""What every geometry is: a norm of one tensor, its dual norm, its oracle and κ, and the facts that make steps fast."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from .._torch.modes import without_autocast
from ..orthogonalize import HALVES, as_matrices
from .rate import Rate

RadiusRule = Literal["original", "match_rms_adamw", "spectral_unclamped"]

# Radius from (rows m, columns n). The names are those of `torch.optim.Muon(adjust_lr_fn=…)`.
RADIUS_RULES: dict[RadiusRule, Callable[[int, int], float]] = {
    "original": lambda m, n: math.sqrt(max(1.0, m / n)),  # Jordan's Muon
    "match_rms_adamw": lambda m, n: 0.2 * math.sqrt(max(m, n)),  # Moonlight: the step's RMS is about AdamW's
    "spectral_unclamped": lambda m, n: math.sqrt(m / n),  # Bernstein, Scion: unit RMS → RMS operator norm
}

Locality = Literal["entry", "row", "column", "matrix", "tensor"]
"""What of a tensor one entry of the oracle depends on; a matrix is one of a stack (…, m, n)."""

Total = Callable[[Tensor], Tensor] | None
"""Adds up numbers over the ranks that hold the other pieces of a tensor; None if there are none."""

Tensors = list[Tensor]
Radii = float | list[float]

# The dimensions along which a tensor with this many has one entry, row, column, matrix or tensor.
DIMENSIONS: Mapping[Locality, Callable[[int], range]] = {
    "entry": lambda ndim: range(0),
    "row": lambda ndim: range(1, ndim),
    "column": lambda ndim: range(min(1, ndim)),
    "matrix": lambda ndim: range(max(0, ndim - 2), ndim),
    "tensor": range,
}


def rows_columns(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the matrix that a tensor is read as: a vector is one column, a kernel is (out, in·k·k)."""
    if len(shape) < 2:
        return math.prod(shape), 1
    return shape[0], math.prod(shape[1:])


@dataclass(frozen=True, eq=False, repr=False)
class Geometry(ABC):
    """A norm on one parameter tensor, with its dual norm, its linear minimisation oracle and its κ.

    To add a geometry, subclass this and define `_norm`, `_dual`, `_lmo` and `_kappa` for radius 1. Every optimizer, the
    scheduler and the smoothness probe then accept it.

    Set ``locality`` if an entry of the oracle depends on less than the whole tensor: on that "entry" of the gradient
    alone, on its "row" or on its "column". Ranks that hold whole entries, rows or columns of a sharded tensor then step
    it without communication. With "row" or "column", `_norm`, `_dual` and `_lmo` get every tensor as a matrix: a vector
    is one column, a convolution kernel is (out, in·k·k).

    Args:
        radius: R > 0, or the name of a rule in `RADIUS_RULES` that computes R from the tensor's shape.

    Raises:
        ValueError: the radius is not positive and finite, or the rule is unknown.
        TypeError: a subclass defines `lmo` instead of `_lmo`.

    Example:
        The root mean square of the entries, which is normSGD with a radius that grows with the tensor:

        >>> import torch
        >>> from dataclasses import dataclass
        >>> from autowarm import LMO
        >>> from autowarm.geometry import Geometry
        >>> @dataclass(frozen=True)
        ... class Mean(Geometry):
        ...     def _norm(self, x):
        ...         return x.square().mean().sqrt()
        ...     def _dual(self, g):
        ...         return g.norm() * g.numel() ** 0.5
        ...     def _lmo(self, g):
        ...         return -g * (g.numel() ** 0.5 / g.norm().clamp_min(1e-30))
        ...     def _kappa(self, shape):
        ...         return float(torch.Size(shape).numel())
        >>> opt = LMO(torch.nn.Linear(4, 2).parameters(), lr=1e-3, geometry=Mean())
    """

    radius: float | RadiusRule = 1.0

    locality: ClassVar[Locality] = "tensor"
    # Whether `step_` makes do with sums over the ranks that hold the pieces of what an entry depends on.
    sums: ClassVar[bool] = False
    # Whether computing the oracle takes longer than sending it to another rank.
    costly: ClassVar[bool] = False
    # How optimizers compute the oracle as polar factors of stacked matrices; None if it is no polar factor.
    polar: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "lmo" in vars(cls):
            raise TypeError(
                f"{cls.__name__} defines lmo, which optimizers do not ask, because they ask for many tensors at once: "
                "define _lmo instead, the oracle at radius 1"
            )
        # A class that changes the oracle does not inherit what its base says of its own.
        if vars(cls).keys() & {"_lmo", "lmo_each"}:
            for fact in {"locality", "sums", "costly", "polar", "_lmo_each", "step_"} - vars(cls).keys():
                setattr(cls, fact, vars(Geometry)[fact])

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
        return self._norm(self._as_read(_at_least_single(x))) / self.radius_of(x.shape)

    @without_autocast
    def dual(self, g: Tensor) -> Tensor:
        """Return the dual norm R‖g‖⋆ = max{⟨g, q⟩ : ‖q‖ ≤ R}, a scalar tensor of at least single precision."""
        return self._dual(self._as_read(_at_least_single(g))) * self.radius_of(g.shape)

    @without_autocast
    def lmo(self, g: Tensor) -> Tensor:
        """Return argmin{⟨g, q⟩ : ‖q‖ ≤ R}, of g's shape; zero if g is zero, where every q is a minimiser."""
        return self._lmo(self._as_read(g)).reshape(g.shape) * self.radius_of(g.shape)

    def kappa(self, shape: Sequence[int]) -> float:
        """Return κ = sup{‖u‖²_F : ‖u‖ ≤ R}, which is R² times the unit ball's (paper, App. "kappas")."""
        return self._kappa(tuple(shape)) * self.radius_of(shape) ** 2

    def radius_of(self, shape: Sequence[int]) -> float:
        """Return R for a tensor of this shape."""
        if isinstance(self.radius, str):
            rows, columns = rows_columns(shape)
            return RADIUS_RULES[self.radius](max(1, rows), max(1, columns))  # an empty matrix has a radius, too
        return float(self.radius)

    def radii(self, shapes: Sequence[torch.Size]) -> Radii:
        """Return R for tensors of these shapes: one number if it is the same for all, otherwise a list."""
        radii = [self.radius_of(shape) for shape in shapes]
        return radii[0] if len({*radii}) == 1 else radii

    def at_radius(self, radius: float | RadiusRule) -> Self:
        """Return the same geometry with another radius."""
        return self._with(radius=radius)

    def _with(self, **fields: Any) -> Self:
        other = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(other, name, value)
        other.__post_init__()
        return other

    def reading(self, *, stacked: bool = False, blocks: int | tuple[int, ...] = 1, transposed: bool = False) -> Self:
        """Return the geometry that also reads tensors in this way, see `Spectral`; itself if it has no such choice."""
        return self

    def plain(self) -> Self:
        """Return the geometry at radius 1, with none of what `reading` adds."""
        return self.at_radius(1.0)

    def check_shape(self, shape: Sequence[int]) -> None:  # noqa: B027
        """Raise ValueError if the geometry cannot read a tensor of this shape."""

    @without_autocast
    def lmo_each(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """Return `lmo` of each tensor."""
        scales = [self.radius_of(g.shape) for g in gs]
        return [step * scale for step, scale in zip(self._lmo_each(gs), scales, strict=True)]

    def coupled(self, ndim: int) -> range:
        """Return the dimensions that an entry of the oracle depends on, of a tensor with this many."""
        return DIMENSIONS[self.locality](ndim)

    def step_(
        self, xs: Tensors, directions: Tensors, rate: Rate, radii: Radii, *, owned: bool = False, total: Total = None
    ) -> None:
        """x ← keep·x + lr·LMO(direction) for tensors on one device, in place.

        Args:
            xs: the tensors, or a rank's pieces of them.
            directions: the oracle's argument for each.
            rate: the rate of all tensors, or of each.
            radii: R of each whole tensor, or one for all; see `radii`.
            owned: whether the directions may be overwritten, because they are neither gradients nor momenta.
            total: if pieces of what an entry depends on are elsewhere: adds up numbers over the ranks that hold them.
        """
        if self.locality == "tensor":
            rate.step_(xs, self.lmo_each(directions))
            return
        updates = self._lmo_each(directions)
        if isinstance(radii, list) or isinstance(rate.lr, Tensor):  # `Rate.step_` would overwrite what is not ours
            updates, radii = list(torch._foreach_mul(updates, radii)), 1.0
        rate.step_(xs, updates, radii)

    def _lmo_each(self, gs: Sequence[Tensor]) -> list[Tensor]:
        return [self._lmo(self._as_read(g)).reshape(g.shape) for g in gs]

    def _as_read(self, x: Tensor) -> Tensor:
        return as_matrices(x) if self.locality in ("row", "column") else x

    @abstractmethod
    def _norm(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _dual(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def _lmo(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def _kappa(self, shape: tuple[int, ...]) -> float: ...


def check_stacked(geometry: Any, shape: Sequence[int]) -> None:
    """Raise ValueError if a tensor may be a stack of matrices or a kernel, and the geometry does not say which."""
    if geometry.stacked is None and len(shape) == 3 and sum(size > 1 for size in shape) > 1:
        name = type(geometry).__name__
        raise ValueError(
            f"a tensor of shape {tuple(shape)} may be a stack of matrices, as of experts, or a kernel: build the "
            f"optimizer with from_model, or give its group geometry={name}(stacked=True), or False for a kernel"
        )


def _at_least_single(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALVES else x
