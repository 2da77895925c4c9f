"""The authors' scheduler, transcribed, beside Algorithm 1: they differ as settings.csv says."""

import math
from collections.abc import Iterator

import pytest
import torch

from autowarm import AdaptiveWarmup, Lion
from autowarm.lab.paper.settings import SCRIPTS

T, LR, DIV, TARGET, PEAK_GAP = 200, 1e-3, 100.0, 3.0, 2.0
# The gap is exactly Δ' at update 30, and below from 31 on.
LOSSES = [TARGET + PEAK_GAP + (30 - t) / (10.0 if t < 30 else 100.0) for t in range(T)]


def one_cycle(steps: int) -> Iterator[float]:
    """PyTorch's scheduler of the same name without its own warm-up, stepped before the rate is read."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=LR, total_steps=steps, pct_start=0.0, div_factor=1.0, cycle_momentum=False
    )
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        yield optimizer.param_groups[0]["lr"]


def scripts() -> tuple[list[float], int]:
    """Return the rates of all updates, line by line, and the number of updates in warm-up."""
    gap0 = LOSSES[0] - TARGET
    K2 = gap0 * (DIV - 1) / (LR * (gap0 - PEAK_GAP) ** 2)  # App. K_012
    K1, K0 = 1 / LR - 2 * K2 * PEAK_GAP, K2 * PEAK_GAP**2
    rates: list[float] = []
    decay: Iterator[float] | None = None
    warmup_steps = 0
    for loss in LOSSES:
        gap = loss - TARGET
        if gap > PEAK_GAP and decay is None:
            warmup_steps += 1
            rates.append(gap / (K0 + K1 * gap + K2 * gap**2))
        else:
            decay = decay or one_cycle(T - warmup_steps)
            rates.append(next(decay))
    return rates, warmup_steps


def ours() -> tuple[list[float], int]:
    optimizer = Lion([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = AdaptiveWarmup.paper(optimizer, T, target_loss=TARGET, div=DIV, peak_gap=PEAK_GAP)
    rates = []
    for loss in LOSSES:
        scheduler.step(loss)  # before the optimizer, as in Algorithm 1
        rates.append(optimizer.param_groups[0]["lr"])
    return rates, scheduler.warmup_steps


def phase(rate: float, last: float, steps: int) -> float:
    """How many of its steps a cosine from LR to `last` has made at this rate."""
    return steps * math.acos(2 * (rate - last) / (LR - last) - 1) / math.pi


def test_the_scripts_differ_from_it_as_the_table_says() -> None:
    rates, warmup_steps = scripts()
    found, updates = ours()
    theirs = {one.key: one.value for one in SCRIPTS}
    assert rates[:30] == pytest.approx(found[:30])
    assert (warmup_steps, updates) == (30, 31)
    assert theirs.pop("warm-up ends at") == "Δ ≤ Δ'"
    steps, lowest = T - warmup_steps, min(rates)
    assert lowest / LR == pytest.approx(theirs.pop("last rate / lr"))
    begun = theirs.pop("first decaying update, in steps of the cosine")
    assert phase(rates[warmup_steps], lowest, steps) == pytest.approx(begun)
    assert phase(found[updates], 0.0, T - updates) == pytest.approx(0.0, abs=1e-6)
    assert theirs == {}
