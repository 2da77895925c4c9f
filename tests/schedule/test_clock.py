"""Time is the updates the optimizer made."""

import copy
import gc
import math
import warnings
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, LinearLR, SequentialLR

from autowarm import AdaptiveWarmup, Lion
from tests.schedule.schedule_runs import PEAK, falling, made, make_optimizer, run

OPTIMIZERS: dict[str, Callable] = {
    "Lion": lambda params: Lion(params, lr=PEAK),
    "fused AdamW": lambda params: torch.optim.AdamW(params, lr=PEAK, fused=True),  # which the scaler steps regardless
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_update_counts_neither_as_step_nor_as_observation(name: str) -> None:
    """A real GradScaler whose first scale overflows, then one overflow in the middle."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    opt = OPTIMIZERS[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    scheduler = AdaptiveWarmup(opt, 100, calibration="sign")
    seen, updates = [], 0
    for t in range(20):
        opt.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        overflow = t in (0, 1, 7)
        if overflow:
            model.weight.grad[0, 0] = math.inf
        scaler.step(opt)
        scaler.update()
        updates += not overflow
        before = scheduler.get_last_lr(), scheduler.last_epoch
        scheduler.step(loss)
        # Before the first update ever, a loss may be taken: Algorithm 1's order looks the same. It moves nothing.
        if overflow:
            assert (scheduler.get_last_lr(), scheduler.last_epoch) == (pytest.approx(before[0]), before[1])
        seen.append(scheduler.last_epoch)
    assert seen[-1] == updates == 17


def test_a_scheduler_that_is_gone_no_longer_watches() -> None:
    opt = make_optimizer()
    for _ in range(5):
        AdaptiveWarmup(opt, 10)
        gc.collect()
    assert len(opt._optimizer_step_post_hooks) <= 1


@pytest.mark.parametrize(
    ("options", "traced", "counted"),
    [
        ({}, True, 0),  # a GradScaler skipped all of them, and the gradients are gone
        ({}, False, 9),  # a dry run of the schedule, with losses that are made up: the first comes before an update
        ({"capturable": True}, True, 10),  # a graph's replays made the updates, and no Python saw them
    ],
)
def test_calls_that_find_neither_an_update_nor_a_gradient(options: dict, traced: bool, counted: int) -> None:
    opt = Lion([nn.Parameter(torch.zeros(3, 3))], lr=PEAK)
    opt.param_groups[0].update(options)
    scheduler = AdaptiveWarmup(opt, 10)
    for t in range(10):
        loss = torch.tensor(falling()(t), requires_grad=traced)
        scheduler.step(1.0 * loss)
    assert scheduler.last_epoch == counted
    assert (scheduler.get_last_lr()[0] == pytest.approx(PEAK / 10)) == (not counted)


def test_another_optimizer_in_the_schedulers_place_is_refused() -> None:
    scheduler = made()
    scheduler.optimizer = make_optimizer()
    with pytest.raises(ValueError, match="the scheduler's Lion was replaced by another Lion: make a new scheduler"):
        scheduler.step(5.0)


@pytest.mark.parametrize("tensor", [False, True])
def test_a_step_that_only_creates_the_state_is_no_update(tensor: bool) -> None:
    """`torch.distributed.checkpoint` steps a new optimizer at rate 0 to learn what its state looks like."""
    model = nn.Linear(4, 4)
    opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(PEAK) if tensor else PEAK)
    scheduler = AdaptiveWarmup(opt, 100, calibration="sign")
    get_optimizer_state_dict(model, opt)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        opt.step()
        scheduler.step(5.0)
    assert scheduler.last_epoch == 3


@pytest.mark.parametrize("raises", [False, True], ids=["", "after a step that raised"])
def test_a_step_that_calls_its_parents_is_one_update(raises: bool) -> None:
    """PyTorch runs the hooks of both classes, once an optimizer of the parent's class was made."""

    class Noted(torch.optim.SGD):
        broken = False

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            if self.broken:
                raise RuntimeError
            super().step()

    p = torch.nn.Parameter(torch.ones(2))
    torch.optim.SGD([p])
    opt = Noted([p], lr=0.1)
    scheduler = AdaptiveWarmup(opt, 20)
    for t in range(10):
        p.grad = torch.ones(2)
        if raises and t == 4:
            opt.broken = True
            with pytest.raises(RuntimeError):
                opt.step()
            opt.broken = False
        opt.step()
        scheduler.step(5.0)
    assert scheduler.last_epoch == 10


@pytest.mark.parametrize("at", [0, 9])
@pytest.mark.parametrize("updates", [-1, 5, 100])
def test_the_count_of_updates_is_not_to_be_set(at: int, updates: int) -> None:
    scheduler, plain = made(), made()
    run(scheduler, falling(), range(at))
    if at or updates > 0:
        with pytest.raises(AttributeError, match=f"the updates made, {at}, and cannot be set to {updates}: resume by"):
            scheduler.last_epoch = updates
    scheduler.last_epoch = at
    assert run(plain, falling(), range(40))[at:] == run(scheduler, falling(), range(at, 40))


# Inside PyTorch's own schedulers


def wrapped(name: str, opt: torch.optim.Optimizer) -> tuple[torch.optim.lr_scheduler.LRScheduler, AdaptiveWarmup]:
    ours = AdaptiveWarmup(opt, 12, target_loss=0.5, peak_gap=5.0)
    if name == "ours second":
        return SequentialLR(opt, [ConstantLR(opt, factor=0.5, total_iters=100), ours], milestones=[5]), ours
    if name == "chained":
        return ChainedScheduler([ours, ConstantLR(opt, factor=1.0)], optimizer=opt), ours
    if name == "in a sequence of a sequence":
        inner = SequentialLR(opt, [ours, LinearLR(opt, 1.0, 0.1, total_iters=8)], milestones=[12])
        return SequentialLR(opt, [inner, ConstantLR(opt, factor=0.5, total_iters=100)], milestones=[16]), ours
    return SequentialLR(opt, [ours, LinearLR(opt, 1.0, 0.1, total_iters=8)], milestones=[12]), ours


@pytest.mark.parametrize("name", ["ours second", "ours first", "chained", "in a sequence of a sequence"])
@pytest.mark.parametrize("at", [4, 5, 6, 12, 16])
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
    else:  # it starts with the run; PyTorch's inner sequence is an update ahead of the outer one
        alone = AdaptiveWarmup(make_optimizer(), 12, target_loss=0.5, peak_gap=5.0)
        assert straight[:11] == run(alone, falling(), range(11))
