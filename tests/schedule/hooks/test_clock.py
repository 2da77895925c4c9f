"""Time is the updates the optimizer made."""

import gc
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from autowarm import AdaptiveWarmup, Lion
from tests.schedule.schedule_runs import PEAK, every_lr, falling, made, make_optimizer, run

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
    scheduler = AdaptiveWarmup(opt, 100, geometry="sign")
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


def test_updates_skipped_before_the_first_one_do_not_count_even_if_gradients_are_gone() -> None:
    opt = make_optimizer()
    scheduler = AdaptiveWarmup(opt, 20)
    x = torch.ones(1, requires_grad=True)
    for _ in range(6):
        opt.zero_grad()
        scheduler.step((5.0 * x).sum())  # the scaler skipped all of these
    assert (scheduler.last_epoch, scheduler.get_last_lr()) == (0, [pytest.approx(PEAK / 10)])


def test_a_scheduler_that_is_gone_no_longer_watches() -> None:
    opt = make_optimizer()
    for _ in range(5):
        AdaptiveWarmup(opt, 10)
        gc.collect()
    assert len(opt._optimizer_step_post_hooks) <= 1


def test_a_dry_run_without_gradients_advances() -> None:
    opt = Lion([nn.Parameter(torch.zeros(3, 3))], lr=PEAK)
    scheduler = AdaptiveWarmup(opt, 30)
    rates = []
    for t in range(30):
        scheduler.step(falling()(t))
        rates.append(scheduler.get_last_lr()[0])
    assert rates[0] == pytest.approx(PEAK / 10)
    assert max(rates) == PEAK
    assert scheduler.phase == "decay"


def test_replayed_updates_are_counted_for_capturable_optimizers() -> None:
    opt = make_optimizer()
    opt.param_groups[0]["capturable"] = True
    scheduler = AdaptiveWarmup(opt, 30)
    for t in range(10):
        scheduler.step(falling()(t))  # the graph's replay made the update, and no Python saw it
    assert scheduler.last_epoch == 10


def test_past_the_horizon_the_rate_stays() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 20, final_ratio=0.1)
    run(scheduler, falling(), range(20))
    last = scheduler.get_last_lr()
    scheduler.optimizer.step()
    with warnings.catch_warnings(action="error"):
        scheduler.step(1.0)  # some loops make one update more than planned
    scheduler.optimizer.step()
    with pytest.warns(UserWarning, match="more than total_steps=20.*counts updates, not epochs"):
        scheduler.step(1.0)
    assert scheduler.get_last_lr() == last
    assert last[0] >= 0.1 * PEAK


@every_lr
def test_several_updates_between_two_calls_count_each(tensor: bool) -> None:
    scheduler = made(tensor, 60)
    for _ in range(20):
        for _ in range(3):
            scheduler.optimizer.step()
        scheduler.step(5.0)
    assert (scheduler.last_epoch, scheduler.warmup_steps, scheduler.phase) == (60, 30, "decay")
    assert float(scheduler.get_last_lr()[0]) < 0.01 * PEAK


@every_lr
def test_updates_that_are_not_seen_are_missed_aloud(tensor: bool) -> None:
    scheduler = made(tensor, 60)
    run(scheduler, falling(), range(5))
    other = make_optimizer()  # swapped in, and the scheduler does not know
    with warnings.catch_warnings(action="error"):
        for t in range(9):
            other.step()
            scheduler.step(falling()(t))
    other.step()
    with pytest.warns(UserWarning, match=r"10 times in a row, but Lion.*make a new scheduler.*Together") as caught:
        scheduler.step(4.0)
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        for t in range(30):
            other.step()
            scheduler.step(falling()(t))
    assert scheduler.last_epoch == 5


def test_another_optimizer_in_the_schedulers_place_is_refused() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 60)
    run(scheduler, falling(), range(10))
    scheduler.optimizer = make_optimizer()
    with pytest.raises(ValueError, match="the scheduler's Lion was replaced by another Lion: make a new scheduler"):
        scheduler.step(5.0)


def test_an_update_inside_the_backward_pass_is_seen() -> None:
    from autowarm.optim import Together

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    each = {p: Lion([p], lr=PEAK) for p in model.parameters()}
    for p, opt in each.items():
        p.register_post_accumulate_grad_hook(lambda p, opt=opt: opt.step())
    scheduler = AdaptiveWarmup(Together(*each.values()), 30)
    with warnings.catch_warnings(action="error"):
        for _ in range(30):
            x = torch.randn(16, 4)
            loss = (model(x) - x).square().mean()
            model.zero_grad()
            loss.backward()
            scheduler.step(loss)
    assert (scheduler.last_epoch, scheduler.phase) == (30, "decay")


@pytest.mark.parametrize("tensor", [False, True])
def test_a_step_that_only_creates_the_state_is_no_update(tensor: bool) -> None:
    """`torch.distributed.checkpoint` steps a new optimizer at rate 0 to learn what its state looks like."""
    model = nn.Linear(4, 4)
    opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(PEAK) if tensor else PEAK)
    scheduler = AdaptiveWarmup(opt, 100, geometry="sign")
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
    scheduler = AdaptiveWarmup(opt, 20, geometry="frobenius", kappa=4.0)
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
