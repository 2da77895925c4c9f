"""Checks every claim of the theorems at every step of a run.

`check_theorem_1`, …, take a `Run` made with any rate and raise `ClaimViolated` at the first step at which a claim of
that theorem fails. The checks can fail: multiply a rate by 100 to see it.

**Why pairs with f(y) ≤ f(x) suffice.** The proofs use Assumption 2 only in these places:

1. *The descent inequality* f(x + s·d) ≤ f(x) + s⟨∇f(x), d⟩ + s²·K(x)‖d‖²/2 for the step d = x^{t+1} − x^t. Its proof
   integrates ‖∇f(z) − ∇f(x)‖⋆ ≤ K(x)‖z − x‖ over z on the segment, so the pairs are (x, z), and f(z) ≤ f(x) must be
   shown. The paper does not show it; here is a proof. Let s̄ ≤ 1 be the largest s such that f ≤ f(x) on [x, x + s·d].
   The inequality holds up to s̄, and with the theorem's rate its right side is *strictly* below f(x) there:

   - Theorem 1: ⟨∇f, d⟩ = −η‖∇f‖⋆, Δ ≤ D‖∇f‖⋆ and Kη = Δ/D make it ≤ f(x) − s·η‖∇f‖⋆·(1 − s/2). Decay-only
     steps are shorter, so the same holds.
   - Theorem 2: ⟨∇f, d⟩ ≤ −ληΔ, ‖d‖ ≤ 2η and Kη = λΔ/8 make it ≤ f(x) − s·ληΔ·(1 − s/4).

   Since s̄ > 0 (d is a descent direction) and f is continuous, s̄ < 1 would contradict the choice of s̄. So s̄ = 1.
   The segment therefore never leaves {f ≤ f(x⁰)}. If f → ∞ at the edge of an open domain, such as the unit ball of a
   barrier, the segment stays inside. So neither theorem needs f to be defined on the whole space.
2. *Theorem 2* also bounds f from below on the segment from x^t to x*, which lies in {f ≤ f(x^t)} by star-convexity.
   (The theorem does not need this bound: see `autowarm.theory.theorem_2_rate`.)
3. *Lemma "boundedness"* and *Theorem 3* use the pair (x, x*), and f(x*) ≤ f(x).

**Boundedness.** Theorem 1 assumes ‖x^t − x*‖ ≤ D. In ℓ2 the lemma proves this for D = ‖x⁰ − x*‖₂. In other norms no
result does, but Δ never rises, so D can be the radius of {f ≤ f(x⁰)} if that is finite.

**What the checks assume.** The oracle is exact (an SVD, not Newton–Schulz), LMO(0) = 0, and a relative tolerance of
1e-9 in each inequality allows for rounding.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .constants import Array
from .families import FiniteSum
from .rates import theorem_1_bound, theorem_2_bound, theorem_3_bound, theorem_3_uniform_bound, weight_decay_limit
from .runs import Run

TOLERANCE = 1e-9


class ClaimViolated(AssertionError):
    """A claim of a theorem fails on a run.

    Attributes:
        theorem, claim: the theorem and its claim.
        step: the first t at which the claim fails, or the first horizon T of a bound.
        left, right: the two sides of the claim left ≤ right.
    """

    def __init__(self, theorem: str, claim: str, step: int, left: float, right: float) -> None:
        super().__init__(f"{theorem} claims {claim}: at step {step} the left is {left:.9g}, the right {right:.9g}")
        self.theorem, self.claim, self.step, self.left, self.right = theorem, claim, step, left, right


@dataclass(frozen=True)
class _Claim:
    # left ≤ right wherever `where` holds. Entry i is about step `first` + i.
    text: str
    left: Array
    right: Array | float
    first: int = 0
    where: npt.NDArray[np.bool_] | bool = True


def _require(theorem: str, *claims: _Claim) -> None:
    # Of all claims that fail, the one that fails at the earliest step: later ones may follow from it.
    violations = []
    for claim in claims:
        # Both sides (steps,); a constant bound is repeated.
        left, right = np.broadcast_arrays(claim.left, claim.right)
        with np.errstate(invalid="ignore"):  # a NaN on either side violates the claim
            holds = left <= right + TOLERANCE * np.abs(right)
        # The first step of this claim at which it fails
        broken = np.flatnonzero(~holds & claim.where)
        if broken.size:
            i = int(broken[0])
            violations.append((claim.first + i, claim.text, float(left[i]), float(right[i])))
    # A violation is (step, claim, left, right).
    if violations:
        step, text, left_value, right_value = min(violations, key=lambda violation: violation[0])
        raise ClaimViolated(theorem, text, step, left_value, right_value)


def _never_rise(run: Run) -> list[_Claim]:
    return [
        _Claim("Δ^{t+1} ≤ Δ^t", run.gaps[1:], run.gaps[:-1]),
        # It follows from the line above, as K never falls with the gap: a check of K itself.
        _Claim("K(x^{t+1}) ≤ K(x^t)", run.curvatures[1:], run.curvatures[:-1]),
        # Assumption 2 for the pair (x^t, x^{t+1}), which is one with f(y) ≤ f(x)
        _Claim("‖∇f(x^{t+1}) − ∇f(x^t)‖⋆ ≤ K(x^t)‖x^{t+1} − x^t‖", run.measured, run.curvatures[:-1]),
    ]


def _progress(run: Run, share: float, text: str) -> _Claim:
    # The proof's inequality for one step, which implies the bound.
    with np.errstate(over="ignore"):  # a wrong rate can make gaps of any size
        # Δ·(Δ/K) instead of Δ²/K, which would overflow sooner
        promised = run.gaps[:-1] - share * run.gaps[:-1] * (run.gaps[:-1] / run.curvatures[:-1])
    return _Claim(f"Δ^{{t+1}} ≤ Δ^t − {text}", run.gaps[1:], promised)


def _warm_up_then_decay(run: Run) -> list[_Claim]:
    # In the step that crosses Δ′ the rate may rise or fall.
    # before and after: η^0 … η^{T−2} and η^1 … η^{T−1}; gaps: Δ^0 … Δ^{T−1}, at which the rates were taken.
    peak = run.problem.K.peak_gap
    before, after, gaps = run.rates[:-1], run.rates[1:], run.gaps[:-1]
    return [
        _Claim("η^t ≤ η^{t+1} while Δ^{t+1} ≥ Δ′ (warm-up)", before, after, where=gaps[1:] >= peak),
        _Claim("η^{t+1} ≤ η^t once Δ^t ≤ Δ′ (decay)", after, before, where=gaps[:-1] <= peak),
    ]


def check_theorem_1(run: Run) -> None:
    """Check every claim of Theorem 1 at every step of a run with `theorem_1_rate` and D = ``run.D``.

    The claims: Δ and K never rise; K bounds the gradient's change along each step; ‖x^t − x*‖ ≤ D (in ℓ2 by Lemma
    "boundedness", otherwise by the level set); each step lowers Δ by at least Δ²/(2D²K); Δ^T is within
    `theorem_1_bound` for every T; the rate warms up above Δ′ and decays below it.

    Raises:
        ClaimViolated: a claim fails; the error is about the first such step.

    Example:
        >>> import torch
        >>> from autowarm.theory import catalogue, check_theorem_1, descend, theorem_1_rate
        >>> f = catalogue()["l2-quadratic"]
        >>> x0 = f.point(2.0, torch.Generator().manual_seed(0))
        >>> D = f.radius(x0)
        >>> check_theorem_1(descend(f, x0, lambda gap: theorem_1_rate(gap, f.K, D), steps=50))  # silence: all holds
        >>> check_theorem_1(descend(f, x0, lambda gap: 10 * theorem_1_rate(gap, f.K, D), steps=50))
        Traceback (most recent call last):
        autowarm.theory.verify.ClaimViolated: Theorem 1 claims Δ^{t+1} ≤ Δ^t: at step 0 the left is ..., the right 2
    """
    D = run.D
    # What the proof shows for each step comes before the bound, which follows from it.
    _require(
        "Theorem 1",
        *_never_rise(run),
        _Claim("‖x^t − x*‖ ≤ D", run.distances, D),
        # A run that starts at x* has D = 0, and no progress to make.
        _progress(run, 1 / (2 * D**2) if D > 0 else 0.0, "(Δ^t)²/(2D²K)"),
        _Claim("Δ^T ≤ 2D²ΣK/T²", run.gaps[1:], theorem_1_bound(run.curvatures[:-1], D), first=1),
        *_warm_up_then_decay(run),
    )


def check_decay_only(run: Run) -> None:
    """Check the claims for `decay_only_rate` in the discussion of Theorem 1: Δ never rises and Δ^T ≤ 2D²K(Δ⁰)/T.

    Raises:
        ClaimViolated: a claim fails; the error is about the first such step.

    Example:
        >>> import torch
        >>> from autowarm.theory import catalogue, check_decay_only, decay_only_rate, descend
        >>> f = catalogue()["linf-barrier"]
        >>> x0 = f.point(2.0, torch.Generator().manual_seed(0))
        >>> D = f.radius(x0)
        >>> check_decay_only(descend(f, x0, lambda gap: decay_only_rate(gap, f.K, D, gap0=2.0), steps=50))
    """
    # Theorem 1's bound, with K(Δ⁰) for every K(Δ^t)
    bound = theorem_1_bound(np.full(len(run.rates), run.problem.K(run.gaps[0])), run.D)
    _require(
        "The decay-only schedule",
        *_never_rise(run),
        _Claim("‖x^t − x*‖ ≤ D", run.distances, run.D),
        _Claim("Δ^T ≤ 2D²K(Δ⁰)/T", run.gaps[1:], bound, first=1),
    )


def check_theorem_2(run: Run) -> None:
    """Check every claim of Theorem 2 at every step of a run with `theorem_2_rate` and weight decay.

    The claims: Δ and K never rise; K bounds the gradient's change along each step; ‖x^t‖ ≤ 1/λ and λη ≤ 1; each step
    lowers Δ by at least λ²Δ²/(16K); Δ^T is within `theorem_2_bound` for every T; the rate
    warms up above Δ′ and decays below it.

    Raises:
        ClaimViolated: a claim fails; the error is about the first such step.
        ValueError: λ is outside (0, 1/max(‖x⁰‖, ‖x*‖)].

    Example:
        >>> import torch
        >>> from autowarm.theory import catalogue, check_theorem_2, descend, theorem_2_rate, weight_decay_limit
        >>> f = catalogue()["spectral-barrier"]
        >>> x0 = f.point(2.0, torch.Generator().manual_seed(0))
        >>> decay = weight_decay_limit(float(f.geometry.norm(x0)), float(f.geometry.norm(f.x_star)))
        >>> rate = lambda gap: theorem_2_rate(gap, f.K, decay)
        >>> check_theorem_2(descend(f, x0, rate, steps=50, weight_decay=decay))
    """
    # The λ of the run must be one that the theorem allows; the limit without λ_max is enough.
    lam = run.weight_decay
    limit = weight_decay_limit(run.norms[0], float(run.problem.geometry.norm(run.problem.x_star)))
    if not 0 < lam <= limit * (1 + TOLERANCE):
        raise ValueError(f"Theorem 2 needs a weight decay in (0, {limit}], got {lam}")
    # Entry T−1 needs K(x⁰), …, K(x^{T−1}); the curvature at x^T enters no bound.
    bound = theorem_2_bound(run.curvatures[:-1], lam)
    _require(
        "Theorem 2",
        *_never_rise(run),
        # The ball that the steps do not leave, and the step that keeps (1 − λη) from turning negative.
        _Claim("‖x^t‖ ≤ 1/λ", run.norms, 1 / lam),
        _Claim("λη^t ≤ 1", lam * run.rates, 1.0),
        _progress(run, lam**2 / 16, "λ²(Δ^t)²/(16K)"),
        _Claim("Δ^T ≤ 16ΣK/(λ²T²)", run.gaps[1:], bound, first=1),
        *_warm_up_then_decay(run),
    )


def check_theorem_3(*runs: Run) -> None:
    """Check every claim of Theorem 3 for runs on a `FiniteSum` with `theorem_1_rate` from one x⁰.

    The claims on every path: ‖x^{t+1} − x*‖² ≤ ‖x^t − x*‖² − (Δ_ξ/(D·K_ξ))² from the proof, hence ‖x^t − x*‖ ≤ D;
    Σ(Δ_ξ/K_ξ)² ≤ D⁴; and both bounds for every T. The claim about the mean over paths: the first bound as printed. Δ_ξ
    and the mean loss may rise.

    Raises:
        ClaimViolated: a claim fails; the error is about the first such step.
        ValueError: there are no runs, one is on a single problem, or they differ in length or D.

    Example:
        >>> import torch
        >>> from autowarm.theory import check_theorem_3, descend, regression_family, theorem_1_rate
        >>> seeds = [torch.Generator().manual_seed(seed) for seed in range(4)]
        >>> rows = torch.randn(5, 3, generator=seeds[0], dtype=torch.float64)
        >>> family = regression_family(rows, torch.zeros(3, dtype=torch.float64))
        >>> x0 = family.point(1.0, seeds[0])
        >>> rate = lambda gap: theorem_1_rate(gap, family.K, D=1.0)
        >>> check_theorem_3(*(descend(family, x0, rate, 50, generator=seed) for seed in seeds))
    """
    if not runs or len({(run.D, len(run.rates)) for run in runs}) > 1:
        raise ValueError("all runs must have one length and start from one x0, or equally far from x*")
    D = runs[0].D
    for run in runs:
        if not isinstance(run.problem, FiniteSum):
            raise ValueError("Theorem 3 is about a FiniteSum, and a run is on a single problem")
        # ‖x^t − x*‖² and the (Δ_ξ/K_ξ)² by which, over D², each step must lower it
        squares, gains = run.distances**2, (run.gaps[:-1] / run.curvatures[:-1]) ** 2
        # (1/T)·ΣΔ_ξ for every horizon T, and the bound by the largest gap within D
        T = np.arange(1, len(run.rates) + 1)
        means = np.cumsum(run.gaps[:-1]) / T
        uniform = theorem_3_uniform_bound(run.problem.K, D, run.problem.largest_gap(D), len(T))
        _require(
            "Theorem 3",
            _Claim("‖x^t − x*‖ ≤ D", run.distances, D),
            _Claim("‖x^{t+1} − x*‖² ≤ ‖x^t − x*‖² − (Δ_ξ/(DK_ξ))²", squares[1:] + gains / D**2, squares[:-1]),
            _Claim("Σ(Δ_ξ/K_ξ)² ≤ D⁴", np.cumsum(gains), D**4, first=1),
            _Claim("ΣΔ_ξ/T ≤ D²√(ΣK_ξ²)/T", means, theorem_3_bound(run.curvatures[:-1], D), first=1),
            _Claim("ΣΔ_ξ/T ≤ D²K(M)/√T", means, uniform, first=1),
        )
    # The printed form is about expectations: here the means over the paths.
    # (paths, steps)
    gaps, curvatures = (np.stack([getattr(run, name)[:-1] for run in runs]) for name in ("gaps", "curvatures"))
    means = np.cumsum(gaps.mean(axis=0)) / np.arange(1, gaps.shape[1] + 1)
    _require("Theorem 3", _Claim("ΣE[Δ_ξ]/T ≤ D²√(E[ΣK_ξ²])/T", means, theorem_3_bound(curvatures, D), first=1))
