"""Runs the theorems' methods with exact oracles, exact gradients and any rate."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .constants import Array
from .families import FiniteSum
from .problems import CompositeProblem


@dataclass(frozen=True, eq=False)
class Run:
    """A recorded run of T steps. The arrays have T + 1 entries, for x⁰, …, x^T; `rates` has T.

    A run ends early if x leaves the domain, where the gap is infinite.

    Attributes:
        gaps: Δ^t; for a `FiniteSum`, the gap Δ_ξ^t of the f_ξ drawn at t.
        curvatures: K(Δ^t).
        measured: ‖∇f(x^{t+1}) − ∇f(x^t)‖⋆/‖x^{t+1} − x^t‖, which K(Δ^t) bounds; T entries, 0 for a `FiniteSum`.
        rates: η^t.
        norms: ‖x^t‖.
        distances: ‖x^t − x*‖.
        D: the problem's radius from x⁰.
        weight_decay: λ.
        x: x^T.
    """

    problem: CompositeProblem | FiniteSum
    gaps: Array
    curvatures: Array
    measured: Array
    rates: Array
    norms: Array
    distances: Array
    D: float
    weight_decay: float
    x: Tensor


def descend(
    problem: CompositeProblem | FiniteSum,
    x0: Tensor,
    rate: Callable[..., float | Array],
    steps: int,
    *,
    weight_decay: float = 0.0,
    generator: torch.Generator | None = None,
) -> Run:
    """Run x^{t+1} = (1 − λη)x^t + η·LMO(∇f(x^t)) with η = rate(Δ^t); on a `FiniteSum`, with the f_ξ drawn at t as f.

    Args:
        problem: f, or the family of the f_ξ.
        x0: x⁰, inside the domain.
        rate: the rate as a function of the gap.
        steps: T ≥ 1.
        weight_decay: λ ≥ 0.
        generator: random generator for the draws of ξ.

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
    # D is fixed by x⁰: the theorems' rates keep every later iterate within it.
    geometry, K, x_star, x = problem.geometry, problem.K, problem.x_star, x0.clone()
    D = problem.radius(x0)
    # What is known before step t, T + 1 entries; and what step t does, T entries.
    states, rates, measured, before = [], [], [], (x, x)
    # One pass more than steps: it records x^T and makes no step.
    for t in range(steps + 1):
        # f(x^t) and its gradient, exact; of the family, those of the f_ξ that Theorem 3 draws at t.
        f = problem.draw(generator) if isinstance(problem, FiniteSum) else problem
        gap, gradient = f.gap_and_gradient(x)
        finite = math.isfinite(gap)
        if t == 0 and not finite:
            raise ValueError("x0 is outside the domain: f(x0) is infinite")
        # A step that leaves the domain is recorded, so that the checks see it, and ends the run.
        curvature = K(gap) if finite else math.inf
        states.append((gap, curvature, float(geometry.norm(x)), float(geometry.norm(x - x_star))))
        if t > 0:
            # Assumption 2 along the step from x^{t−1}, in the geometry's norms.
            moved = float(geometry.norm(x - before[0])) if f is problem else 0.0  # gradients of two f_ξ say nothing
            measured.append(float(geometry.dual(gradient - before[1])) / moved if moved > 0 else 0.0)
        if t == steps or not finite:
            break
        # x ← (1 − λη)x + η·LMO(∇f)
        before = x, gradient
        # The rate sees the gap alone, as in the theorems.
        rates.append(float(rate(gap)))
        x = (1 - weight_decay * rates[-1]) * x + rates[-1] * geometry.lmo(gradient)
    # states (T + 1, 4): one row for each x^t
    gaps, curvatures, norms, distances = np.array(states).T
    return Run(problem, gaps, curvatures, np.array(measured), np.array(rates), norms, distances, D, weight_decay, x)
