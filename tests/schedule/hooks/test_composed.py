"""Inside PyTorch's own schedulers."""

import copy
import warnings
from collections.abc import Iterable

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, LinearLR, SequentialLR

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import PEAK, falling, make_optimizer, run


def wrapped(name: str, opt: torch.optim.Optimizer) -> tuple[torch.optim.lr_scheduler.LRScheduler, AdaptiveWarmup]:
    ours = AdaptiveWarmup(opt, 12, target_loss=0.5, peak_gap=5.0)
    if name == "ours second":
        return SequentialLR(opt, [ConstantLR(opt, factor=0.5, total_iters=100), ours], milestones=[5]), ours
    return SequentialLR(opt, [ours, LinearLR(opt, 1.0, 0.1, total_iters=8)], milestones=[12]), ours


@pytest.mark.parametrize("name", ["ours second", "ours first"])
@pytest.mark.parametrize("at", [1, 4, 5, 6, 11, 12, 13, 16])
def test_resumed_inside_pytorchs_own_equals_straight(name: str, at: int) -> None:
    def go(outer, ours, steps: Iterable[int]) -> list[float]:
        rates = []
        for t in steps:
            rates.append(outer.optimizer.param_groups[0]["lr"])
            outer.optimizer.step()
            ours.observe(falling()(t))
            outer.step()
        return rates

    with warnings.catch_warnings(action="ignore"):
        straight = go(*wrapped(name, make_optimizer()), range(20))
        first = wrapped(name, make_optimizer())
        head = go(*first, range(at))
        state, opt_state = copy.deepcopy(first[0].state_dict()), first[0].optimizer.state_dict()
        second = wrapped(name, make_optimizer())
        second[0].optimizer.load_state_dict(opt_state)
        second[0].load_state_dict(state)
        assert head + go(*second, range(at, 20)) == straight
    if name == "ours second":  # it starts at its milestone
        alone = AdaptiveWarmup(make_optimizer(), 12, target_loss=0.5, peak_gap=5.0)
        assert straight[:5] == [PEAK / 2] * 5
        assert straight[5:17] == pytest.approx(run(alone, lambda t: falling()(t + 5), range(12)))


def test_an_update_skipped_right_after_the_milestone_does_not_count() -> None:
    opt = make_optimizer()
    first, ours = ConstantLR(opt, factor=0.5, total_iters=100), AdaptiveWarmup(opt, 20, peak_gap=1.0, target_loss=0.5)
    sequence = SequentialLR(opt, [first, ours], milestones=[2])
    for _ in range(2):
        opt.step()
        sequence.step()
    ours.observe(5.0)
    sequence.step()
    assert ours.last_epoch == 0
