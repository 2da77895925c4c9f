"""What is refused, and with which words."""

from typing import Any

import numpy as np
import pytest
import torch

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD
from autowarm.optim import Together
from autowarm.schedule import calibrate
from tests.schedule.schedule_runs import PEAK, falling, group, make_optimizer, run, saved


@pytest.mark.parametrize("total_steps", [1e3, np.float64(1000.0), np.int64(1000)])
def test_numbers_of_other_libraries_are_plain_ones(total_steps: Any) -> None:
    given = {"div": np.float32(50), "target_loss": torch.tensor(0.5), "max_warmup": np.float64(0.5)}
    scheduler = AdaptiveWarmup(make_optimizer(), total_steps, **given)
    run(scheduler, falling(), range(3))
    assert saved(scheduler) == scheduler.state_dict()
    assert (type(scheduler.total_steps), scheduler.total_steps) == (int, 1000)


DEFAULTS = {1: 1, 3: 2, 100: 50, 8_000: 4_000, 8_001: 4_000, 12_000: 4_000, 12_003: 4_001, 64_000: 21_334, None: 2_000}
GIVEN = [(20, 20), (2, 2), (0.2, 20), (1.0, 100), (5000, 100)]  # a share or a number of updates


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


@pytest.mark.parametrize("gap0", [8.0, 8.2, 8.5])
def test_a_profile_for_another_first_gap_is_refused_at_the_first_loss(gap0: float) -> None:
    profile = calibrate(gap0, lr=PEAK, div=100.0, kappa=16.0, rho=3.0)
    scheduler = AdaptiveWarmup.paper(make_optimizer(), 60, target_loss=1.0, profile=profile)
    scheduler.step(9.2)  # a first gap of 8.2
    other = AdaptiveWarmup.paper(make_optimizer(), 60, target_loss=1.0, profile=profile)
    with pytest.raises(ValueError, match=f"for a first gap of {gap0:g}, and that of the run is .* = 15"):
        other.step(16.0)


TWO = [lambda p: 1 - p, lambda p: 1 - p * p]  # of one name
OWN_PROFILES = [lambda gap: gap / (1 + gap * gap), lambda gap: gap / (1 + gap * gap) ** 2 if gap > 1 else gap / 4]
FUNCTIONS: dict[str, list[dict[str, Any]]] = {
    "decay": [{"decay": one} for one in TWO],
    "warmup": [{"warmup": one} for one in TWO],
    "profile": [{"profile": one, "peak_gap": 1.0} for one in OWN_PROFILES],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_compared_by_their_values(name: str) -> None:
    one, other = (AdaptiveWarmup(make_optimizer(), 100, **options) for options in FUNCTIONS[name])
    again = AdaptiveWarmup(make_optimizer(), 100, **FUNCTIONS[name][0])
    assert one._ranks.mark == again._ranks.mark != other._ranks.mark  # what ranks compare
    again.load_state_dict(saved(one))
    with pytest.raises(ValueError, match=f"differs from this one: {name}: saved '<lambda>, with values of checksum"):
        other.load_state_dict(saved(one))


@pytest.mark.parametrize("late", [0, 5, 30])
def test_a_negative_loss_leaves_no_scale(late: int) -> None:
    scheduler, given = (AdaptiveWarmup(make_optimizer(), 100, target_loss=target) for target in (None, -20.0))
    for one in (scheduler, given):
        run(one, lambda t: -0.5 if t == late else 10.0 - 0.1 * t, range(40))
    assert scheduler.profile is scheduler.target_loss is None
    assert given.profile is not None
    assert 60 > scheduler.metrics()["warmup_end"] >= 40  # the ramp alone
    run(scheduler, lambda t: -5.0, range(40, 60))
    assert scheduler.ended_by == "clock"


@pytest.mark.parametrize("tensor", [False, True])
def test_the_metrics_have_one_rate_for_each_distinct_peak(tensor: bool) -> None:
    opt = torch.optim.SGD([group(tensor, lr) for lr in (0.1, 0.3, 0.1, 0.3, 0.0)])
    scheduler = AdaptiveWarmup(opt, 100)
    run(scheduler, falling(), range(20))
    rates = {name: x for name, x in scheduler.metrics().items() if name.startswith("lr")}
    assert list(rates) == ["lr", "lr_1", "lr_4"]
    assert rates["lr_4"] == 0.0  # a frozen group stays frozen
    assert list(rates.values()) == [float(opt.param_groups[i]["lr"]) for i in (0, 1, 4)]
