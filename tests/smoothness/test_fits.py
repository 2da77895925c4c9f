import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autowarm.smoothness import fit
from autowarm.smoothness.fits import bootstrap

Δ = np.linspace(0.2, 7, 120)


def noise(scale=1.0, seed=0, n=120):
    return scale * np.random.default_rng(seed).normal(size=n)


@given(st.tuples(*[st.floats(-5, 5)] * 3), st.floats(0.01, 100))
@settings(max_examples=30, deadline=None)
def test_exact_coefficients_come_back_at_any_scale_of_the_gap(coefficients, scale):
    x = Δ * scale
    y = sum(c * (x / scale) ** i for i, c in enumerate(coefficients))
    curve = fit(x, y)
    np.testing.assert_allclose([c * scale**i for i, c in enumerate(curve.coefficients)], coefficients, atol=1e-8)


def test_r2_and_aic_by_their_definitions():
    y = 1 + 2 * Δ + noise()
    curve = fit(Δ, y, "linear")
    rss = np.sum((y - np.polyval(np.polyfit(Δ, y, 1), Δ)) ** 2)
    assert curve.r2 == pytest.approx(1 - rss / np.sum((y - y.mean()) ** 2))
    assert curve.aic == pytest.approx(120 * np.log(rss / 120) + 2 * 3)
    assert fit(Δ, y, "constant").r2 == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(curve.residuals, y - curve(Δ))


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_the_nonnegative_fit_satisfies_the_optimality_conditions(seed):
    """Gradient zero where a coefficient is positive, and pointing out of the cone where it is zero."""
    random = np.random.default_rng(seed)
    y = random.normal(size=3) @ np.stack([Δ**0, Δ / 7, (Δ / 7) ** 2]) + 0.3 * random.normal(size=len(Δ))
    c = np.array(fit(Δ, y, nonnegative=True).coefficients)
    X = np.stack([Δ**0, Δ, Δ**2], axis=1)
    gradient = X.T @ (X @ c - y) / np.linalg.norm(X, axis=0)
    assert np.all(c >= 0)
    assert np.all(np.abs(gradient[c > 0]) < 1e-8)
    assert np.all(gradient[c == 0] > -1e-8)


@pytest.mark.parametrize(
    ("true", "fitted", "at_end"),
    [*((rho, rho, False) for rho in (0.5, 1.0, 2.0, 3.7)), (0.01, 0.1, True), (30, 10, True)],
)
def test_a_free_exponent_is_found_or_said_to_be_at_the_end_of_its_range(true, fitted, at_end):
    power = fit(Δ, 2 + 0.5 * (Δ / 7) ** true, "power")
    assert power.rho_at_end == at_end
    assert power.rho == pytest.approx(fitted, rel=0.01 if at_end else 1e-4)
    if not at_end:
        np.testing.assert_allclose(power.coefficients, [2, 0.5 * 7**-true], rtol=1e-3)


def test_the_band_follows_the_curve_and_widens_with_the_noise():
    widths = []
    for scale in (0.1, 1.0):
        curve = fit(Δ, 1 + Δ**2 + noise(scale))
        low, high = bootstrap(Δ, curve, at=[1.0, 5.0])[1]
        assert np.all((low < curve([1.0, 5.0])) & (curve([1.0, 5.0]) < high))
        widths.append((high - low).mean())
    assert widths[1] == pytest.approx(10 * widths[0], rel=0.2)


def test_blocks_of_residuals_are_summed_as_written_out():
    curve, size = fit(Δ, Δ**2 + noise()), 11
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(2000, -(-120 // size)))
    signed = np.repeat(signs, size, axis=1)[:, :120] * curve.residuals
    plain = np.array(curve.coefficients) + signed @ np.linalg.pinv(np.stack([Δ**0, Δ, Δ**2], axis=1)).T
    expected = np.percentile(plain, [2.5, 97.5], axis=0).T
    np.testing.assert_allclose([(i.low, i.high) for i in bootstrap(Δ, curve)[0]], expected, rtol=1e-9)
