"""The authors' normSGD, as a trajectory written from its formulas in plain Python.

The problem is f(w) = ½Σ aᵢ(wᵢ − cᵢ)² in three dimensions, so a gradient is a(w − c). Trajectories with one sign or
option changed must differ from the optimizer's: otherwise this one would hold nothing.
"""

import math
from collections.abc import Callable

import pytest
import torch

from autowarm import NormSGD

STEPS = 30
A, C, START = (1.0, 3.0, 0.5), (0.4, -1.0, 2.0), (1.5, 0.7, -0.9)
LR, BETA, DECAY = 0.3, 0.9, 0.1

Vector = list[float]


def gradient(w: Vector) -> Vector:
    return [a * (x - c) for a, x, c in zip(A, w, C, strict=True)]


def rate(step: int) -> float:
    """A rate that changes, as under a schedule."""
    return LR * (step + 1) / STEPS


def trajectory(make: Callable[..., torch.optim.Optimizer], dtype: torch.dtype = torch.float64) -> list[Vector]:
    """The points that an optimizer visits."""
    w = torch.nn.Parameter(torch.tensor(START, dtype=dtype))
    optimizer = make([w])
    points = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        w.grad = torch.tensor(gradient(w.tolist()), dtype=dtype)
        optimizer.step()
        points.append(w.tolist())
    return points


def distance(one: list[Vector], other: list[Vector]) -> float:
    return max(math.dist(p, q) for p, q in zip(one, other, strict=True))


def norm_sgd(from_weights: bool, sign: float = 1.0, nesterov: bool = True) -> list[Vector]:
    """Decay, then b ← βb + g, which starts as a copy of the decayed weights or at 0, then a step along g + βb."""
    w, b, points = list(START), None, []
    for step in range(STEPS):
        g, eta = gradient(w), rate(step)
        w = [(1 - eta * DECAY) * x for x in w]
        if b is None:
            b = [sign * x for x in w] if from_weights else [0.0] * len(w)
        b = [BETA * m + d for m, d in zip(b, g, strict=True)]
        way = [d + sign * BETA * m for m, d in zip(b, g, strict=True)] if nesterov else b
        length = math.hypot(*way)
        w = [x - eta * s / length for x, s in zip(w, way, strict=True)]
        points.append(w)
    return points


@pytest.mark.parametrize("from_weights", [False, True])
def test_normsgd_with_nesterov_and_either_start(from_weights):
    init = "weights" if from_weights else "zeros"
    found = trajectory(
        lambda ps: NormSGD(ps, lr=LR, momentum=BETA, nesterov=True, weight_decay=DECAY, momentum_init=init)
    )
    assert distance(found, norm_sgd(from_weights)) < 1e-12
    assert distance(found, norm_sgd(from_weights, sign=-1.0)) > 1e-2
    assert distance(found, norm_sgd(not from_weights)) > 1e-2
    assert distance(found, norm_sgd(from_weights, nesterov=False)) > 1e-2
