"""`AdaptiveWarmup.paper` is the paper's Algorithm 1 and nothing else, on new weights and on trained ones."""

import inspect
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
    losses: list[float], T: int, lr: float, div: float, fstar: float, peak_gap: Any, decay: str, rho: float = 2.0
) -> list[float]:
    """The rate of each update, from the loss at the weights before it, line by line."""
    rates: list[float] = []
    switch = None
    gap0 = losses[0] - fstar  # line 3: Δ0 = f(x0) − f*
    peak_gap = peak_gap(gap0) if callable(peak_gap) else peak_gap
    if rho == 2.0:
        K_rho = gap0 * (div - 1) / (lr * (gap0 - peak_gap) ** 2)  # lines 4 to 7, eq. 12 to 15
    else:  # what eq. 12 and 15 become for another ρ, put into η(Δ0) = lr/div
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


def drawn(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    T, start = draw.choice([20, 60, 150]), draw.choice([2.3, 5.0, 10.98])
    end, pace, noise = draw.uniform(0.1, 0.9) * start, draw.uniform(0.05, 1.0) * T, draw.choice([0.0, 0.05])
    fstar = draw.choice([0.0, 0.3, 0.8]) * end
    losses = [end + (start - end) * math.exp(-t / pace) for t in range(T)]
    losses = [max(fstar + 0.01, x * (1 + noise * draw.gauss(0, 1))) for x in losses]
    kappa = draw.choice([61.0, 46848.0, 1e8, None])
    return {
        "T": T, "losses": losses, "lr": draw.choice([1e-3, 0.1]), "div": draw.choice([2.0, 5.0, 100.0]), "fstar": fstar,
        "kappa": kappa, "sigma_f2": draw.choice([1e3, 1.0]), "decay": draw.choice(list(FORMULAS)),
        "stop": draw.randrange(T), "more": draw.choice([0, T]), "rho": draw.choice([None, 1.5, 2.0, 3.0]),
        "trained": number % 4 < 2,
    }  # fmt: skip


def weights(trained: bool = False) -> nn.Parameter:
    """New ones, or such as training leaves: of low rank."""
    made = torch.Generator().manual_seed(0)
    w = torch.randn(32, 32, generator=made)
    if trained:
        w = w + 20 * torch.randn(32, 1, generator=made) @ torch.randn(1, 32, generator=made)
    return nn.Parameter(w / 100)


@pytest.mark.parametrize("first", range(0, SETTINGS, BATCH))
def test_the_rates_are_those_of_algorithm_1(first: int) -> None:
    for number in range(first, first + BATCH):
        case = drawn(number)
        target = ("linear", case["decay"])
        options: dict[str, Any] = {"target_loss": case["fstar"], "div": case["div"], "decay": case["decay"]}
        peak_gap: Any = 0.4 * (case["losses"][0] - case["fstar"])
        if case["kappa"] is None:
            options["peak_gap"] = peak_gap
        else:
            options["calibration"] = Calibration("sign", case["kappa"], case["sigma_f2"])

            def peak_gap(gap0: float, case: dict[str, Any] = case, target: Any = target) -> float:
                numbers = {"lr": 1.0, "div": case["div"], "kappa": case["kappa"], "sigma_f2": case["sigma_f2"]}
                rho = case["rho"] or 2.0
                return calibrate(gap0, target=target, rho=rho, **numbers).peak_gap

        if case["rho"] is not None:
            gap0 = case["losses"][0] - case["fstar"]
            peak = peak_gap(gap0) if callable(peak_gap) else peak_gap
            profile = Profile(7.0, case["div"], gap0, peak, case["rho"])  # in a unit of its own
            given = {name: options[name] for name in ("target_loss", "decay")}
            options = given | (
                {"profile": profile}
                if number % 2
                else {"profile": lambda gap, own=profile: own(gap), "peak_gap": peak, "div": case["div"]}
            )

        def made(case: dict[str, Any] = case, options: dict[str, Any] = options) -> AdaptiveWarmup:
            return AdaptiveWarmup.paper(Lion([weights(case["trained"])], lr=case["lr"]), case["T"], **options)

        scheduler, rates = made(), []
        with warnings.catch_warnings(action="ignore"):
            for t, loss in enumerate(case["losses"]):
                if t == case["stop"]:
                    state = saved(scheduler)
                    scheduler = made()  # resumed in the middle
                    scheduler.load_state_dict(state)
                    if scheduler.phase == "warmup":  # where T plays no part yet
                        case["T"] += case["more"]
                        scheduler.extend(case["T"])
                scheduler.step(loss)
                rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
                scheduler.optimizer.step()
        numbers = (case[name] for name in ("T", "lr", "div", "fstar"))
        expected = algorithm_1(case["losses"], *numbers, peak_gap, case["decay"], case["rho"] or 2.0)
        assert rates == pytest.approx(expected, rel=1e-9, abs=1e-12 * case["lr"]), number


# What each argument of the class is in Algorithm 1: given by the paper's user, or turned off.
GIVEN = {"optimizer", "total_steps", "target_loss", "div", "peak_gap", "profile", "calibration", "warmup", "decay",
         "final_ratio"}  # fmt: skip
OFF = {"max_warmup": None, "smoothing": 0.0, "trained": False, "chance_loss": None, "recover": False,
       "peak_limit": None}  # fmt: skip
HARMLESS = {"max_nonfinite", "process_group"}  # what stops a broken run, and which ranks share a loss


def test_no_later_default_leaks_into_algorithm_1() -> None:
    known = inspect.signature(AdaptiveWarmup).parameters
    assert set(known) == GIVEN | set(OFF) | HARMLESS, "say in this table what a new argument is in Algorithm 1"
    scheduler = AdaptiveWarmup.paper(Lion([weights(True)], lr=1e-3), 300, target_loss=0.1)
    settings = scheduler._settings
    assert all(settings.get(name) == value for name, value in OFF.items())
    assert (settings["div"], settings["final_ratio"], settings["sigma_f2"]) == (100.0, 0.0, 1e3)
    assert (settings["warmup"], settings["decay"]) == ("linear", "cosine")
    for refused in ("max_warmup", "smoothing", "trained", "chance_loss", "peak_limit"):
        with pytest.raises(TypeError, match=f"Algorithm 1 has no {refused}"):
            AdaptiveWarmup.paper(Lion([weights(True)], lr=1e-3), 300, target_loss=0.1, **{refused: 0.5})


OWN = Profile(1.0, 100.0, 4.9, 2.0, rho=3.0)


def test_the_profile_of_ones_own_is_part_of_the_schedule() -> None:
    assert plan_of(300, profile=OWN).peak_gap == OWN.peak_gap  # also without an optimizer
    optimizer = Lion([weights()], lr=1e-3)
    scheduler = AdaptiveWarmup.paper(optimizer, 300, target_loss=0.1, profile=OWN)
    assert scheduler.profile == Profile(1e-3, 100.0, 4.9, 2.0, rho=3.0)  # with this optimizer's peak rate
    other = AdaptiveWarmup.paper(Lion([weights()], lr=1e-3), 300, target_loss=0.1, peak_gap=2.0)
    with pytest.raises(ValueError, match="profile: saved 'Profile.*rho=3.0.*', here None"):
        other.load_state_dict(saved(scheduler))
