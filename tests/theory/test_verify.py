import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autowarm.geometry import Frobenius, Sign, Spectral
from autowarm.theory import (
    ClaimViolated,
    CompositeProblem,
    catalogue,
    check_decay_only,
    check_theorem_1,
    check_theorem_2,
    check_theorem_3,
    decay_only_rate,
    descend,
    regression_family,
    theorem_1_rate,
    theorem_2_rate,
    weight_decay_limit,
)
from tests.theory.theory_strategies import domain_radius, families, gaps, generator, problems, seeds

STEPS = 30


def run_theorem_1(f, x0, steps=STEPS, factor=1.0):
    D = f.radius(x0)
    return descend(f, x0, lambda gap: factor * theorem_1_rate(gap, f.K, D), steps)


def run_theorem_2(f, x0, steps=STEPS, factor=1.0, share=1.0):
    lam = share * weight_decay_limit(float(f.geometry.norm(x0)), float(f.geometry.norm(f.x_star)))
    rate = lambda gap: factor * theorem_2_rate(gap, f.K, lam)  # noqa: E731
    return descend(f, x0, rate, steps, weight_decay=lam)


def run_theorem_3(family, x0, seed, steps=STEPS, factor=1.0):
    D = family.radius(x0)
    rate = lambda gap: factor * theorem_1_rate(gap, family.K, D)  # noqa: E731
    return descend(family, x0, rate, steps, generator=generator(seed))


# The theorems hold


@settings(max_examples=25)
@given(f=problems(), gap=gaps, seed=seeds)
def test_theorem_1_and_the_decay_only_schedule(f, gap, seed):
    x0 = f.point(gap, generator(seed))
    run = run_theorem_1(f, x0)
    check_theorem_1(run)
    assert run.gaps[-1] < run.gaps[0]
    D = f.radius(x0)
    check_decay_only(descend(f, x0, lambda now: decay_only_rate(now, f.K, D, f.gap(x0)), STEPS))


@settings(max_examples=25)
@given(f=problems(), gap=gaps, seed=seeds, share=st.floats(0.05, 1.0))
def test_theorem_2(f, gap, seed, share):
    run = run_theorem_2(f, f.point(gap, generator(seed)), share=share)
    check_theorem_2(run)
    assert run.gaps[-1] < run.gaps[0]


@settings(max_examples=30)
@given(family=families(), share=st.floats(0.05, 0.99), seed=seeds)
def test_theorem_3(family, share, seed):
    x0 = family.point(share * domain_radius(family), generator(seed))
    check_theorem_3(*(run_theorem_3(family, x0, seed + path) for path in range(3)))


# The update


@pytest.mark.parametrize(
    ("geometry", "direction"),
    [
        (Frobenius(), lambda g: -g / g.square().sum().sqrt()),
        (Sign(0.5), lambda g: -0.5 * g.sign()),
        (Spectral(), lambda g: -(lambda u, s, vh: u @ vh)(*torch.linalg.svd(g))),
    ],
    ids=["l2", "linf", "spectral"],
)
def test_descend_is_the_update_of_the_paper(geometry, direction):
    f = CompositeProblem(geometry, torch.ones(2, 2, dtype=torch.float64), ripple=0.5)
    x = x0 = f.point(2.0, generator())
    run = descend(f, x0, lambda gap: 0.1 * gap, 3, weight_decay=0.2)
    for t in range(3):
        eta = 0.1 * f.gap(x)
        assert run.gaps[t] == pytest.approx(f.gap(x))
        assert run.rates[t] == pytest.approx(eta)
        assert run.norms[t] == pytest.approx(float(geometry.norm(x)))
        assert run.distances[t] == pytest.approx(float(geometry.norm(x - 1)))
        x = (1 - 0.2 * eta) * x + eta * direction(f.gap_and_gradient(x)[1])
    torch.testing.assert_close(run.x, x)
    np.testing.assert_allclose(run.curvatures, f.K(run.gaps))
    assert (len(run.gaps), len(run.rates)) == (4, 3)


# The checks can fail


# On x²/2 from x⁰ = D = 1/λ everything is known. Theorem 1 steps to 1 − k/2 at k times its rate, which must gain
# Δ²/(2D²K) = Δ⁰/4: k ≤ 2 + √3. Theorem 2 steps to 1 − k/8 and must gain λ²Δ²/(16K) = Δ⁰/32. Theorem 3 must leave 3/4.
PARABOLA = CompositeProblem(Frobenius(), torch.zeros(1, dtype=torch.float64))
ONE = torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("check", "factor"),
    [
        (lambda k: check_theorem_1(run_theorem_1(PARABOLA, ONE, 1, k)), 2 + math.sqrt(3)),
        (lambda k: check_theorem_2(run_theorem_2(PARABOLA, ONE, 1, k)), 8 * (1 + math.sqrt(1 - 1 / 32))),
        (
            lambda k: check_theorem_3(run_theorem_3(regression_family(ONE[None], 0 * ONE), ONE, 0, 1, k)),
            2 + math.sqrt(3),
        ),
    ],
    ids=["theorem 1", "theorem 2", "theorem 3"],
)
def test_checks_fail_exactly_from_the_factor_computed_by_hand(check, factor):
    check(factor * (1 - 1e-6))
    with pytest.raises(ClaimViolated):
        check(factor * (1 + 1e-6))


def tampered(run, **changes):
    return type(run)(**(vars(run) | changes))


def bumped(array, t, factor):
    return np.where(np.arange(len(array)) == t, factor * array, array)


def test_each_claim_is_checked():
    # Except the bounds of theorems 1 and 2, which follow from the gains: those break first.
    f, g = catalogue()["l2-steep-barrier"], catalogue()["linf-steep-barrier"]
    one, two = run_theorem_1(f, f.point(3.0, generator()), 200), run_theorem_2(g, g.point(3.0, generator()), 50)
    family = regression_family(torch.randn(4, 3, generator=generator(), dtype=torch.float64), torch.zeros(3).double())
    three = run_theorem_3(family, family.point(1.0, generator(1)), 0)
    still = descend(PARABOLA, ONE, lambda gap: 0.0, 10)  # Δ stays 1/2, and the decay-only bound is 2/T
    barred = catalogue()["l2-barrier"]
    left = descend(barred, barred.point(1.0, generator()), lambda gap: 100.0, 10)  # leaving the domain ends a run
    assert (len(left.gaps), len(left.rates), left.gaps[-1]) == (2, 1, math.inf)
    lam, crossing = two.weight_decay, int(np.flatnonzero(one.gaps <= f.K.peak_gap)[0])
    for check, run, claim, step, changes in (
        (check_theorem_1, one, "Δ^{t+1} ≤ Δ^t", 3, {"gaps": (4, 2.0)}),
        (check_theorem_1, one, "K(x^{t+1}) ≤ K(x^t)", 3, {"curvatures": (4, 2.0)}),
        (check_theorem_1, one, "‖x^t − x*‖ ≤ D", 7, {"distances": (7, 1.1 * one.D / one.distances[7])}),
        (check_theorem_1, one, "Δ^{t+1} ≤ Δ^t − (Δ^t)²/(2D²K)", 3, {"gaps": (4, one.gaps[3] / one.gaps[4])}),
        (check_theorem_1, one, "η^t ≤ η^{t+1} while Δ^{t+1} ≥ Δ′ (warm-up)", 1, {"rates": (2, 0.5)}),
        (check_theorem_1, one, "η^{t+1} ≤ η^t once Δ^t ≤ Δ′ (decay)", crossing + 8, {"rates": (crossing + 9, 2.0)}),
        (check_theorem_2, two, "‖x^t‖ ≤ 1/λ", 5, {"norms": (5, 1.01 / lam / two.norms[5])}),
        (check_theorem_2, two, "λη^t ≤ 1", 6, {"rates": (6, 1.01 / lam / two.rates[6])}),
        (check_theorem_2, two, "Δ^{t+1} ≤ Δ^t − λ²(Δ^t)²/(16K)", 7, {"gaps": (8, two.gaps[7] / two.gaps[8])}),
        (check_theorem_3, three, "‖x^{t+1} − x*‖² ≤ ‖x^t − x*‖² − (Δ_ξ/(DK_ξ))²", 4, {"distances": (5, 1.2)}),
        (check_theorem_3, three, "‖x^t − x*‖ ≤ D", 0, {"distances": (0, 1.001)}),
        (check_decay_only, still, "Δ^T ≤ 2D²K(Δ⁰)/T", 5, {}),
        (check_theorem_1, left, "Δ^{t+1} ≤ Δ^t", 0, {}),
    ):
        with pytest.raises(ClaimViolated) as caught:
            check(tampered(run, **{name: bumped(vars(run)[name], *change) for name, change in changes.items()}))
        assert (caught.value.claim, caught.value.step) == (claim, step)
        assert caught.value.left > caught.value.right
