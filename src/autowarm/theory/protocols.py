"""What the theorems and their checks need to know of a function f, or of random functions f_ξ: write your own."""

from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from ..geometry import Geometry
from .constants import Smoothness


class Function(Protocol):
    """A function with a known minimum, of which Theorem 3 draws one at each step."""

    def gap_and_gradient(self, x: Tensor) -> tuple[float, Tensor]:
        """Return f(x) − f* and ∇f(x), of x's shape. Outside the domain the gap is infinite and the gradient unused."""


class _Known(Protocol):
    @property
    def geometry(self) -> Geometry: ...

    @property
    def K(self) -> Smoothness: ...

    @property
    def x_star(self) -> Tensor: ...

    def radius(self, x0: Tensor) -> float: ...


class Problem(Function, _Known, Protocol):
    """A star-convex f that satisfies Assumption 2, for `descend`, `check_theorem_1`, `check_theorem_2` and the pairs.

    Any object with these five members, or properties, is one. `CompositeProblem` is the package's own.

    Attributes:
        geometry: the norm of the steps, of K and of `radius`.
        K: the constants of Assumption 2 in that norm, for pairs with f(y) ≤ f(x).
        x_star: the minimiser x*, in float64.
        radius: x⁰ → Theorem 1's D, a bound on ‖x^t − x*‖: ‖x⁰ − x*‖ in ℓ2, otherwise the radius of {f ≤ f(x⁰)}.

    A ``point(gap, generator)``, a random x with that gap, spares `largest_smoothness_ratio` a bisection.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Frobenius
        >>> from autowarm.theory import Smoothness, check_theorem_1, descend, largest_smoothness_ratio, theorem_1_rate
        >>> class Quartic:  # f = ‖x‖⁴/4, whose curvature 3‖x‖² is at most 6√Δ: ρ = 1/2
        ...     geometry, K = Frobenius(), Smoothness(rho=0.5, K0=0, K1=0, K_rho=6)
        ...     x_star = torch.zeros(3, dtype=torch.float64)
        ...
        ...     def gap_and_gradient(self, x):
        ...         return float(x.norm()) ** 4 / 4, x.norm() ** 2 * x
        ...
        ...     def radius(self, x0):
        ...         return float(x0.norm())
        >>> f = Quartic()
        >>> largest_smoothness_ratio(f, torch.Generator().manual_seed(0)) <= 1  # no pair found that breaks K
        True
        >>> x0 = torch.ones(3, dtype=torch.float64)
        >>> check_theorem_1(descend(f, x0, lambda gap: theorem_1_rate(gap, f.K, f.radius(x0)), steps=50))
    """


class Family(_Known, Protocol):
    """Star-convex functions f_ξ with a common minimiser x*, for `descend` and `check_theorem_3`.

    `FiniteSum` is the package's own. Assumption "smoothness2_weak" must hold: ‖∇f_ξ(x)‖₂ ≤ K(Δ_ξ)·‖x − x*‖₂.

    Attributes:
        geometry: `Frobenius`: Theorem 3 is about ℓ2.
        K: the constants, common to all ξ.
        x_star: x*, in float64.
        radius: x⁰ → D = ‖x⁰ − x*‖₂.
    """

    def largest_gap(self, D: float) -> float:
        """Return M, a bound on Δ_ξ(x) over all ξ and ‖x − x*‖ ≤ D; infinite if there is none."""

    def draw(self, generator: torch.Generator | None) -> Function:
        """Draw f_ξ for a random ξ."""


_COMMON = ("geometry", "K", "x_star", "radius")
_PROBLEM, _FAMILY = (*_COMMON, "gap_and_gradient"), (*_COMMON, "largest_gap", "draw")


def is_family(problem: Problem | Family) -> TypeGuard[Family]:
    """Whether it is a `Family`, that is, whether it draws functions; TypeError names what either kind lacks."""
    drawn = hasattr(problem, "draw")
    if lacking := [name for name in (_FAMILY if drawn else _PROBLEM) if not hasattr(problem, name)]:
        kind = "family" if drawn else "problem"
        raise TypeError(
            f"{type(problem).__name__} is no {kind}, because it lacks {', '.join(lacking)}: "
            f"see autowarm.theory.{kind.capitalize()}"
        )
    return drawn
