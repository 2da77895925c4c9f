"""Problems and families that inherit nothing from the package."""

import math

import numpy as np
import pytest
import torch

from autowarm.geometry import Frobenius, Sign
from autowarm.theory import (
    ClaimViolated,
    Smoothness,
    check_decay_only,
    check_theorem_1,
    check_theorem_2,
    check_theorem_3,
    decay_only_rate,
    descend,
    largest_smoothness_ratio,
    smoothness_ratio,
    theorem_1_rate,
    theorem_2_rate,
    theorem_3_rate,
    weight_decay_limit,
)
from tests.theory.theory_strategies import generator


class Cosh:
    """f = Σ(cosh(x_i) − 1) in ℓ∞, where its Hessian has the norm Σcosh(x_i) = d + Δ."""

    geometry = Sign()
    x_star = torch.zeros(3, dtype=torch.float64)

    def __init__(self, factor=1.0):
        self.K = Smoothness(1.0, 3.0 * factor, factor, 0.0)

    def gap_and_gradient(self, x):
        return float((2 * torch.sinh(x / 2) ** 2).sum()), torch.sinh(x)

    def radius(self, x0):
        return math.acosh(1 + self.gap_and_gradient(x0)[0])  # of the level set, along an axis


class Line:
    """f_ξ = ⟨a, x − x*⟩²/2."""

    def __init__(self, a, x_star):
        self.a, self.x_star = a, x_star

    def gap_and_gradient(self, x):
        t = self.a @ (x - self.x_star)
        return float(t**2 / 2), t * self.a


class Lines:
    """A `Line` for every a on the unit circle: no finite sum."""

    geometry, K = Frobenius(), Smoothness(2.0, 1.0, 0.0, 0.0)
    x_star = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def radius(self, x0):
        return float((x0 - self.x_star).norm())

    def largest_gap(self, D):
        return D**2 / 2

    def draw(self, generator):
        angle = 2 * math.pi * float(torch.rand((), generator=generator))
        return Line(torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64), self.x_star)


X0 = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)


def test_theorems_1_and_2_on_a_function_of_ones_own():
    f = Cosh()
    D, gap0 = f.radius(X0), f.gap_and_gradient(X0)[0]
    run = descend(f, X0, lambda gap: theorem_1_rate(gap, f.K, D), 200)
    check_theorem_1(run)
    assert run.problem is f
    assert run.distances[0] == 2.0
    check_decay_only(descend(f, X0, lambda gap: decay_only_rate(gap, f.K, D, gap0), 100))
    lam = weight_decay_limit(2.0, 0.0)
    check_theorem_2(descend(f, X0, lambda gap: theorem_2_rate(gap, f.K, lam), 100, weight_decay=lam))


def test_constants_of_ones_own_are_searched():
    assert 0.9 < largest_smoothness_ratio(Cosh(), generator(), starts=60, climbs=300) <= 1 + 1e-9
    assert smoothness_ratio(Cosh(), X0, Cosh.x_star) <= 1
    assert largest_smoothness_ratio(Cosh(0.5), generator()) > 1.2
    f = Cosh(0.05)
    with pytest.raises(ClaimViolated):
        check_theorem_1(descend(f, X0, lambda gap: theorem_1_rate(gap, f.K, f.radius(X0)), 50))


def test_theorem_3_on_a_family_of_ones_own():
    family = Lines()
    x0 = family.x_star + torch.tensor([3.0, 4.0], dtype=torch.float64)
    rate = lambda gap: theorem_3_rate(gap, family.K, 5.0)  # noqa: E731
    runs = [descend(family, x0, rate, 100, generator=generator(seed)) for seed in range(3)]
    check_theorem_3(*runs)
    assert len({run.gaps[0] for run in runs}) == 3
    np.testing.assert_allclose([run.distances[0] for run in runs], 5.0)
    with pytest.raises(ClaimViolated):
        check_theorem_3(descend(family, x0, lambda gap: 5 * rate(gap), 100, generator=generator()))


def test_what_is_lacking_is_named():
    class Half:
        geometry, K, x_star = Frobenius(), Smoothness(2.0, 1.0, 0.0, 0.0), X0

    with pytest.raises(TypeError, match=r"Half is no problem, because it lacks radius, gap_and_gradient: see"):
        descend(Half(), X0, lambda gap: 0.1, 5)
    Half.draw = lambda self, generator: Cosh()
    with pytest.raises(TypeError, match=r"Half is no family, because it lacks radius, largest_gap: see .*\.Family"):
        descend(Half(), X0, lambda gap: 0.1, 5)
