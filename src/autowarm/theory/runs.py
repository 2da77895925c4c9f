"""Runs the theorems' methods with exact oracles, exact gradients and any rate."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .constants import Array
from .families import Family
from .problems import Problem

__all__ = ["Run", "descend"]


@dataclass(frozen=True, eq=False)
class Run:
    """A recorded run of T steps. The arrays have T + 1 entries, for x⁰, …, x^T; `rates` has T.

    A run ends early if x leaves the domain, where the gap is infinite.

    Attributes:
        gaps: Δ^t; for a `Family`, the gap Δ_ξ^t of the f_ξ drawn at t.
        curvatures: K(Δ^t).
        rates: η^t.
        norms: ‖x^t‖.
        distances: ‖x^t − x*‖.
        D: the problem's radius from x⁰.
        weight_decay: λ.
        x: x^T.
    """

    problem: Problem | Family
    gaps: Array
    curvatures: Array
    rates: Array
    norms: Array
    distances: Array
    D: float
    weight_decay: float
    x: Tensor


def descend(
    problem: Problem | Family,
    x0: Tensor,
    rate: Callable[[float], float | Array],
    steps: int,
    *,
    weight_decay: float = 0.0,
    generator: torch.Generator | None = None,
) -> Run:
    """Run x^{t+1} = (1 − λη)x^t + η·LMO(∇f(x^t)) with η = rate(Δ^t); on a `Family`, with the f_ξ drawn at t as f.

    Args:
        problem: the problem to minimise.
        x0: x⁰, inside the domain.
        rate: the rate as a function of the gap.
        steps: T ≥ 1.
        weight_decay: λ ≥ 0.
        generator: random generator for the draws from a `Family`.

    Raises:
        ValueError: steps < 1, or f(x⁰) is infinite.

    Example:
        >>> import torch
        >>> from autowarm.theory import catalogue, descend, theorem_1_rate
        >>> f = catalogue()["spectral-barrier"]
        >>> x0 = f.point(5.0, torch.Generator().manual_seed(0))
        >>> D = f.radius(x0)
        >>> run = descend(f, x0, lambda gap: theorem_1_rate(gap, f.K, D), steps=50)
        >>> bool(run.gaps[-1] < run.gaps[0])
        True
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    geometry, K, x = problem.geometry, problem.K, x0.clone()
    if not math.isfinite(problem.gap(x)):
        raise ValueError("x0 is outside the domain: f(x0) is infinite")
    D = problem.radius(x0)
    gaps: list[float] = []
    rates: list[float] = []
    norms: list[float] = []
    distances: list[float] = []
    for t in range(steps + 1):
        f = problem.draw(generator)
        gap, gradient = f.gap_and_gradient(x)
        gaps.append(gap)
        norms.append(float(geometry.norm(x)))
        distances.append(problem.distance(x))
        if t == steps or not math.isfinite(gap):
            break
        rates.append(float(rate(gap)))
        x = (1 - weight_decay * rates[-1]) * x + rates[-1] * geometry.lmo(gradient)
    curvatures = [K(gap) if math.isfinite(gap) else math.inf for gap in gaps]
    return Run(
        problem,
        gaps=np.array(gaps),
        curvatures=np.array(curvatures),
        rates=np.array(rates),
        norms=np.array(norms),
        distances=np.array(distances),
        D=D,
        weight_decay=weight_decay,
        x=x,
    )
