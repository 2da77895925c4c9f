"""The detector: what raises an alarm, and what must not."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autowarm.schedule.recovery.detector import Detector

STEPS = 1000
seeds = st.integers(0, 2**32 - 1)
scales = st.sampled_from([1e-3, 1.0, 1e4])
T = np.arange(STEPS)


def alarms(losses: Iterable[float], steps: int = STEPS) -> list[int]:
    """The places where an alarm is raised; only the first of those in a row counts."""
    detector, found = Detector.over(steps), []
    for i, loss in enumerate(losses):
        if detector.see(float(loss)) is not None:
            found.append(i)
            detector = Detector.over(steps)
    return found


def noise(seed: int, kind: str = "normal") -> np.ndarray:
    generator = np.random.default_rng(seed)
    if kind == "heavy":
        return generator.standard_t(3, STEPS)
    return generator.standard_normal(STEPS)


SHAPES = {
    "flat": 0 * T,
    "around zero": np.exp(-T / 100) - 0.5,
    "negative": -3 + 2 * np.exp(-T / 200),
    "falling": 1 + 3 * np.exp(-T / 150),
    "plateau": 1 + 2 * np.exp(-T / 20),
    # Flat at a high rate, then the loss falls with it, as in warm-up, stable, decay.
    "wsd": 3 + np.exp(-T / 50) - np.clip((T - 800) / 200, 0, 1),
    # From zero, down, and back to zero as the policy settles.
    "policy gradient": -T / 100 * np.exp(1 - T / 100),
    # A third of what it has learnt on a first plateau is lost for a while, as a Swin does; then it learns the rest.
    "hump on the first plateau": 2.3
    - 0.12 * (1 - np.exp(-T / 30))
    + 0.04 * np.exp(-(((T - 300) / 40) ** 2))
    - 0.7 * np.clip((T - 400) / 600, 0, 1),
    "hump of a tenth of the fall": 1 + 3 * np.exp(-T / 150) + 0.3 * np.exp(-(((T - 600) / 40) ** 2)),
}


@pytest.mark.parametrize("kind", ["normal", "heavy"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seeds, scales, st.sampled_from([0.0, 0.03, 0.2]))
def test_healthy_losses_raise_no_alarm(kind: str, shape: np.ndarray, seed: int, scale: float, size: float) -> None:
    assert alarms(scale * (shape + size * noise(seed, kind))) == []
    assert alarms(SHAPES["falling"] + 3 * noise(seed)) == []  # as large as the fall


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seeds, scales, st.sampled_from([20, 100, 200]))
def test_a_slow_divergence_raises_an_alarm(seed: int, scale: float, length: int) -> None:
    rise = 2.5 * np.clip((T - 600) / length, 0, 1)
    found = alarms(scale * (SHAPES["falling"] + rise + 0.1 * noise(seed)))
    assert 1 <= len(found) <= 2  # the level counts anew after an alarm, and may still rise
    assert 600 < found[0] <= 620 + length


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seeds)
def test_a_single_spike_raises_none_but_two_do(seed: int) -> None:
    losses = SHAPES["falling"] + 0.1 * noise(seed)
    losses[600] = 500.0
    assert alarms(losses) == []
    losses[602] = 500.0
    assert alarms(losses) == [602]


RISES = {
    "a policy gradient that comes back to zero": SHAPES["policy gradient"],
    "an entropy bonus": -1.0 + T / STEPS,
    "a divergence from the reference": 1e-3 + T / STEPS,
    "on the first plateau, after a fall of 5%": 1 - 0.05 * np.minimum(T / 100, 1) + np.clip((T - 400) / 100, 0, 1),
}


@pytest.mark.parametrize("losses", RISES.values(), ids=RISES)
def test_a_loss_without_a_healthy_level_may_rise(losses: np.ndarray) -> None:
    losses = losses + 0.001 * noise(0)
    detector = Detector.over(STEPS)
    assert [detector.see(float(loss)) for loss in losses] == [None] * STEPS
    assert detector.idle is not None
    assert detector.see(math.nan) is None
    assert "not finite" in (detector.see(math.nan) or "")


def test_losses_that_are_not_finite() -> None:
    losses = SHAPES["falling"] + 0.1 * noise(0)
    losses[[300, 400]] = math.nan, math.inf
    assert alarms(losses) == []
    losses[[302, 403]] = math.nan  # with finite ones between, as broken weights give none
    assert alarms(losses) == []
    losses[303] = math.inf
    assert alarms(losses) == [303]
    assert alarms([math.nan, 1.0, math.nan, math.inf]) == [3]  # the first may be broken
    for sign in (1, -1):  # and those whose squares are not finite count
        assert alarms([*np.exp(-T[:100] / 50), sign * 1e160, sign * 1e200, sign * 1e300]) == [101]


@pytest.mark.parametrize(("steps", "window"), [(100, 20), (1000, 20), (16_000, 320), (10_000_000, 2000)])
def test_the_level_is_that_of_a_fiftieth_of_the_run(steps: int, window: int) -> None:
    assert Detector.over(steps).window == window


def test_rises_from_which_a_run_comes_back_raise_the_bar() -> None:
    def with_humps(*humps: tuple[int, float]) -> np.ndarray:
        falling = 1 + 3 * np.exp(-T / 80) - 0.3 * T / STEPS + 0.02 * noise(0)
        return falling + sum(height * np.exp(-(((T - at) / 30) ** 2)) for at, height in humps)

    assert alarms(with_humps((400, 0.55))) == []
    assert alarms(with_humps((750, 0.75))) != []
    assert alarms(with_humps((400, 0.55), (750, 0.75))) == []


def test_batches_without_a_label_are_no_evidence() -> None:
    losses = SHAPES["falling"] + 0.01 * noise(0)
    losses[::7] = 0.0
    detector = Detector.over(STEPS)
    assert not any(detector.see(float(loss)) for loss in losses)
    assert detector.judges
    assert detector.idle is None
