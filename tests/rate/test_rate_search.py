"""What is read off a curve: right order, honest refusals, and no dependence on what should not matter."""

import math

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autowarm.rate import RateSearch
from autowarm.rate.search import has_broken
from tests.cases import each

RATES = np.geomspace(1e-6, 100, 100)
FEW = settings(max_examples=30)  # each draws whole curves


def search(losses: np.ndarray, rates: np.ndarray = RATES) -> RateSearch:
    """The losses as far as `find_rate` would have gone."""
    for n in range(1, len(losses) + 1):
        if has_broken(list(losses[:n]), len(losses)):
            return RateSearch(rates[:n], losses[:n], broken=True, total_steps=1000)
    return RateSearch(rates, losses, broken=False)


def valley(where: float, noise: float = 0.0, seed: int = 0, rates: np.ndarray = RATES) -> np.ndarray:
    """Falls from 2 to 1 around a rate, and breaks two decades above it."""
    bare = 2 - 1 / (1 + where / rates) + (rates / (100 * where)) ** 2
    return bare + noise * np.random.default_rng(seed).standard_normal(len(rates))


@FEW
@given(st.floats(-3.5, -0.5), st.sampled_from([0.0, 0.01, 0.05]), st.integers(0, 5))
def test_the_suggestion_follows_the_valley(exponent: float, noise: float, seed: int) -> None:
    where = 10**exponent
    result = search(valley(where, noise, seed))
    assert where / 3 < result.suggestion < 6 * where
    low, high = result.interval
    assert low <= result.suggestion <= high
    assert high < 100 * where
    assert where / 100 < low


@FEW
@given(st.floats(-6, 6), st.floats(-10, 10), st.integers(0, 5))
def test_units_and_offsets_of_the_loss_do_not_matter(exponent: float, offset: float, seed: int) -> None:
    losses, scale = valley(1e-2, 0.02, seed), 10**exponent
    result, other = search(losses), search(scale * (losses + offset))
    assert other.suggestion == pytest.approx(result.suggestion, rel=1e-6)
    assert other.interval == pytest.approx(result.interval, rel=1e-6)


@FEW
@given(st.floats(-7, -5), st.integers(60, 300), st.integers(0, 5))
def test_first_rate_and_number_of_steps_stay_within_the_interval(exponent: float, steps: int, seed: int) -> None:
    result = search(valley(1e-2, 0.02, seed))
    rates = np.geomspace(10**exponent, 100, steps)
    other = search(valley(1e-2, 0.02, seed + 100, rates), rates)
    assert result.interval[0] < other.suggestion < result.interval[1]


def test_four_times_the_updates_halve_the_rate() -> None:
    result = search(valley(1e-2, 0.02))
    longer = RateSearch(result.rates, result.losses, result.broken, total_steps=4000)
    assert longer.suggestion == pytest.approx(result.suggestion / 2)
    assert longer.interval == pytest.approx([x / 2 for x in result.interval])


def noise(seed: int) -> np.ndarray:
    return 2 + 0.1 * np.random.default_rng(seed).standard_normal(100)


@each(
    ("losses", "reason"),
    [
        (valley(1e-7), "the loss breaks at 9.3e-06, soon after the lowest rate: lower `lowest`"),
        (valley(1e-6), "falls from the lowest rate on, 1e-06: lower `lowest`"),
        (2 - 1 / (1 + 1 / RATES), "has not broken at the highest rate, 1e+02: raise `highest`"),
        (np.array([2.0, 2.1, 1.9, math.nan]), "not finite after 3 updates: lower `lowest`"),
        *((losses, "never fell clear of its noise") for losses in (np.full(100, 2.0), *map(noise, range(50)))),
        (np.array([math.nan]), "the first loss is not finite: check the model and the data"),
    ],
)
def test_it_says_why_it_cannot_tell(losses: np.ndarray, reason: str) -> None:
    result = search(losses, RATES[: len(losses)]) if len(losses) > 1 else RateSearch(RATES[:1], losses, broken=True)
    assert reason in str(result.reason)
    assert "no suggestion" in repr(result)
    for name in ("suggestion", "interval"):
        with pytest.raises(RuntimeError, match="no rate can be suggested: "):
            getattr(result, name)


def test_an_outlier_does_not_end_the_search_and_nan_does() -> None:
    losses = list(valley(1e-2, 0.02)[:40])
    assert not has_broken([*losses, 1e6], 100)
    assert has_broken([*losses, 1e6, 1e6], 100)
    assert has_broken([*losses, math.nan], 100)
    assert has_broken([2.0, math.inf], 100)


def test_the_picture_shows_suggestion_and_interval() -> None:
    matplotlib.use("Agg")
    result = search(valley(1e-2, 0.02))
    axes = result.plot()
    assert axes.get_xscale() == "log"
    assert f"suggestion, {result.suggestion:.2g}" in [text.get_text() for text in axes.get_legend().get_texts()]
    assert "suggestion" not in str([t.get_text() for t in search(np.full(100, 2.0)).plot().get_legend().get_texts()])
    assert f"{result.suggestion:.2g}" in repr(result)
