"""What is refused, and with which words."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD
from autowarm.optim import Together
from autowarm.schedule import calibrate
from tests.schedule.schedule_runs import PEAK, falling, make_optimizer, run, saved


def test_an_unknown_optimizer_is_taken_as_frobenius_geometry_with_a_warning() -> None:
    class Unheard(torch.optim.SGD):
        pass

    opt = Unheard([nn.Parameter(torch.zeros(2, 2))], lr=0.1)
    with pytest.warns(UserWarning, match="geometry of Unheard is not known: its steps are taken as frobenius geometry"):
        AdaptiveWarmup.paper(opt, 10, target_loss=1.0)
    AdaptiveWarmup.paper(opt, 10, target_loss=1.0, kappa=10.0)
    AdaptiveWarmup.paper(opt, 10, target_loss=1.0, peak_gap=1.0)
    AdaptiveWarmup.paper(opt, 10, target_loss=1.0, geometry="frobenius")
    AdaptiveWarmup(opt, 10)  # none of them needs its geometry


def test_a_peak_gap_beyond_the_first_gap() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10, target_loss=0.5, peak_gap=3.0)
    scheduler.optimizer.step()
    before = saved(scheduler)
    with pytest.raises(ValueError, match=r"peak_gap must lie between 0 and the first gap f\(x0\) − f\* = 1.5, got 3"):
        scheduler.step(2.0)
    assert saved(scheduler)["state"] == before["state"]  # an error leaves it as it was


@pytest.mark.parametrize("absent", [{}, {"geometry": None}, {"kappa": None, "peak_gap": None}])
def test_algorithm_1_is_calibrated_whatever_is_given_as_none(absent: dict[str, None]) -> None:
    scheduler = AdaptiveWarmup.paper(make_optimizer(), 10, target_loss=1.0, sigma_f2=50.0, **absent)
    run(scheduler, falling(), range(1))
    asked = calibrate(falling()(0) - 1.0, lr=PEAK, div=100.0, kappa=16.0, sigma_f2=50.0)
    assert scheduler.profile.peak_gap == asked.peak_gap


def test_numbers_of_other_libraries_are_plain_ones() -> None:
    scheduler = AdaptiveWarmup(
        make_optimizer(), np.int64(20), div=np.float32(50), target_loss=torch.tensor(0.5), max_warmup=np.float64(0.5)
    )
    run(scheduler, falling(), range(3))
    assert saved(scheduler) == scheduler.state_dict()


DEFAULTS = {1: 1, 3: 2, 100: 50, 8_000: 4_000, 8_001: 4_000, 12_000: 4_000, 12_003: 4_001, 64_000: 21_334, None: 2_000}
GIVEN = [(20, 20), (2, 2), (0.2, 20), (1, 100), (1.0, 100), (5000, 100)]  # a share or a number of updates


@pytest.mark.parametrize(
    ("total", "given", "updates"), [*((n, "auto", end) for n, end in DEFAULTS.items()), *((100, *one) for one in GIVEN)]
)
def test_the_longest_warmup_depends_on_the_run_or_is_given(total: int | None, given: Any, updates: int) -> None:
    decay = "cosine" if total else lambda p: 1.0  # an open run's is flat
    scheduler = AdaptiveWarmup(make_optimizer(), total, max_warmup=given, decay=decay)
    assert scheduler.metrics()["warmup_end"] == updates
    if total is not None and total <= 100:
        run(scheduler, lambda t: 5.0, range(updates))
        assert (scheduler.ended_by, scheduler.warmup_steps) == ("clock", updates)


@pytest.mark.parametrize("total_steps", [1e3, np.float64(1000.0), 1000, np.int32(1000)])
def test_a_whole_number_may_have_a_point(total_steps: Any) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), total_steps)
    assert scheduler.state_dict()["settings"]["total_steps"] == 1000
    assert type(scheduler.total_steps) is int
    scheduler.extend(2e3)
    assert type(scheduler.total_steps) is int
    assert scheduler.total_steps == 2000


GEOMETRIES = {
    "Lion": (lambda p: Lion([p], lr=PEAK), 0.05),
    "AdamW": (lambda p: torch.optim.AdamW([p], lr=PEAK), 0.05),
    "RMSprop": (lambda p: torch.optim.RMSprop([p], lr=PEAK), 0.05),
    "Muon": (lambda p: Muon([p], lr=PEAK), 1 / 3),
    "torch's Muon": (lambda p: torch.optim.Muon([p], lr=PEAK), 1 / 3),
    "NormSGD": (lambda p: NormSGD([p], lr=PEAK), 1 / 3),
    "SGD": (lambda p: torch.optim.SGD([p], lr=PEAK), 1 / 3),
    "Muon and AdamW": (lambda p: Together(torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], lr=PEAK),
                                          Muon([p], lr=PEAK)), 1 / 3),
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_geometry_of_the_optimizer_decides_how_far_the_loss_must_fall(name: str) -> None:
    make, share = GEOMETRIES[name]
    scheduler = AdaptiveWarmup(make(torch.nn.Parameter(torch.zeros(4, 4))), 100)
    run(scheduler, lambda t: 5.0, range(10))
    assert (scheduler.profile.gap0, scheduler.profile.peak_gap) == pytest.approx((3.5, share * 3.5))


@pytest.mark.parametrize(("total", "updates"), [(100, 5), (4_000, 200), (20_000, 200), (64_000, 640)])
def test_the_loss_is_averaged_over_a_share_that_falls_with_the_length(total: int, updates: int) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), total)
    run(scheduler, lambda t: 10.0 if t < 10 else 5.0, range(11))
    assert scheduler.metrics()["loss"] == pytest.approx(10.0 - 5.0 / updates)
