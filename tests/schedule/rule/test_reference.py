"""Every schedule on every kind of loss, against the rule written out once more in plain Python.

With a tensor rate, every schedule and every kind of loss, in half of the pairs, by turns.
"""

import math
import random
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autowarm import AdaptiveWarmup
from autowarm.schedule import calibrate
from autowarm.schedule.shapes import DECAYS, WARMUPS
from tests.cases import each
from tests.schedule.schedule_runs import PEAK, falling, make_optimizer

T = 120
SMOOTHING, PEAK_GAP = 0.05, 0.05  # the rule's constants, for short runs under Lion
NOISE = random.Random(0).choices([-0.4, 0.0, 0.5], k=T)

SCHEDULES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"target_loss": -25.0, "div": 100.0, "max_warmup": None, "smoothing": 0.0, "calibration": "sign"},
    "calibrated": {"calibration": "sign"},
    "raw": {"smoothing": 0.0, "target_loss": -25.0},
    "no ramp": {"max_warmup": None, "peak_gap": 1.0},
    "early gap": {"peak_gap": 2.0},
    "30 updates": {"max_warmup": 30, "peak_gap": 0.1},
    "cosines": {"warmup": "cosine", "decay": "cosine", "smoothing": 0.2},
    "linear": {"decay": "linear", "final_ratio": 0.1, "div": 3.0},
    "1-sqrt": {"decay": "1-sqrt", "max_warmup": 0.2},
    "power": {"decay": "power", "max_warmup": 1.0},
    "wsd": {"decay": "wsd", "max_warmup": 0.2},
    "wso": {"decay": "wso"},
    "above chance": {"chance_loss": 6.0, "max_warmup": 0.4},
    "trained": {"chance_loss": 14.0},
    "trained, no ramp": {"chance_loss": 14.0, "max_warmup": None, "warmup": "cosine"},
    "trained, 8 updates": {"chance_loss": 14.0, "max_warmup": 8},
}
STREAMS: dict[str, Callable[[int], float | None]] = {
    "falling": falling(),
    "noisy": lambda t: falling()(t) + NOISE[t],
    "constant": lambda t: 3.0,
    "rising": lambda t: 3.0 + t / 10,
    "negative": lambda t: falling()(t) - 20.0,
    "zero first": lambda t: falling()(t) if t else 0.0,
    "nan by turns": lambda t: math.nan if t % 3 == 1 else falling()(t),
    "outlier first": lambda t: falling()(t) if t else 1e4,
    "late": lambda t: math.nan if t < 9 else falling()(t),
    "spike": lambda t: 1e6 if t == 7 else falling()(t),
    "spikes later": lambda t: {15: -1e300, 18: 1e300}.get(t, falling()(t)),
    "zero": lambda t: 0.0,
    "through zero": lambda t: 5.0 - t,
    **{
        f"first losses without a scale: {first}": lambda t, first=first: float(first[t % 5]) if t < 10 else -float(t)
        for first in ([5, 0, 5, 5, 5], [3, 3, -0.1, 3, 3], [3, -2, 1, -4, 2], [3, 9, 5, 4, 7])
    },
    "with gaps": lambda t: None if t % 4 == 2 else falling()(t),
    "every tenth": lambda t: falling()(t) + NOISE[t] if t % 10 == 0 else None,
    "none in decay": lambda t: falling()(t) if t < 90 else None,
}
RATES: dict[str, Callable[[], Any]] = {
    "float": lambda: PEAK,
    "float64": lambda: torch.tensor(PEAK, dtype=torch.float64),
    "float32": lambda: torch.tensor(PEAK),
}


def along(line: tuple[int, float, float | None], t: int, rise: Callable[[float], float], without: float) -> float:
    start, share, end = line
    if end is None:
        return without
    return 1.0 if t >= end else share + (1 - share) * rise(1 - (t - start) / (end - start))


def reference(losses: Callable[[int], float | None], options: dict[str, Any], kappa: float) -> list[float]:
    """The rate of each update; the loss of update t is told after it."""
    o: dict[str, Any] = {"target_loss": None, "peak_gap": None, "div": 10.0, "final_ratio": 0.0, "max_warmup": 0.5}
    o |= {"smoothing": SMOOTHING, "warmup": "linear", "decay": "cosine", "chance_loss": math.inf} | options
    div, rise, fall = o["div"], WARMUPS[o["warmup"]], DECAYS[o["decay"]]
    long = o["max_warmup"] * T if isinstance(o["max_warmup"], float) else o["max_warmup"]
    shortened = min(0.03 * T, math.inf if long is None else long)  # for trained weights
    line, trained = (0, 1 / div, long), False  # the ramp: from where, from which share, to where
    keep = 1 - 1 / max(1.0, o["smoothing"] * T)
    opening = 10 if o["smoothing"] > 0 else 1
    fstar = gap0 = peak_gap = switch = None  # without f*, or out of all scale, the ramp is alone
    mean, seen_at = 0.0, 0
    first: list[float] = []
    share, rates = 1 / div, []
    for t in range(1, T + 1):
        rates.append(share * PEAK)
        loss = losses(t - 1)
        finite = loss is not None and math.isfinite(loss)
        if switch is None and finite:
            if len(first) < opening:
                first.append(min(loss, o["chance_loss"]))
                usual = statistics.median_low([x for x in first if x > 0] or [0])
                if opening > 1:
                    first = [x for x in first if not 0 <= x < 1e-3 * usual]
                if len(first) in (1, opening):
                    f0 = sorted(first)[min(1, len(first) - 1)]
                    if trained != (statistics.median(first) < 0.75 * o["chance_loss"] < math.inf):
                        trained = not trained
                        line = (t, along(line, t, rise, 1 / div), shortened if trained else long)
                    scale = f0 > 0 and statistics.median(first) <= 1.5 * f0
                    fstar = o["target_loss"] if o["target_loss"] is not None else 0.3 * f0 if scale else None
                    if fstar is None:
                        gap0 = peak_gap = None
                    else:
                        gap0 = f0 - fstar
                        shapes = (o["warmup"], o["decay"])
                        peak_gap = (
                            o["peak_gap"] if o["peak_gap"] is not None
                            else PEAK_GAP * gap0 if "calibration" not in o
                            else calibrate(gap0, lr=1.0, div=div, kappa=kappa, target=shapes).peak_gap
                        )  # fmt: skip
                    mean = f0
            elif o["smoothing"] == 0.0:
                mean = loss
            else:
                if loss < 0.0 and o["target_loss"] is None:  # an arbitrary zero: the ramp goes on alone
                    fstar = gap0 = peak_gap = None
                clipped = loss if gap0 is None else min(max(loss, fstar), fstar + gap0)
                mean = clipped + keep ** (t - seen_at) * (mean - clipped)
            seen_at = t
        if switch is None and (finite or loss is None):  # without a loss the ramp goes on, and a bad loss stops it
            ramp = along(line, t, rise, 1 / div)
            if ramp >= 1.0:
                switch = t
            elif peak_gap is None or len(first) < opening:
                share = ramp
            else:
                gap = (mean - fstar) / gap0  # in parts of what there is to lose
                end = peak_gap / gap0
                if gap < end:
                    switch = t
                else:
                    low = 0.0 if line[2] is None else ramp
                    share = max(low, 1 / (1 + (div - 1) / gap * ((gap - end) / (1 - end)) ** 2))
        if switch is not None:
            left = T - switch
            p = max(0, min(t - switch, left - 1)) / max(1, left)
            share = o["final_ratio"] + (1 - o["final_ratio"]) * float(fall(p))
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
@each("stream", STREAMS)
def test_as_the_reference(name: str, stream: str) -> None:
    options, losses = SCHEDULES[name], STREAMS[stream]
    expected = reference(losses, options, kappa=16.0)
    pair = list(SCHEDULES).index(name) + list(STREAMS).index(stream)
    for mode in (("float", "float64"), ("float",), ("float", "float32"), ("float",))[pair % 4]:
        scheduler = AdaptiveWarmup(make_optimizer(given := RATES[mode]()), T, max_nonfinite=None, **options)
        rates = []
        with warnings.catch_warnings(action="ignore"):
            for t in range(T):
                rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
                scheduler.optimizer.step()
                scheduler.step(losses(t))
        assert rates == pytest.approx(expected, rel=1e-6 if mode == "float32" else 1e-9), mode
        assert all(0 < rate <= PEAK * (1 + 1e-6) for rate in rates), mode
        assert mode == "float" or scheduler.optimizer.param_groups[0]["lr"] is given  # filled in place
