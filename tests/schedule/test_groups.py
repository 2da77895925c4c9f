"""Parameter groups of every kind, and others who change their rates."""

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LambdaLR, MultiStepLR

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD
from tests.schedule.schedule_runs import PEAK, every_lr, falling, group, made, make_optimizer, rate, saved


def train(scheduler: AdaptiveWarmup, first: int, last: int) -> list[list[float]]:
    """By update, the rates of all groups."""
    rates = []
    for t in range(first, last):
        scheduler.optimizer.step()
        rates.append([float(group["lr"]) for group in scheduler.optimizer.param_groups])
        scheduler.step(falling()(t))
    return rates


@every_lr
@pytest.mark.parametrize("at", [1, 9, 40])
def test_resumed_a_group_without_a_warmup_is_still_one(tensor: bool, at: int) -> None:
    def make(**options) -> AdaptiveWarmup:
        return AdaptiveWarmup(Lion([group(tensor), group(tensor, **options)]), 60)

    straight = train(make(warmup=False), 0, 60)
    first, second = make(warmup=False), make()  # the state knows it, whatever the group says
    head = train(first, 0, at)
    second.load_state_dict(saved(first))
    assert head + train(second, at, 60) == straight


@pytest.mark.parametrize("make", [Muon, Lion, SignSGD, NormSGD, torch.optim.SGD], ids=lambda make: make.__name__)
def test_every_optimizer_takes_such_groups(make: Callable) -> None:
    opt = make([group(), group(False, warmup=False)], lr=PEAK)
    AdaptiveWarmup(opt, 10, geometry="frobenius")
    assert [g["lr"] for g in opt.param_groups] == [PEAK / 10, PEAK]


@every_lr
def test_a_group_added_on_the_way_takes_the_common_share_from_its_first_update(tensor: bool) -> None:
    scheduler = AdaptiveWarmup(Lion([group(tensor)]), 60)
    train(scheduler, 0, 7)
    scheduler.optimizer.add_param_group(group(tensor, PEAK / 5))
    rates = train(scheduler, 7, 60)
    assert [b for _, b in rates] == pytest.approx([a / 5 for a, _ in rates])
    assert len(scheduler.get_last_lr()) == len(scheduler.base_lrs) == 2


@every_lr
def test_resumed_with_a_group_that_was_added_on_the_way(tensor: bool) -> None:
    def make() -> AdaptiveWarmup:
        return AdaptiveWarmup(Lion([group(tensor)]), 60)

    first, second, third = make(), make(), make()
    train(first, 0, 7)
    first.optimizer.add_param_group(group(tensor, PEAK / 5))
    train(first, 7, 20)
    with pytest.raises(ValueError, match="parameter groups: saved 2, here 1"):
        second.load_state_dict(saved(first))
    second.optimizer.add_param_group(group(tensor, PEAK / 3))  # its saved peak holds
    second.load_state_dict(saved(first))
    assert saved(second) == saved(first)
    # A group that the state does not know follows the common share.
    third.optimizer.add_param_group(group(tensor))
    third.optimizer.add_param_group(group(tensor, PEAK / 2))
    third.load_state_dict(saved(first))
    rates = train(first, 20, 60)
    assert train(second, 20, 60) == rates
    assert [c for *_, c in train(third, 20, 60)] == pytest.approx([a / 2 for a, _ in rates])


def test_groups_that_share_one_tensor_have_rates_of_their_own() -> None:
    """PyTorch puts one tensor lr into all groups and the defaults, from which later groups take theirs."""

    def rates(lr: float | torch.Tensor) -> list[list[float]]:
        first, second, third = (list(nn.Linear(4, 4).parameters()) for _ in range(3))
        opt = Lion([{"params": first}, {"params": second, "warmup": False}], lr=lr)
        sched, found = AdaptiveWarmup(opt, 100), []
        for step in range(60):
            if step == 10:
                opt.add_param_group({"params": third})
            found.append([float(one["lr"]) for one in opt.param_groups])
            opt.step()
            sched.step(5.0)
        return found

    expected = rates(PEAK)
    assert expected[9][0] < expected[9][1] == PEAK
    assert expected[20][2] == expected[20][0]
    for one, other in zip(rates(torch.tensor(PEAK, dtype=torch.float64)), expected, strict=True):
        assert one == pytest.approx(other, rel=1e-12)


def test_rates_of_zero_as_a_loop_may_skip_a_batch_leave_nothing_behind() -> None:
    scheduler = AdaptiveWarmup(torch.optim.SGD([group(), group()], lr=PEAK), 60)
    plain = train(AdaptiveWarmup(torch.optim.SGD([group(), group()], lr=PEAK), 60), 0, 30)
    train(scheduler, 0, 20)
    for one in scheduler.optimizer.param_groups:
        one["lr"] = 0.0
    assert [row[0] for row in train(scheduler, 20, 30)] == [0.0, *(a for a, _ in plain[21:])]


BAD = (float("nan"), float("inf"), -0.1)
CHANGES: dict[str, Callable[[list[dict]], object]] = {
    "3 parameter groups were removed, .* are 2 now: make a new scheduler": lambda groups: groups.pop(),
    "3 parameter groups were .* put in another order.*make a new scheduler": lambda groups: groups.reverse(),
    **{f"a parameter group was added with lr={lr}": lambda groups, lr=lr: groups.append(group(lr=lr)) for lr in BAD},
}


@pytest.mark.parametrize("said", CHANGES)
def test_groups_that_are_gone_or_bad_are_told(said: str) -> None:
    scheduler = AdaptiveWarmup(torch.optim.SGD([group(), group(), group()], lr=0.1), 60, geometry="sign")
    CHANGES[said](scheduler.optimizer.param_groups)
    with pytest.raises(ValueError, match=said):
        scheduler.optimizer.step()


@every_lr
def test_a_frozen_group_stays_frozen(tensor: bool) -> None:
    opt = torch.optim.SGD([group(tensor, 0.0), group(tensor)], lr=PEAK)
    scheduler = AdaptiveWarmup(opt, 40, geometry="sign")
    rates = train(scheduler, 0, 40)
    assert {a for a, _ in rates} == {0.0}
    assert max(b for _, b in rates) == PEAK
    other = AdaptiveWarmup(torch.optim.SGD([group(tensor, 0.0), group(tensor)], lr=PEAK), 40, geometry="sign")
    other.load_state_dict(saved(scheduler))
    assert saved(other) == saved(scheduler)


@every_lr
@pytest.mark.parametrize("lr", BAD)
def test_peak_rates_that_are_none(lr: float, tensor: bool) -> None:
    opt = torch.optim.SGD([group(tensor), group(tensor)], lr=0.1)
    opt.param_groups[1]["lr"] = rate(tensor, lr)
    with pytest.raises(ValueError, match="every group's lr must be finite and not negative, and one positive"):
        AdaptiveWarmup(opt, 10, geometry="sign")


FACTORS: dict[str, tuple[Callable[..., list[Any]], Callable[[int], float]]] = {
    "chained": (
        lambda ours, opt: [ChainedScheduler([ours, ExponentialLR(opt, 0.9)], optimizer=opt)], lambda t: 0.9**t
    ),
    "beside ours": (
        lambda ours, opt: [ours, MultiStepLR(opt, [11, 21], 0.5)], lambda t: 0.5 ** ((t > 10) + (t > 20))
    ),
}  # fmt: skip


@every_lr
@pytest.mark.parametrize("at", [1, 9, 10, 11, 25])
@pytest.mark.parametrize("other", FACTORS)
def test_what_another_scheduler_makes_of_the_rate_is_a_factor_and_resumed(other: str, at: int, tensor: bool) -> None:
    make, factor = FACTORS[other]

    def go(first: int, last: int, ours: AdaptiveWarmup, steps: list[Any]) -> list[float]:
        rates = []
        for t in range(first, last):
            ours.optimizer.step()
            rates.append(float(ours.optimizer.param_groups[0]["lr"]))
            ours.observe(falling()(t))
            for one in steps:
                one.step()
        return rates

    plain = [a for (a,) in train(AdaptiveWarmup(Lion([group(tensor)]), 40), 0, 40)]
    straight, resumed = (AdaptiveWarmup(Lion([group(tensor)]), 40) for _ in range(2))
    first, second = (make(ours, ours.optimizer) for ours in (straight, resumed))
    head = go(0, at, straight, first)
    resumed.optimizer.load_state_dict(straight.optimizer.state_dict())
    for one, other in zip(second, first, strict=True):
        one.load_state_dict(saved(other))
    tail = go(at, 40, resumed, second)
    assert head + tail == pytest.approx([a * factor(t) for t, a in enumerate(plain)])
    assert go(at, 40, straight, first) == tail


def test_a_scheduler_that_sets_the_rate_is_no_factor_in_a_chain_and_said_so() -> None:
    opt = Lion([group()])
    ours = AdaptiveWarmup(opt, 40)
    both = ChainedScheduler([ours, LambdaLR(opt, lambda t: 0.9)], optimizer=opt)

    def updates() -> None:
        for _ in range(3):
            opt.step()
            ours.observe(3.0)
            both.step()

    with pytest.warns(UserWarning, match=r"from outside once.*not LambdaLR, which sets the rate"):
        updates()


def test_a_rate_raised_above_its_peak_is_not_kept_and_said_so() -> None:
    scheduler = AdaptiveWarmup(Lion([group()]), 40)
    train(scheduler, 0, 30)
    scheduler.optimizer.param_groups[0]["lr"] = 3 * PEAK
    with pytest.warns(UserWarning, match="the rate was changed from outside once.*to 0.03, where the schedule"):
        train(scheduler, 30, 31)
    assert scheduler.get_last_lr()[0] < PEAK
    scheduler.optimizer.step()
    scheduler.optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match="the lr of parameter group 0 was set to nan from outside"):
        scheduler.step(1.0)


@every_lr
@pytest.mark.parametrize("scheduler_too", [False, True])
def test_an_optimizers_checkpoint_is_nobodys_factor(tensor: bool, scheduler_too: bool) -> None:
    old = AdaptiveWarmup(Lion([group(tensor)]), 40)
    train(old, 0, 30)
    plain = train(AdaptiveWarmup(Lion([group(tensor)]), 40), 0, 40)
    new = AdaptiveWarmup(Lion([group(tensor)]), 40)
    with warnings.catch_warnings(action="error"):
        if scheduler_too:
            new.load_state_dict(saved(old))
            new.optimizer.load_state_dict(old.optimizer.state_dict())
            assert train(new, 30, 40) == plain[30:]
        else:
            new.optimizer.load_state_dict(old.optimizer.state_dict())
            assert train(new, 0, 40)[1:] == plain[1:]


@every_lr
def test_a_rate_set_before_the_first_update_is_a_factor_and_never_a_peak(tensor: bool) -> None:
    opt = Lion([group(tensor), group(tensor)])
    scheduler = AdaptiveWarmup(opt, 100)
    opt.param_groups[0]["lr"] = rate(tensor, PEAK / 20)  # half of lr/div
    rates = train(scheduler, 0, 100)
    assert [a for a, _ in rates] == pytest.approx([b / 2 for _, b in rates])
    assert max(b for _, b in rates) == PEAK
    assert [float(peak) for peak in scheduler.base_lrs] == [PEAK, PEAK]


WARMUPS = {f"own warm-up of {n}": (lambda t, lr, n=n: PEAK * (t + 1) / n if t < n else lr) for n in (10, 100, 500)}
WRITERS = {
    **WARMUPS,
    "a cap": lambda t, lr: min(lr, 0.4 * PEAK) if t < 500 else lr,
    "a restart": lambda t, lr: PEAK if t == 300 else lr,
    "another schedule for a while": lambda t, lr: PEAK * 0.9**t if 50 <= t < 80 else lr,
}


@every_lr
@pytest.mark.parametrize("when", ["before the update", "before the scheduler's step"])
@pytest.mark.parametrize("writer", WRITERS)
def test_rates_that_others_set_hold_while_they_do_and_leave_nothing_behind(
    writer: str, when: str, tensor: bool
) -> None:
    plain = [a for (a,) in train(AdaptiveWarmup(Lion([group(tensor)]), 600), 0, 600)]
    opt = Lion([group(tensor)])
    scheduler, rates = AdaptiveWarmup(opt, 600), []

    def write(t: int) -> None:
        lr = float(opt.param_groups[0]["lr"])
        if (theirs := WRITERS[writer](t, lr)) != lr:
            opt.param_groups[0]["lr"] = rate(tensor, theirs)

    with warnings.catch_warnings(record=True, action="always") as said:
        for t in range(600):
            if when == "before the update":
                write(t)
            rates.append(float(opt.param_groups[0]["lr"]))
            opt.step()
            if when != "before the update":
                write(t)
            scheduler.step(falling()(t))
    expected = [WRITERS[writer](t, lr) for t, lr in enumerate(plain)] if when == "before the update" else plain
    differ = [t for t, (a, b) in enumerate(zip(rates, expected, strict=True)) if a != pytest.approx(b, rel=1e-9)]
    # One change alone is a factor; at the next one it is known that somebody sets the rates.
    assert len(differ) <= (when != "before the update")
    [warning] = said
    assert f"The peak given is still {PEAK}" in str(warning.message)


# Inside `torch.inference_mode` and `torch.autocast`, in turns with steps outside


MODES: dict[str, Any] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@every_lr
@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_schedule_that_is_made_stepped_or_changed_in_a_mode_has_the_same_rates(
    mode: str, turn: int, tensor: bool
) -> None:
    """What is inside changes from turn to turn, at every so many updates."""
    plain = made(tensor)

    def inside(t: int) -> AbstractContextManager[object]:
        return MODES[mode]() if t // 5 % (turn + 1) else nullcontext()

    with inside(5 * (turn > 1)):
        lr = rate(tensor)
    opt = make_optimizer(lr)
    with inside(5 * (turn != 2)):
        scheduler = AdaptiveWarmup(opt, 100)
    for t in range(60):
        for one, where in ((plain, nullcontext()), (scheduler, inside(t))):
            with where:
                if t in (5, 10, 15):
                    one.load_state_dict(copy.deepcopy(one.state_dict()))
                if t in (20, 25, 30):
                    one.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
                if t in (35, 40, 45):
                    one.extend(100 + t)
                one.optimizer.step()
                one.step(torch.tensor(falling()(t), dtype=torch.float64))
        assert [float(x) for x in scheduler.get_last_lr()] == [float(x) for x in plain.get_last_lr()]
        assert float(opt.param_groups[0]["lr"]) == float(plain.get_last_lr()[0])
