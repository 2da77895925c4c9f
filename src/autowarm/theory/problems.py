"""Star-convex functions with exactly known constants: f − f* = c·Φ(q(x)), in the ℓ2, ℓ∞ and spectral norm.

**Inner function** q(x) = Σ_i g((A·vec(x − x*))_i), a least-squares loss with ripples:

    g(t) = t²/2·(1 + ε·sin(ω·ln|t|)),    ε = θ/√(1+ω²),  0 ≤ θ < 1.

- g is star-convex. On a ray t = s·u this means t·g′ ≥ g, that is 1 + ε·sin + ε·ω·cos ≥ 0 (sine and cosine of
  ω·ln|t|), which holds because the sum of the two waves has amplitude ε·√(1+ω²) = θ < 1. Sums and linear maps
  preserve star-convexity, so q is star-convex too.
- g″ = 1 + ε·((1 − ω²/2)·sin + (3ω/2)·cos) for t ≠ 0. This wave has amplitude ε·√((1+ω²)(4+ω²))/2 = θ·√(4+ω²)/2. So
  |g″| ≤ ℓ := 1 + θ·√(4+ω²)/2, and g is convex iff θ·√(4+ω²) ≤ 2 (θ = 0 is plain least squares).
- ∇q = Aᵀg′(A·) is then ℓ·σ_max(A)²-Lipschitz in ℓ2. In a norm with κ = sup{‖u‖²_F : ‖u‖ ≤ 1} we have ‖z‖_F ≤
  √κ‖z‖ and ‖z‖⋆ ≤ √κ‖z‖_F, so **q is L-smooth with L = κ·ℓ·σ_max(A)²**, for all pairs. A = I, θ = 0 attains this
  constant in all three norms.
- q ≥ (1 − ε)/2·σ_min(A)²·‖x − x*‖²_F, which bounds its level sets.

**Outer function** Φ: convex and increasing, with Φ(0) = 0 and with Φ′ and Φ″ non-decreasing. It preserves
star-convexity, and the pair form of Assumption 2 follows with K = L·(Φ′(q) + 2q·Φ″(q)). Proof for q(y) ≤ q(x), with
p = √q:

    ‖∇f(x) − ∇f(y)‖⋆ ≤ Φ′(q(y))·‖∇q(x) − ∇q(y)‖⋆ + (Φ′(q(x)) − Φ′(q(y)))·‖∇q(x)‖⋆

The first term is at most Φ′(q(x))·L·‖x − y‖. For the second, q is L-smooth with minimum 0, so ‖∇q‖⋆² ≤ 2L·q. Hence p
is √(L/2)-Lipschitz, q(x) − q(y) ≤ 2p(x)·√(L/2)·‖x − y‖, and the second term is at most
Φ″(q)·2p√(L/2)·√(2L)p·‖x − y‖ = 2L·q·Φ″(q)·‖x − y‖. (So only q must be smooth everywhere; f need not be.) With the gap
v = Φ(q) and u = 1/(1−q), the outer functions give

- `LINEAR`, Φ = q: K = L.
- `barrier(p)`, Φ = (1−q)^{−p} − 1 on {q < 1}, p > 0: ρ = 1+2/p is any exponent above 1, and
  K/L = 2p(p+1)·u^{p+2} − p(2p+1)·u^{p+1} where u^{p+2} = (1+v)^ρ and u^{p+1} = (1+v)^{(1+ρ)/2} ≥ 1 + (1+ρ)v/2. With
  m = max(1, 2^{ρ−2}), the power mean for ρ ≥ 2 and subadditivity for ρ ≤ 2 give (1+s)^{ρ−1} ≤ m·(1 + s^{ρ−1}), whose
  integral from 0 to v is (1+v)^ρ ≤ 1 + m·(ρv + v^ρ). So K/L ≤ p + (p+1)(2m(p+2) − 2p − 1)·v + 2p(p+1)m·v^ρ, which
  for ρ ≤ 2 is p + 3(p+1)·v + 2p(p+1)·v^ρ. It is sharp as v → 0 and, for ρ ≤ 2, as v → ∞; for ρ > 2 the term in v^ρ
  is m times too large, because (1+v)^ρ then grows faster than v + v^ρ between the two ends.

A factor c > 0 turns K(Δ) into c·K(Δ/c). For (1−‖x‖₂²)⁻² − 1 (A = √2·I, so L = 2, and p = 2) this gives
K = 4 + 18Δ + 24Δ². The rounder 28·(1+Δ)² is also valid, but seven times too large at the minimum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from torch import Tensor

from ..geometry import Frobenius, Geometry, Sign, Spectral
from .constants import Smoothness


@dataclass(frozen=True)
class Outer:
    """An outer function: Φ, Φ′, the constants of Φ′ + 2q·Φ″ as a function of the gap Φ(q), and Φ's domain [0, edge)."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    K: Smoothness
    edge: float = math.inf


LINEAR = Outer(value=lambda q: q, slope=torch.ones_like, K=Smoothness(2.0, 1.0, 0.0, 0.0))


def barrier(power: float = 2.0) -> Outer:
    """Return the outer function Φ(q) = (1−q)^{−p} − 1, infinite at q = 1, with ρ = 1 + 2/p.

    Raises:
        ValueError: p is not positive and finite, or so small that the constants, which grow as 4^{1/p}, overflow.

    Example:
        >>> from autowarm.theory.problems import barrier
        >>> barrier(2.0).K
        Smoothness(rho=2.0, K0=2.0, K1=9.0, K_rho=12.0)
        >>> barrier(1.0).K
        Smoothness(rho=3.0, K0=1.0, K1=18.0, K_rho=8.0)
    """
    p = power
    if not (2 / 1000 < p < math.inf):
        raise ValueError(f"the barrier's power must be finite and above 0.002, so that ρ = 1 + 2/p < 1001; got {p}")
    rho = 1 + 2 / p
    # m of the power mean (1+s)^{ρ−1} ≤ m·(1 + s^{ρ−1}), by which the constants for ρ > 2 are too large.
    excess = max(1.0, 2 ** (rho - 2))
    return Outer(
        # Φ(q) = exp(−p·ln(1−q)) − 1, accurate for tiny q, and Φ′(q) = p·(1−q)^{−p−1}
        value=lambda q: torch.expm1(-p * torch.log1p(-q)),
        slope=lambda q: p * (1 - q) ** (-p - 1),
        # K/L ≤ p + (p+1)(2m(p+2) − 2p − 1)·v + 2p(p+1)m·v^ρ of the module's docstring, m = excess
        K=Smoothness(rho, p, (p + 1) * (2 * excess * (p + 2) - 2 * p - 1), 2 * p * (p + 1) * excess),
        edge=1.0,
    )


@dataclass(frozen=True, eq=False)
class CompositeProblem:
    """f − f* = c·Φ(q), as this module's docstring describes it. Outside its domain f is infinite.

    Args:
        geometry: the norm: `Frobenius` (ℓ2), `Sign` (ℓ∞) or `Spectral`, with a number as its radius.
        x_star: the minimiser x*, of any shape, in float64.
        outer: Φ.
        scale: c > 0, in units of the loss.
        features: A, of shape (rows, x_star.numel()); by default the identity.
        ripple: θ in [0, 1); f is not convex if θ·√(4+ω²) > 2.
        frequency: ω > 0.

    Raises:
        ValueError: a number is outside its range, or features have the wrong width.
        TypeError: the geometry is of another kind, for which the level sets' radius is not known, or x_star is not
            float64.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Frobenius
        >>> from autowarm.theory.problems import CompositeProblem, barrier
        >>> x_star = torch.zeros(3, dtype=torch.float64)
        >>> f = CompositeProblem(Frobenius(), x_star, barrier(), features=2**0.5 * torch.eye(3, dtype=torch.float64))
        >>> f.K.rho, round(f.K.K0, 9), round(f.K.K1, 9), round(f.K.K_rho, 9)
        (2.0, 4.0, 18.0, 24.0)
        >>> x = f.point(1.0, torch.Generator().manual_seed(0))  # where f(x) − f* = 1
        >>> round(f.gap(x), 9), round(f.radius(x) ** 2, 9) == round(1 - 0.5**0.5, 9)
        (1.0, True)
    """

    geometry: Geometry
    x_star: Tensor
    outer: Outer = LINEAR
    scale: float = 1.0
    features: Tensor | None = None
    ripple: float = 0.0
    frequency: float = 4.0

    def __post_init__(self) -> None:
        # The radius of a level set is known only where ‖z‖ ≤ ‖z‖_F, up to the geometry's radius.
        if not isinstance(self.geometry, (Frobenius, Sign, Spectral)) or isinstance(self.geometry.radius, str):
            raise TypeError(f"geometry must be Frobenius, Sign or Spectral with a numeric radius, got {self.geometry}")
        if self.x_star.dtype != torch.float64:
            raise TypeError(f"x_star must be float64 for the checks of inequalities, got {self.x_star.dtype}")
        if not (self.scale > 0 and self.frequency > 0 and 0 <= self.ripple < 1):
            raise ValueError(
                "needs scale > 0, frequency > 0 and 0 ≤ ripple < 1, "
                f"got {self.scale}, {self.frequency} and {self.ripple}"
            )
        if self.features is not None and self.features.shape[1:] != (self.x_star.numel(),):
            raise ValueError(
                f"features must have {self.x_star.numel()} columns, one per entry of x_star, "
                f"got shape {tuple(self.features.shape)}"
            )

    @cached_property
    def _singular_values(self) -> tuple[float, float]:
        if self.features is None:
            return 1.0, 1.0
        # With fewer rows than columns A has a kernel, and σ_min(A) is 0.
        s = torch.linalg.svdvals(self.features)
        return float(s[0]), float(s[-1]) if len(s) == self.x_star.numel() else 0.0

    @property
    def _epsilon(self) -> float:
        # ε, with which the two waves of t·g′ − g have the amplitude θ < 1
        return self.ripple / math.sqrt(1 + self.frequency**2)

    @property
    def convex(self) -> bool:
        """Whether q, and therefore f, is convex. If not, both are only star-convex."""
        # g″ ≥ 1 − θ·√(4+ω²)/2
        return self.ripple * math.sqrt(4 + self.frequency**2) <= 2

    @cached_property
    def L(self) -> float:
        """The smoothness of q in the geometry's norm, κ·ℓ·σ_max(A)²."""
        # ℓ = 1 + θ·√(4+ω²)/2, the bound on |g″|
        curvature = 1 + self.ripple * math.sqrt(4 + self.frequency**2) / 2
        return self.geometry.kappa(self.x_star.shape) * curvature * self._singular_values[0] ** 2

    @cached_property
    def K(self) -> Smoothness:
        """The constants of Assumption 2 in the pair form."""
        # c·Φ has the curvature c·L·K_Φ(Δ/c), whose term of degree ρ carries c^{1−ρ}.
        K, c = self.outer.K, self.scale
        return Smoothness(K.rho, self.L * c * K.K0, self.L * K.K1, self.L * c ** (1 - K.rho) * K.K_rho)

    def _inner(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # q and ∇q with respect to t = A·vec(x − x*).
        # t (rows,), or (x.numel(),) if A is the identity
        t = (x - self.x_star).reshape(-1)
        if self.features is not None:
            t = self.features @ t
        # Least squares: g(t) = t²/2 and g′(t) = t.
        if self.ripple == 0:
            return 0.5 * torch.linalg.vecdot(t, t), t
        # g and g′ of the ripples. The wave is bounded and multiplied by t², so any phase is right at t = 0.
        phase = self.frequency * torch.where(t == 0, 1.0, t).abs().log()
        wave = 1 + self._epsilon * phase.sin()
        # g′ = t·(1 + ε·sin) + t·εω/2·cos, by the product rule, as d(ω·ln|t|)/dt = ω/t
        slope = t * (wave + 0.5 * self._epsilon * self.frequency * phase.cos())
        return 0.5 * torch.linalg.vecdot(t * t, wave), slope

    def gap(self, x: Tensor) -> float:
        """Return Δ = f(x) − f*, accurate to rounding even if tiny."""
        # Φ of the inner function, and not a difference of two losses, which would cancel near x*
        q = self._inner(x)[0]
        return self.scale * float(self.outer.value(q)) if q < self.outer.edge else math.inf

    def gap_and_gradient(self, x: Tensor) -> tuple[float, Tensor]:
        """Return `gap` and ∇f(x), of x's shape, which is NaN outside the domain."""
        q, dq = self._inner(x)
        # Beyond the edge f is infinite and has no gradient.
        if not q < self.outer.edge:
            return math.inf, torch.full_like(x, math.nan)
        # Chain rule: ∇f = c·Φ′(q)·Aᵀg′(A·vec(x − x*)).
        if self.features is not None:
            dq = self.features.T @ dq
        return self.scale * float(self.outer.value(q)), (self.scale * self.outer.slope(q) * dq).reshape(x.shape)

    def point(self, gap: float, generator: torch.Generator) -> Tensor:
        """Draw a random x with f(x) − f* = gap, or just below, by following a Gaussian direction from x*."""
        ray = torch.randn(self.x_star.shape, generator=generator, dtype=self.x_star.dtype)

        def below(s: float) -> bool:
            return self.gap(self.x_star + s * ray) < gap

        # A star-convex f grows without bound along the ray: bracket the gap, never far beyond, where f might overflow.
        high = 1.0
        while below(high):
            high *= 2
        # At x* itself the gap is 0, so halving ends.
        low = high / 2
        while low > 0 and not below(low):
            low /= 2
        # Bisect until the ends are neighbouring floats.
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if below(middle) else (low, middle)
        return self.x_star + low * ray

    def distance(self, x: Tensor) -> float:
        """‖x − x*‖ in the geometry's norm."""
        return float(self.geometry.norm(x - self.x_star))

    def level_radius(self, x: Tensor) -> float:
        """Bound ‖y − x*‖ over {f(y) ≤ f(x)}. The bound is tight if θ = 0 and A = I, and infinite if A has a kernel."""
        smallest = self._singular_values[1]
        if smallest == 0:
            return math.inf
        # q ≥ (1 − ε)/2·σ_min²·‖x − x*‖²_F on the level set; the largest entry and the largest singular value are at
        # most the Frobenius norm.
        frobenius = math.sqrt(2 * float(self._inner(x)[0]) / (1 - self._epsilon)) / smallest
        return frobenius / self.geometry.radius_of(x.shape)

    def radius(self, x0: Tensor) -> float:
        """Return Theorem 1's D: ‖x⁰ − x*‖ in ℓ2 (Lemma "boundedness"), otherwise the radius of {f ≤ f(x⁰)}."""
        # In ℓ2 no step leads away from x*; in the other norms no step leaves the level set.
        return self.distance(x0) if isinstance(self.geometry, Frobenius) else self.level_radius(x0)


def catalogue() -> dict[str, CompositeProblem]:
    """Return one problem of each kind in each norm, by name: {l2, linf, spectral}-{quadratic, barrier, …}.

    The kinds quadratic (Kρ = 0), barrier (ρ = 2) and steep-barrier (ρ = 3) are convex; ripples (Kρ = 0) and
    rippled-barrier (ρ = 5/3) are not.

    Example:
        >>> from autowarm.theory.problems import catalogue
        >>> problems = catalogue()
        >>> len(problems), problems["spectral-barrier"].convex, problems["linf-rippled-barrier"].convex
        (15, True, False)
    """
    generator = torch.Generator().manual_seed(0)
    # Φ and θ of each kind; geometry and shape of x of each norm
    kinds: dict[str, tuple[Outer, float]] = {
        "quadratic": (LINEAR, 0.0),
        "barrier": (barrier(2.0), 0.0),
        "steep-barrier": (barrier(1.0), 0.0),
        "ripples": (LINEAR, 0.9),
        "rippled-barrier": (barrier(3.0), 0.9),
    }
    norms: dict[str, tuple[Geometry, tuple[int, ...]]] = {
        "l2": (Frobenius(), (4,)),
        "linf": (Sign(), (4,)),
        "spectral": (Spectral(), (2, 3)),
    }
    # 3 norms × 5 kinds; each draw of the generator belongs to one problem, in this order.
    problems = {}
    for (norm, (geometry, shape)), (kind, (outer, ripple)) in product(norms.items(), kinds.items()):
        # A well-conditioned A that no axis and no norm is aligned with.
        x_star = torch.randn(shape, generator=generator, dtype=torch.float64)
        mixing = torch.randn(x_star.numel(), x_star.numel(), generator=generator, dtype=torch.float64)
        features = torch.eye(x_star.numel(), dtype=torch.float64) + 0.1 * mixing
        problems[f"{norm}-{kind}"] = CompositeProblem(geometry, x_star, outer, features=features, ripple=ripple)
    return problems
