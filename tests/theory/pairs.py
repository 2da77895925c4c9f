"""A search for pairs of points that break a problem's constants: Assumption 2."""

import math

import torch
from torch import Tensor

from autowarm.theory import CompositeProblem


def smoothness_ratio(problem: CompositeProblem, x: Tensor, y: Tensor) -> float:
    """Return ‖∇f(x) − ∇f(y)‖⋆/(K·‖x − y‖), with K at the larger of the two gaps; at most 1 if `problem.K` is right.

    This is Assumption 2 in the pair form. The ratio is 0 if x = y.
    """
    (gap_x, gradient_x), (gap_y, gradient_y) = problem.gap_and_gradient(x), problem.gap_and_gradient(y)
    distance = float(problem.geometry.norm(x - y))
    if distance == 0:
        return 0.0
    change = float(problem.geometry.dual(gradient_x - gradient_y))
    return change / (problem.K(max(gap_x, gap_y)) * distance)


def largest_smoothness_ratio(
    problem: CompositeProblem, generator: torch.Generator, *, starts: int = 20, climbs: int = 100
) -> float:
    """Search for a pair that violates the constants, by hill climbing on `smoothness_ratio` from random pairs.

    Args:
        generator: the source of all randomness.
        starts: rounds of random pairs to start from, far apart and near, at gaps from 10⁻³ to 10³, and with x*.
        climbs: random changes to try on the best pair.

    Returns:
        The largest ratio found. The true constants, as a share of `problem.K`, are at least this large.
    """

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def near(x: Tensor, share: float) -> Tensor:
        # Move by a share of the distance to x*, so that the problem's scale does not matter.
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return x + share * noise * (x - problem.x_star).norm() / noise.norm()

    best, pair = 0.0, (problem.x_star, problem.x_star)

    def offer(x: Tensor, y: Tensor) -> None:
        nonlocal best, pair
        if all(math.isfinite(problem.gap_and_gradient(end)[0]) for end in (x, y)):
            ratio = smoothness_ratio(problem, x, y)
            if not ratio <= best:
                best, pair = ratio, (x, y)

    for _ in range(starts):
        x = problem.point(10 ** uniform(-3, 3), generator)
        offer(x, problem.x_star)
        offer(x, near(x, 10 ** uniform(-4, 0)))
        offer(x, problem.point(10 ** uniform(-3, 3), generator))
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
