"""Numerical checks of a problem's constants: Assumption 2 on pairs of points."""

import math
from functools import partial

import torch
from torch import Tensor

from .protocols import Problem


def smoothness_ratio(problem: Problem, x: Tensor, y: Tensor) -> float:
    """Return ‖∇f(x) − ∇f(y)‖⋆/(K·‖x − y‖), with K at the larger of the two gaps; at most 1 if `problem.K` is right.

    This is Assumption 2 in the pair form. The ratio is 0 if x = y.

    Example:
        >>> import torch
        >>> from autowarm.geometry import Sign
        >>> from autowarm.theory import CompositeProblem, smoothness_ratio
        >>> f = CompositeProblem(Sign(), torch.zeros(2, dtype=torch.float64))  # ‖x‖₂²/2, so K = κ = 2 in ℓ∞
        >>> smoothness_ratio(f, torch.tensor([1.0, -1.0]).double(), torch.zeros(2).double())
        1.0
    """
    (gap_x, gradient_x), (gap_y, gradient_y) = problem.gap_and_gradient(x), problem.gap_and_gradient(y)
    distance = float(problem.geometry.norm(x - y))
    if distance == 0:
        return 0.0
    change = float(problem.geometry.dual(gradient_x - gradient_y))
    return change / (problem.K(max(gap_x, gap_y)) * distance)


def largest_smoothness_ratio(
    problem: Problem, generator: torch.Generator, *, starts: int = 20, climbs: int = 100
) -> float:
    """Search for a pair that violates the constants, by hill climbing on `smoothness_ratio` from random pairs.

    Args:
        generator: the source of all randomness.
        starts: rounds of random pairs to start from, far apart and near, at gaps from 10⁻³ to 10³, and with x*.
        climbs: random changes to try on the best pair.

    Returns:
        The largest ratio found. The true constants, as a share of `problem.K`, are at least this large.

    Example:
        >>> import torch
        >>> from autowarm.theory import catalogue, largest_smoothness_ratio
        >>> 0.1 < largest_smoothness_ratio(catalogue()["l2-quadratic"], torch.Generator().manual_seed(0)) <= 1
        True
    """

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def near(x: Tensor, share: float) -> Tensor:
        # Move by a share of the distance to x*, so that the problem's scale does not matter.
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return x + share * noise * (x - problem.x_star).norm() / noise.norm()

    point = getattr(problem, "point", partial(random_point, problem))
    best, pair = 0.0, (problem.x_star, problem.x_star)

    def offer(x: Tensor, y: Tensor) -> None:
        nonlocal best, pair
        if all(math.isfinite(problem.gap_and_gradient(end)[0]) for end in (x, y)):
            ratio = smoothness_ratio(problem, x, y)
            if not ratio <= best:
                best, pair = ratio, (x, y)

    for _ in range(starts):
        x = point(10 ** uniform(-3, 3), generator)
        offer(x, problem.x_star)
        offer(x, near(x, 10 ** uniform(-4, 0)))
        offer(x, point(10 ** uniform(-3, 3), generator))
        offer(x, problem.x_star + (1 - 10 ** uniform(-4, -1)) * (x - problem.x_star))
    for _ in range(climbs):
        x, y = pair
        share = 10 ** uniform(-4, 0)
        if uniform(0, 1) < 0.5:  # move both points together, or only one
            moved = near(x, share)
            offer(moved, y + (moved - x))
        else:
            offer(x, near(y, share))
    return best


def random_point(problem: Problem, gap: float, generator: torch.Generator) -> Tensor:
    """Draw an x with this gap, or just below it, by following a Gaussian direction from x*.

    A star-convex f grows without bound along it.
    """
    ray = torch.randn(problem.x_star.shape, generator=generator, dtype=problem.x_star.dtype)

    def below(s: float) -> bool:
        return problem.gap_and_gradient(problem.x_star + s * ray)[0] < gap

    high = 1.0
    while below(high):  # never far beyond the gap, where f might overflow
        high *= 2
    low = high / 2
    while low > 0 and not below(low):
        low /= 2
    while low < (middle := (low + high) / 2) < high:  # until they are neighbours
        low, high = (middle, high) if below(middle) else (low, middle)
    return problem.x_star + low * ray
