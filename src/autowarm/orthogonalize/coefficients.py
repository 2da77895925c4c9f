"""The odd quintics p(x) = ax + bx³ + cx⁵ whose composition pushes singular values towards 1, and where they land.

A *schedule* is a sequence of (a, b, c), one for each iteration. Two are offered:

- Jordan's: one quintic five times, tuned for the steepest slope at zero; it settles in a band around 1 and not on 1.
- Polar Express (Amsel, Persson, Musco and Gower 2025): each quintic is the best one for the interval that the ones
  before it leave. The coefficients are worked out here, by an exchange algorithm, from two numbers: where the band
  starts, and how much room rounding gets.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

__all__ = ["JORDAN", "POLAR_EXPRESS_FLOOR", "Quintic", "band", "polar_express", "slope"]

Quintic = tuple[float, float, float]

# K. Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024).
JORDAN: Quintic = (3.4445, -4.7750, 2.0315)

# The smallest singular value, as a share of the largest, that so many Polar Express iterations still bring to 1: each
# leaves a band of about 1 ± 0.2 or better. Asking for less of a floor would widen the band for all the others.
POLAR_EXPRESS_FLOOR = {1: 0.2, 2: 0.05, 3: 0.014, 4: 3e-3, 5: 1e-3, 6: 2e-4, 7: 5e-5, 8: 1e-5}

# Room for rounding: a quintic expects singular values to exceed their bound by this much, because beyond its interval
# it takes off. Where in bfloat16 two iterations run on the Gram matrix (`iterate.plan`), they leave more: spectra that
# fall as 1/√i were 3 % above their bound after the second, and with room for 1 % five times it after the fourth.
_ROOM, _ROOM_AFTER_TWO = 1.01, 1.04


@cache
def polar_express(steps: int, floor: float | None = None) -> tuple[Quintic, ...]:
    """The Polar Express schedule for singular values in [floor, 1].

    Args:
        steps: its length, at least 1.
        floor: the smallest singular value it is made for, in (0, 1); by default `POLAR_EXPRESS_FLOOR`'s.

    Raises:
        ValueError: ``steps < 1`` or a floor outside (0, 1).

    Example:
        >>> from autowarm.orthogonalize.coefficients import band, polar_express
        >>> [round(x, 2) for x in band(polar_express(4), 3e-3, 1.0)]
        [0.78, 1.22]
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if floor is None:
        floor = POLAR_EXPRESS_FLOOR[min(steps, max(POLAR_EXPRESS_FLOOR))]
    if not 0 < floor < 1:
        raise ValueError(f"floor must be in (0, 1), got {floor}")
    low, high = floor, _ROOM
    schedule = []
    for made in range(1, steps + 1):
        quintic, error = _best_quintic(low, high)
        schedule.append(quintic)
        low, high = 1 - error, (1 + error) * (_ROOM if made % 2 else _ROOM_AFTER_TWO)
    return tuple(schedule)


def band(schedule: Sequence[Quintic], low: float, high: float, points: int = 100_001) -> tuple[float, float]:
    """Where the schedule takes [low, high], in exact arithmetic: the smallest and the largest image."""
    x = np.geomspace(low, high, points)
    for a, b, c in schedule:
        x = x * (a + x * x * (b + x * x * c))
    return float(x.min()), float(x.max())


def slope(schedule: Sequence[Quintic]) -> float:
    """How much the schedule enlarges singular values near zero."""
    return math.prod(a for a, _, _ in schedule)


def _best_quintic(low: float, high: float) -> tuple[Quintic, float]:
    """The odd quintic nearest to 1 on [low, high] in the largest error, and that error.

    Remez' exchange: three coefficients, so the error of the best one takes its largest size at four points with
    alternating signs. Two are the ends; the inner two are the quintic's own extrema, and are improved until they stay.
    """
    if high - low < 1e-6 * high:
        # On so short an interval Newton–Schulz of order five is the best to rounding.
        return (15 / 8, -10 / 8, 3 / 8), 0.0
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    inner = low + (high - low) * np.array([0.25, 0.75])
    for _ in range(100):
        x = np.array([low, *inner, high])
        a, b, c, error = np.linalg.solve(np.stack([x, x**3, x**5, signs], axis=1), np.ones(4))
        # p'(x) = a + 3bx² + 5cx⁴ = 0.
        root = math.sqrt(max(9 * b * b - 20 * a * c, 0.0))
        extrema = np.sqrt(np.array([(-3 * b - root) / (10 * c), (-3 * b + root) / (10 * c)]))
        settled = np.allclose(extrema, inner, rtol=1e-12, atol=0)
        inner = extrema
        if settled:
            break
    return (float(a), float(b), float(c)), abs(float(error))
