import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_strategies import domain_radius, families, gaps, problems, seeds

from autowarm.geometry import Frobenius, Sign, Spectral
from autowarm.theory import (
    ClaimViolated,
    CompositeProblem,
    Smoothness,
    barrier,
    catalogue,
    check_constant,
    check_decay_only,
    check_theorem_1,
    check_theorem_2,
    check_theorem_3,
    decay_only_rate,
    descend,
    polyak_rate,
    regression_family,
    theorem_1_bound,
    theorem_1_rate,
    theorem_2_rate,
    theorem_3_rate,
    warmup_only_rate,
    weight_decay_limit,
)
from tests.cases import each

NAMES = sorted(catalogue())
STEPS = 40


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run_theorem_1(f, x0, steps=STEPS, factor=1.0):
    D = f.radius(x0)
    return descend(f, x0, lambda gap: factor * theorem_1_rate(gap, f.K, D), steps)


def run_theorem_2(f, x0, steps=STEPS, factor=1.0, share=1.0, sharp=False):
    lam = share * weight_decay_limit(float(f.geometry.norm(x0)), float(f.geometry.norm(f.x_star)))
    rate = lambda gap: factor * theorem_2_rate(gap, f.K, lam, sharp=sharp)  # noqa: E731
    return descend(f, x0, rate, steps, weight_decay=lam)


def run_theorem_3(family, x0, seed, steps=STEPS, factor=1.0):
    D = family.radius(x0)
    rate = lambda gap: factor * theorem_3_rate(gap, family.K, D)  # noqa: E731
    return descend(family, x0, rate, steps, generator=generator(seed))


# The theorems hold


@settings(max_examples=40)
@given(f=problems(), gap=gaps, seed=seeds)
def test_theorem_1(f, gap, seed):
    run = run_theorem_1(f, f.point(gap, generator(seed)))
    check_theorem_1(run)
    assert run.gaps[-1] < run.gaps[0]


@settings(max_examples=40)
@given(f=problems(), gap=gaps, seed=seeds, share=st.floats(0.05, 1.0), sharp=st.booleans())
def test_theorem_2(f, gap, seed, share, sharp):
    run = run_theorem_2(f, f.point(gap, generator(seed)), share=share, sharp=sharp)
    check_theorem_2(run, sharp=sharp)
    assert run.gaps[-1] < run.gaps[0]


@settings(max_examples=30)
@given(family=families(), share=st.floats(0.05, 0.99), seed=seeds)
def test_theorem_3(family, share, seed):
    x0 = family.point(share * domain_radius(family), generator(seed))
    check_theorem_3(*(run_theorem_3(family, x0, seed + path) for path in range(3)))


@settings(max_examples=40)
@given(f=problems(), gap=gaps, seed=seeds)
def test_warm_up_only(f, gap, seed):
    x0 = f.point(gap, generator(seed))
    run = descend(f, x0, lambda gap, norm: warmup_only_rate(gap, f.K, norm), STEPS, gradient_norm=True)
    gradient_norms = run.rates * run.curvatures[:-1]
    promised = run.gaps[:-1] - gradient_norms**2 / (2 * run.curvatures[:-1])
    assert np.all(run.gaps[1:] <= promised + 1e-12 * run.gaps[0])
    assert np.all(run.gaps[1:] <= theorem_1_bound(run.curvatures[:-1], run.D) * (1 + 1e-9))
    assert np.all(np.diff(1 / run.curvatures) >= 0)  # the step size only rises
    # Theorem 1's rate has Δ/D for the gradient's norm.
    assert np.all(theorem_1_rate(run.gaps[:-1], f.K, run.D) <= run.rates * (1 + 1e-9))


@settings(max_examples=40)
@given(f=problems(), gap=gaps, seed=seeds)
def test_polyak(f, gap, seed):
    f = dataclasses.replace(f, geometry=Frobenius())
    run = descend(f, f.point(gap, generator(seed)), polyak_rate, STEPS, gradient_norm=True)
    squares = run.distances**2
    assert np.all(squares[1:] <= squares[:-1] - run.rates**2 + 1e-9 * squares[0])
    least = np.minimum.accumulate(run.gaps[:-1])
    assert np.all(least <= 2 * run.D**2 / np.cumsum(1 / run.curvatures[:-1]) * (1 + 1e-9))


@settings(max_examples=30)
@given(f=problems(), gap=gaps, seed=seeds, share=st.floats(0.01, 0.99))
def test_decay_only_and_constant_schedules(f, gap, seed, share):
    x0 = f.point(gap, generator(seed))
    D, level = f.radius(x0), f.level_radius(x0)
    check_decay_only(descend(f, x0, lambda now: decay_only_rate(now, f.K, D, f.gap(x0)), STEPS))
    constant = share * 2 * f.gap(x0) / (level * f.K(f.gap(x0)))
    check_constant(descend(f, x0, lambda now: constant, STEPS), level)


@pytest.mark.long
@each("name", NAMES)
def test_catalogue_over_a_longer_run(name):
    f = catalogue()[name]
    for gap in (0.01, 30.0):
        x0 = f.point(gap, generator())
        check_theorem_1(run_theorem_1(f, x0, 100))
        check_theorem_2(run_theorem_2(f, x0, 100))


@each("norm", ["l2", "linf", "spectral"])
def test_the_rate_warms_up_and_then_decays(norm):
    f = catalogue()[f"{norm}-exponential"]
    run = run_theorem_1(f, f.point(3.0, generator()), 300)
    assert run.gaps[0] > f.K.peak_gap > run.gaps[-1]
    peak = int(np.argmax(run.rates))
    assert 5 < peak < 250
    assert abs(math.log(run.gaps[peak] / f.K.peak_gap)) < 0.2
    assert np.all(np.diff(run.rates[:peak]) >= 0)
    assert np.all(np.diff(run.rates[peak + 1 :]) <= 0)


@each("norm", ["l2", "linf", "spectral"])
def test_adaptive_rate_beats_decay_only_where_curvature_falls(norm):
    f = catalogue()[f"{norm}-barrier"]
    x0 = f.point(10.0, generator())
    D = f.radius(x0)
    adaptive = run_theorem_1(f, x0, 200)
    decay_only = descend(f, x0, lambda gap: decay_only_rate(gap, f.K, D, 10.0), 200)
    assert np.all(adaptive.gaps[1:] <= decay_only.gaps[1:])
    assert adaptive.gaps[-1] < 0.1 * decay_only.gaps[-1]


def test_a_run_from_the_minimum_breaks_no_claim():
    f = catalogue()["l2-quadratic"]
    check_theorem_1(descend(f, f.x_star, lambda gap: 0.0, 3))


@each("norm", ["l2", "linf", "spectral"])
def test_lambda_max_is_not_needed(norm):
    # Constant curvature: as printed, Theorem 2 allows no λ. Then a barrier with λ far above λ_max.
    quadratic = catalogue()[f"{norm}-quadratic"]
    assert weight_decay_limit(1.0, 1.0, quadratic.K) == 0.0
    check_theorem_2(run_theorem_2(quadratic, quadratic.point(1.0, generator())))
    geometry = quadratic.geometry
    f = CompositeProblem(geometry, torch.zeros(2, 2, dtype=torch.float64), barrier())
    run = run_theorem_2(f, f.point(1e-6, generator()))
    assert run.weight_decay > 10 * f.K.lambda_max
    check_theorem_2(run)
    assert np.max(run.weight_decay * run.rates) <= 0.25


def test_outside_l2_the_distance_to_the_start_is_no_bound():
    # Why D is the level set's radius there: the first step moves the largest entry outwards.
    features = torch.tensor([[-1.0, 2.0], [0.1, 0.0], [0.0, 0.1]], dtype=torch.float64)
    f = CompositeProblem(Sign(), torch.zeros(2, dtype=torch.float64), features=features)
    run = run_theorem_1(f, torch.tensor([1.0, 0.9], dtype=torch.float64))
    assert run.distances[1] > run.distances[0] == 1.0
    check_theorem_1(run)


def test_stochastic_gaps_need_not_fall():
    rows = torch.tensor([[1.0, 0.0], [0.9, 0.4]], dtype=torch.float64)
    family = regression_family(rows, torch.zeros(2, dtype=torch.float64))
    x0 = family.point(1.0, generator())
    runs = [run_theorem_3(family, x0, seed) for seed in range(5)]
    check_theorem_3(*runs)
    assert any(np.any(np.diff(run.gaps) > 1e-3) for run in runs)


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
        x = (1 - 0.2 * eta) * x + eta * direction(f.gradient(x))
    torch.testing.assert_close(run.x, x)
    np.testing.assert_allclose(run.curvatures, f.K(run.gaps))
    assert (len(run.gaps), len(run.rates)) == (4, 3)


def test_at_the_minimum_nothing_moves():
    f = catalogue()["spectral-ripples"]
    run = descend(f, f.x_star, lambda gap: 0.1, 3)
    assert not run.gaps.any()
    assert torch.equal(run.x, f.x_star)


# The checks can fail


@each("name", NAMES)
@pytest.mark.parametrize("theorem", [1, 2])
def test_a_rate_far_too_large_fails_everywhere(name, theorem):
    f = catalogue()[name]
    x0 = f.point(0.01, generator())
    if theorem == 1:
        check, run = check_theorem_1, run_theorem_1(f, x0, factor=100.0)
    else:
        check, run = check_theorem_2, run_theorem_2(f, x0, factor=1e4)
    with pytest.raises(ClaimViolated, match=f"Theorem {theorem} claims"):
        check(run)


@dataclasses.dataclass(frozen=True)
class Claimed:
    """A problem whose constants are claimed to be smaller than they are."""

    true: CompositeProblem
    K: Smoothness

    def __getattr__(self, name):
        return getattr(self.true, name)


@each("name", NAMES)
def test_constants_five_times_too_small_fail_everywhere(name):
    f = catalogue()[name]
    smaller = {part: getattr(f.K, part) / 5 for part in ("K0", "K1", "K_rho")}
    claimed = Claimed(f, dataclasses.replace(f.K, **smaller))
    with pytest.raises(ClaimViolated) as caught:
        check_theorem_1(run_theorem_1(claimed, f.point(2.0, generator()), steps=400))
    assert "∇f" in caught.value.claim


@each("kind", ["quadratic", "barrier", "exponential"])
def test_a_rate_ten_times_too_large_fails_in_l2(kind):
    f = catalogue()[f"l2-{kind}"]
    with pytest.raises(ClaimViolated) as caught:
        check_theorem_1(run_theorem_1(f, f.point(0.01, generator()), factor=10.0))
    assert caught.value.claim == "Δ^{t+1} ≤ Δ^t"
    assert caught.value.step == 0
    assert caught.value.left > caught.value.right


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


def test_each_claim_of_theorem_1_is_checked():
    # Except the bound, which follows from the gains: those break first.
    f = catalogue()["l2-exponential"]
    run = run_theorem_1(f, f.point(3.0, generator()), 200)
    crossing = int(np.flatnonzero(run.gaps <= f.K.peak_gap)[0])

    def bumped(array, t, factor):
        changed = array.copy()
        changed[t] *= factor
        return changed

    cases = {
        "Δ^{t+1} ≤ Δ^t": ({"gaps": bumped(run.gaps, 4, 2.0)}, 3),
        "K(x^{t+1}) ≤ K(x^t)": ({"curvatures": bumped(run.curvatures, 4, 2.0)}, 3),
        "‖x^t − x*‖ ≤ D": ({"distances": bumped(run.distances, 7, 1.1 * run.D / run.distances[7])}, 7),
        "Δ^{t+1} ≤ Δ^t − (Δ^t)²/(2D²K)": ({"gaps": bumped(run.gaps, 4, run.gaps[3] / run.gaps[4])}, 3),
        "η^t ≤ η^{t+1} while Δ^{t+1} ≥ Δ′ (warm-up)": ({"rates": bumped(run.rates, 2, 0.5)}, 1),
        "η^{t+1} ≤ η^t once Δ^t ≤ Δ′ (decay)": ({"rates": bumped(run.rates, crossing + 9, 2.0)}, crossing + 8),
    }
    for claim, (changes, step) in cases.items():
        with pytest.raises(ClaimViolated) as caught:
            check_theorem_1(tampered(run, **changes))
        assert (caught.value.claim, caught.value.step) == (claim, step)


def test_a_run_that_stands_still_outlives_its_bounds():
    # On the parabola Δ stays 1/2; the decay-only bound is 2/T, and a constant rate's is (1 − η)^T/2 + η/2.
    still = descend(PARABOLA, ONE, lambda gap: 0.0, 10)
    with pytest.raises(ClaimViolated, match=r"2D²K\(Δ⁰\)/T") as caught:
        check_decay_only(still)
    assert caught.value.step == 5
    with pytest.raises(ClaimViolated, match=r"\(1 − η/D\)\^T") as caught:
        check_constant(tampered(still, rates=np.full(10, 0.5)), 1.0)
    assert caught.value.step == 2
    risen = 0.01 * still.gaps
    risen[[0, 4]] = 0.5, 0.55
    with pytest.raises(ClaimViolated, match=r"Δ\^t ≤ Δ⁰"):
        check_constant(tampered(still, rates=np.full(10, 0.99), gaps=risen), 1.0)


def test_each_claim_of_theorem_2_is_checked():
    f = catalogue()["linf-exponential"]
    run = run_theorem_2(f, f.point(3.0, generator()), 50)
    norms, rates, gaps = run.norms.copy(), run.rates.copy(), run.gaps.copy()
    norms[5], rates[6], gaps[8] = 1.01 / run.weight_decay, 1.01 / run.weight_decay, gaps[7]
    for changes, claim, step in (
        ({"norms": norms}, "‖x^t‖ ≤ 1/λ", 5),
        ({"rates": rates}, "λη^t ≤ 1", 6),
        ({"gaps": gaps}, "Δ^{t+1} ≤ Δ^t − λ²(Δ^t)²/(16K)", 7),
    ):
        with pytest.raises(ClaimViolated) as caught:
            check_theorem_2(tampered(run, **changes))
        assert (caught.value.claim, caught.value.step) == (claim, step)


def test_each_claim_of_theorem_3_is_checked():
    rows = torch.randn(4, 3, generator=generator(), dtype=torch.float64)
    family = regression_family(rows, torch.zeros(3, dtype=torch.float64))
    run = run_theorem_3(family, family.point(1.0, generator(1)), 0)
    distances = run.distances.copy()
    distances[5] *= 1.2
    with pytest.raises(ClaimViolated, match="DK_ξ"):
        check_theorem_3(tampered(run, distances=distances))
    with pytest.raises(ClaimViolated, match="≤ D:"):
        check_theorem_3(tampered(run, distances=run.distances + 1e-3))


def test_leaving_the_domain_ends_the_run_and_fails():
    f = catalogue()["l2-barrier"]
    run = descend(f, f.point(1.0, generator()), lambda gap: 100.0, 10)
    assert (len(run.gaps), len(run.rates)) == (2, 1)
    assert run.gaps[-1] == math.inf
    with pytest.raises(ClaimViolated, match="at step 0 the left is inf"):
        check_theorem_1(run)


def test_refusals():
    f = catalogue()["l2-barrier"]
    x0 = f.point(1.0, generator())
    with pytest.raises(ValueError, match="steps"):
        descend(f, x0, lambda gap: 0.1, 0)
    with pytest.raises(ValueError, match="outside the domain"):
        descend(f, x0 + 100, lambda gap: 0.1, 5)
    with pytest.raises(ValueError, match=r"weight decay in \(0"):
        check_theorem_2(run_theorem_2(f, x0, share=1.01))
    with pytest.raises(ValueError, match=r"weight decay in \(0"):
        check_theorem_2(run_theorem_1(f, x0))
    with pytest.raises(ValueError, match="constant rate in"):
        check_constant(descend(f, x0, lambda gap: 10.0, 5), f.level_radius(x0))
    with pytest.raises(ValueError, match="Family"):
        check_theorem_3(run_theorem_1(f, x0))
    with pytest.raises(ValueError, match="one length"):
        check_theorem_3()
