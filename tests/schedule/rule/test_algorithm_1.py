"""`AdaptiveWarmup.paper` is the paper's Algorithm 1 and nothing else, on new weights and on trained ones."""

import math
import random
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion
from autowarm.schedule import Calibration, Profile, calibrate
from autowarm.schedule.planning import plan_of
from tests.schedule.schedule_runs import saved
from tests.schedule.test_shapes import FORMULAS

SETTINGS, BATCH = 300, 30


def algorithm_1(
    losses: list[float], T: int, lr: float, div: float, fstar: float, peak_gap: float, decay: str, rho: float
) -> list[float]:
    """The rate of each update, from the loss at the weights before it, line by line."""
    rates: list[float] = []
    switch = None
    gap0 = losses[0] - fstar  # line 3: Δ0 = f(x0) − f*
    # Lines 4 to 7: eq. 12 and 15, as they become for any ρ, put into η(Δ0) = lr/div; for ρ = 2 left is (Δ0 − Δ')².
    left = (rho - 1) * peak_gap**rho - rho * peak_gap ** (rho - 1) * gap0 + gap0**rho
    K_rho = gap0 * (div - 1) / (lr * left)
    K1, K0 = 1 / lr - rho * K_rho * peak_gap ** (rho - 1), (rho - 1) * K_rho * peak_gap**rho
    for t, loss in enumerate(losses[:T]):
        gap = loss - fstar
        if switch is None and gap < peak_gap:  # line 9
            switch = t
        if switch is None:
            rates.append(gap / (K0 + K1 * gap + K_rho * gap**rho))  # line 10, eq. 7
        else:
            rates.append(lr * FORMULAS[decay](max(0, t - switch) / max(1, T - switch)))  # line 12
    return rates


def weights() -> nn.Parameter:
    """Such as training leaves: of low rank."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(32, 32, generator=generator)
    return nn.Parameter(w + 20 * torch.randn(32, 1, generator=generator) @ torch.randn(1, 32, generator=generator))


@pytest.mark.parametrize("first", range(0, SETTINGS, BATCH))
def test_the_rates_are_those_of_algorithm_1(first: int) -> None:
    for number in range(first, first + BATCH):
        draw = random.Random(number)
        T, start = draw.choice([20, 60, 150]), draw.choice([2.3, 5.0, 10.98])
        end, pace, noise = draw.uniform(0.1, 0.9) * start, draw.uniform(0.05, 1.0) * T, draw.choice([0.0, 0.05])
        fstar, lr, div = draw.choice([0.0, 0.3, 0.8]) * end, draw.choice([1e-3, 0.1]), draw.choice([2.0, 5.0, 100.0])
        losses = [end + (start - end) * math.exp(-t / pace) for t in range(T)]
        losses = [max(fstar + 0.01, x * (1 + noise * draw.gauss(0, 1))) for x in losses]
        decay, rho, gap0 = draw.choice(list(FORMULAS)), draw.choice([1.5, 2.0, 3.0]), losses[0] - fstar
        options: dict[str, Any] = {"target_loss": fstar, "div": div, "decay": decay}
        peak_gap, given = 0.4 * gap0, draw.choice(["calibration", "peak_gap", "profile", "function"])
        if given == "calibration":
            numbers = {"kappa": draw.choice([61.0, 46848.0, 1e8]), "sigma_f2": draw.choice([1e3, 1.0]), "rho": rho}
            options["calibration"] = Calibration("sign", **numbers)
            peak_gap = calibrate(gap0, lr=1.0, div=div, target=("linear", decay), **numbers).peak_gap
        elif given == "peak_gap":
            options["peak_gap"], rho = peak_gap, 2.0
        else:  # a profile of one's own, in a unit of its own
            profile = Profile(7.0, div, gap0, peak_gap, rho)
            function = {"profile": lambda gap, profile=profile: profile(gap), "peak_gap": peak_gap}
            options |= {"profile": profile} if given == "profile" else function
        scheduler, rates = AdaptiveWarmup.paper(Lion([weights()], lr=lr), T, **options), []
        with warnings.catch_warnings(action="ignore"):
            for loss in losses:
                scheduler.step(loss)
                rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
                scheduler.optimizer.step()
        expected = algorithm_1(losses, T, lr, div, fstar, peak_gap, decay, rho)
        assert rates == pytest.approx(expected, rel=1e-9, abs=1e-12 * lr), number


OFF = {"max_warmup": None, "smoothing": 0.0, "trained": False, "chance_loss": None, "recover": False,
       "peak_limit": None}  # fmt: skip


def test_no_later_default_leaks_into_algorithm_1() -> None:
    scheduler = AdaptiveWarmup.paper(Lion([weights()], lr=1e-3), 300, target_loss=0.1)
    settings = scheduler._settings
    assert all(settings.get(name) == value for name, value in OFF.items())
    assert (settings["div"], settings["final_ratio"], settings["sigma_f2"]) == (100.0, 0.0, 1e3)
    assert (settings["warmup"], settings["decay"]) == ("linear", "cosine")
    for refused in ("max_warmup", "smoothing", "trained", "chance_loss", "peak_limit"):
        with pytest.raises(TypeError, match=f"Algorithm 1 has no {refused}"):
            AdaptiveWarmup.paper(Lion([weights()], lr=1e-3), 300, target_loss=0.1, **{refused: 0.5})


def test_the_profile_of_ones_own_is_part_of_the_schedule() -> None:
    profile = Profile(1.0, 100.0, 4.9, 2.0, rho=3.0)
    assert plan_of(300, profile=profile).peak_gap == profile.peak_gap  # also without an optimizer
    scheduler = AdaptiveWarmup.paper(Lion([weights()], lr=1e-3), 300, target_loss=0.1, profile=profile)
    assert scheduler.profile == Profile(1e-3, 100.0, 4.9, 2.0, rho=3.0)  # with this optimizer's peak rate
    other = AdaptiveWarmup.paper(Lion([weights()], lr=1e-3), 300, target_loss=0.1, peak_gap=2.0)
    with pytest.raises(ValueError, match="profile: saved 'Profile.*rho=3.0.*', here None"):
        other.load_state_dict(saved(scheduler))
