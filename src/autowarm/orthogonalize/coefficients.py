"""Odd quintics p(x) = ax + bx³ + cx⁵ that together push singular values towards 1, and the intervals that they reach.

A *schedule* is a sequence of (a, b, c), one for each iteration. There are two:

- Jordan's: the same quintic five times, tuned for the steepest slope at zero. Singular values end in a band around 1
  but do not converge to 1.
- Polar Express (Amsel, Persson, Musco and Gower 2025): each quintic is the best one for the interval that the quintics
  before it leave. This module computes the coefficients with an exchange algorithm, from two numbers: the smallest
  singular value to expect, and the room to leave for rounding.
"""

import math
from functools import cache
from typing import Literal, get_args

import numpy as np

Quintic = tuple[float, float, float]

Method = Literal["svd", "newton-schulz", "polar-express"]
METHODS: tuple[Method, ...] = get_args(Method)
_USUAL_STEPS: dict[Method, int] = {"svd": 1, "newton-schulz": 5, "polar-express": 4}

# K. Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024).
JORDAN: Quintic = (3.4445, -4.7750, 2.0315)

# For each number of Polar Express iterations, the smallest singular value, as a share of the largest, that they bring
# near 1: into a band of about 1 ± 0.2 or better. A smaller floor would widen the band for all singular values.
POLAR_EXPRESS_FLOOR = {1: 0.2, 2: 0.05, 3: 0.014, 4: 3e-3, 5: 1e-3, 6: 2e-4, 7: 5e-5, 8: 1e-5}

# Room for rounding. A quintic grows fast beyond its interval, where an excess of 1 % becomes one of 13 %, which the
# next quintic enlarges again. So each is made for singular values that exceed their bound by this factor. The excess
# comes from rounding the Gram matrix R. If its largest eigenvalue is 1, the error E may reach u = 2⁻⁸ in bfloat16. It
# moves a + bλ + cλ² by (b + 2cλ)E, which matters at a quintic's inner peak (λ = 0.14): there by at most 1.5 %.
_ROOM_FIRST, _ROOM = 1.01, 1.02


def checked_steps(method: Method, steps: int | None) -> int:
    """Return how many iterations to make; ValueError if the method is unknown or ``steps < 1``."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: use one of {METHODS}")
    if steps is None:
        return _USUAL_STEPS[method]
    if not hasattr(steps, "__index__") or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
    return steps


def schedule_of(method: Method, steps: int | None = None) -> tuple[Quintic, ...]:
    """Return the quintics of a method; by default as many as are usual."""
    steps = checked_steps(method, steps)
    return polar_express(steps) if method == "polar-express" else (JORDAN,) * steps


@cache
def polar_express(steps: int) -> tuple[Quintic, ...]:
    """Return the Polar Express schedule for singular values from `POLAR_EXPRESS_FLOOR` to 1."""
    low, high = POLAR_EXPRESS_FLOOR[min(steps, max(POLAR_EXPRESS_FLOOR))], _ROOM_FIRST
    schedule = []
    for _ in range(steps):
        quintic, error = _best_quintic(low, high)
        schedule.append(quintic)
        low, high = 1 - error, (1 + error) * _ROOM
    return tuple(schedule)


def _best_quintic(low: float, high: float) -> tuple[Quintic, float]:
    """Return the odd quintic with the smallest maximal distance from 1 on [low, high], and that distance.

    This is the Remez exchange. The quintic has three coefficients, so the best one takes its maximal error at four
    points, with alternating signs. Two are the ends of the interval. The other two are the quintic's extrema; each
    round moves them to the extrema of the current quintic, until they no longer change.
    """
    if high - low < 1e-6 * high:
        # On such a short interval the Newton–Schulz quintic is the best one up to rounding.
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
