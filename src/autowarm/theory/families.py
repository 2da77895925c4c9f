"""Stochastic problems for Theorem 3: star-convex functions f_ξ with a common minimiser."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..geometry import Frobenius, Geometry
from .constants import Smoothness
from .problems import LINEAR, CompositeProblem, Outer


@dataclass(frozen=True, eq=False)
class FiniteSum:
    """f = mean of finitely many star-convex f_ξ with a common minimiser (the paper's interpolation).

    Theorem 3's weak smoothness (Assumption "smoothness2_weak"), ‖∇f_ξ(x)‖ ≤ K(Δ_ξ)·‖x − x*‖, is the pair form for
    (x, x*), and holds for all ξ with the largest L among them. Theorem 3 keeps every path within D = ‖x⁰ − x*‖₂ of x*,
    so each f_ξ need only be finite there.

    Args:
        components: the f_ξ, in the Euclidean norm, all with the same x*, Φ and c.

    Raises:
        ValueError: there are no components, they differ in x*, Φ or c, or one is in another norm.

    Example:
        >>> import torch
        >>> from autowarm.theory import catalogue, FiniteSum
        >>> f = catalogue()["l2-ripples"]
        >>> family = FiniteSum([f, f])
        >>> family.gap(family.point(1.0, torch.Generator().manual_seed(0))) > family.gap(family.x_star)
        True
    """

    components: Sequence[CompositeProblem]

    def __post_init__(self) -> None:
        # One norm, one x*, one Φ and one c, so that the largest L among the f_ξ serves all of them.
        first = self.components[0] if self.components else None
        if first is None or not all(
            isinstance(f.geometry, Frobenius)
            and f.geometry == first.geometry
            and torch.equal(f.x_star, first.x_star)
            and (f.outer, f.scale) == (first.outer, first.scale)
            for f in self.components
        ):
            raise ValueError("a family needs Euclidean problems that share x_star, outer and scale")

    @property
    def _steepest(self) -> CompositeProblem:
        # K grows with L, so the largest L among the f_ξ gives constants that hold for all.
        return max(self.components, key=lambda f: f.L)

    @property
    def K(self) -> Smoothness:
        """The constants of the weak smoothness, common to all ξ."""
        return self._steepest.K

    @property
    def geometry(self) -> Geometry:
        """ℓ2."""
        return self.components[0].geometry

    @property
    def x_star(self) -> Tensor:
        """The shared minimiser."""
        return self.components[0].x_star

    def gap(self, x: Tensor) -> float:
        """f(x) − f* of the mean."""
        # The minimiser is common to all, so f* is the mean of the f_ξ*, and the gap the mean of their gaps.
        return sum(f.gap(x) for f in self.components) / len(self.components)

    def largest_gap(self, D: float) -> float:
        """M of Theorem 3, a bound on f_ξ(x) − f_ξ* over all ξ and ‖x − x*‖ ≤ D, from q_ξ ≤ L·D²/2; may be infinite."""
        f = self._steepest
        # q is L-smooth with minimum 0 at x*. The steepest f_ξ bounds all, because they share Φ and c.
        q = f.L * D**2 / 2
        # Beyond the edge of Φ there is no bound.
        return f.scale * float(f.outer.value(torch.tensor(q, dtype=torch.float64))) if q < f.outer.edge else math.inf

    def radius(self, x0: Tensor) -> float:
        """D = ‖x⁰ − x*‖₂.

        Raises:
            ValueError: some f_ξ may be infinite within D of x*, where a path may go.
        """
        # The distance is the same for every f_ξ. A finite M means that the ball of radius D lies in all domains.
        D = self.components[0].distance(x0)
        if math.isinf(self.largest_gap(D)):
            raise ValueError(f"x0 is {D} from x*, and some f_ξ is infinite within that distance; start nearer")
        return D

    def point(self, D: float, generator: torch.Generator) -> Tensor:
        """Draw a random x with ‖x − x*‖₂ = D."""
        # A Gaussian direction is uniform on the sphere.
        ray = torch.randn(self.x_star.shape, generator=generator, dtype=torch.float64)
        return self.x_star + ray * (D / float(self.geometry.norm(ray)))

    def draw(self, generator: torch.Generator | None = None) -> CompositeProblem:
        """Draw f_ξ for a random ξ."""
        # ξ is uniform over the components.
        return self.components[int(torch.randint(len(self.components), (), generator=generator))]


def regression_family(
    rows: Tensor,
    x_star: Tensor,
    outer: Outer = LINEAR,
    *,
    scale: float = 1.0,
    ripple: float = 0.0,
    frequency: float = 4.0,
) -> FiniteSum:
    """Return a regression that x* fits exactly: f_ξ(x) = c·Φ(g(⟨a_ξ, x − x*⟩)) for each row a_ξ.

    Example:
        >>> import torch
        >>> from autowarm.theory import regression_family
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
        >>> family = regression_family(rows, torch.zeros(2, dtype=torch.float64))
        >>> family.K.K0, family.gap(torch.ones(2, dtype=torch.float64))
        (4.0, 1.25)
    """
    # Each f_ξ sees one row, so A is (1, n): its kernel is no obstacle, as Theorem 3 needs no level set.
    components = [
        CompositeProblem(Frobenius(), x_star, outer, scale, features=row[None], ripple=ripple, frequency=frequency)
        for row in rows
    ]
    return FiniteSum(components)
