"""Another scheduler on the same optimizer is named, unless it is there on purpose; rates set before a run are peaks."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from schedule_runs import PEAK, make_optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from autowarm import AdaptiveWarmup
from autowarm.optim import Together
from autowarm.rate.find import set_rate

LEFT: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "CosineAnnealingLR": lambda opt: CosineAnnealingLR(opt, 60),
    "LambdaLR": lambda opt: LambdaLR(opt, lambda t: min(1.0, t / 5)),  # what transformers makes
    "LinearLR": lambda opt: LinearLR(opt, total_iters=40),
    "ExponentialLR": lambda opt: ExponentialLR(opt, 0.99),
    "StepLR": lambda opt: StepLR(opt, 10),
    "OneCycleLR": lambda opt: OneCycleLR(opt, 0.1, 60),
    "AdaptiveWarmup": lambda opt: AdaptiveWarmup(opt, 60),
}
tensor_or_float = pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])


def make(tensor: bool) -> torch.optim.Optimizer:
    opt = make_optimizer(torch.tensor(PEAK, dtype=torch.float64) if tensor else PEAK)
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)  # an optimizer with a state has been used
    return opt


def train(ours: AdaptiveWarmup, *calls: Callable[[int], object], updates: int = 50) -> list[str]:
    """Train; returns what was warned about."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for t in range(updates):
            ours.optimizer.step()
            for call in calls:
                call(t)
    assert all(warning.filename == __file__ for warning in heard)  # they point at the user's line
    return [str(warning.message) for warning in heard]


def stepped(other: Any) -> Callable[[int], object]:
    return lambda t: other.step(5.0) if isinstance(other, AdaptiveWarmup) else other.step()


@tensor_or_float
@pytest.mark.parametrize("order", ["ours first", "ours last"])
@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("name", LEFT)
def test_a_scheduler_left_beside_ours_is_named_once(name: str, made: str, order: str, tensor: bool) -> None:
    opt = make(tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if made == "before":
            other, ours = LEFT[name](opt), AdaptiveWarmup(opt, 60)
        else:
            ours, other = AdaptiveWarmup(opt, 60), LEFT[name](opt)
    calls = [lambda t: ours.step(5.0), stepped(other)]
    said = train(ours, *(calls if order == "ours first" else calls[::-1]))
    ours_said = [text for text in said if "sets the rates of this optimizer too" in text]
    assert len(ours_said) == (2 if name == "AdaptiveWarmup" else 1)
    assert ours_said[0].startswith(name)
    assert ("keep one of them" if name == "AdaptiveWarmup" else "delete it") in ours_said[0]
    assert not any("this is not kept" in text for text in said)  # it would be wrong: the updates use those rates


def test_one_that_is_none_of_pytorchs_is_named_too() -> None:
    schedulers = pytest.importorskip("timm.scheduler")
    opt = make(False)
    ours, other = AdaptiveWarmup(opt, 60), schedulers.CosineLRScheduler(opt, 60)
    [said] = train(ours, lambda t: ours.step(5.0), other.step)
    assert said.startswith("CosineLRScheduler")


@tensor_or_float
def test_beside_an_optimizer_inside_ours_it_is_named(tensor: bool) -> None:
    inner = [make(tensor), make(tensor)]
    ours = AdaptiveWarmup(Together(*inner), 60)
    other = ExponentialLR(inner[1], 0.9)
    [said] = train(ours, lambda t: ours.step(5.0), stepped(other))
    assert said.startswith("ExponentialLR")


WANTED: dict[str, Callable[[AdaptiveWarmup], Any]] = {
    "chained": lambda ours: ChainedScheduler([ours, ExponentialLR(ours.optimizer, 0.9)], optimizer=ours.optimizer),
    "chained, changed at once": lambda ours: ChainedScheduler(
        [ours, ConstantLR(ours.optimizer, 0.5, 100)], optimizer=ours.optimizer
    ),
    "sequential": lambda ours: SequentialLR(
        ours.optimizer, [ConstantLR(ours.optimizer, 0.5, 100), ours], milestones=[5]
    ),
}


@tensor_or_float
@pytest.mark.parametrize("name", WANTED)
def test_what_is_composed_with_ours_is_wanted(name: str, tensor: bool) -> None:
    ours = AdaptiveWarmup(make(tensor), 60)
    outer = WANTED[name](ours)

    def step(t: int) -> None:
        ours.observe(5.0)
        outer.step()

    assert train(ours, step) == []
    assert [float(lr) for lr in ours.base_lrs] == [PEAK]


@tensor_or_float
def test_a_plateau_is_wanted(tensor: bool) -> None:
    ours = AdaptiveWarmup(make(tensor), 60)
    plateau = ReduceLROnPlateau(ours.optimizer, factor=0.5, patience=3)
    assert train(ours, lambda t: ours.step(5.0), lambda t: plateau.step(5.0)) == []


def test_one_that_is_not_stepped_is_not_named() -> None:
    opt = make(False)
    idle = CosineAnnealingLR(opt, 60)
    ours = AdaptiveWarmup(opt, 60)

    def halve(t: int) -> None:
        opt.param_groups[0]["lr"] *= 0.5

    assert train(ours, lambda t: ours.step(5.0), halve) == []
    assert idle.optimizer is opt


def test_a_schedule_that_was_replaced_is_not_named() -> None:
    opt = make(False)
    first = AdaptiveWarmup(opt, 60)
    second = AdaptiveWarmup(opt, 30)
    assert train(second, lambda t: second.step(5.0), updates=30) == []
    assert first.last_epoch == 0


@tensor_or_float
@pytest.mark.parametrize("order", ["after", "before"])
@pytest.mark.parametrize("through", ["set", "a loaded state"])
def test_a_rate_set_before_the_first_update_is_the_peak(through: str, order: str, tensor: bool) -> None:
    new = 3e-3
    ours, plain = AdaptiveWarmup(make(tensor), 60), AdaptiveWarmup(make_optimizer(new), 60)
    if through == "a loaded state":
        trained = AdaptiveWarmup(make(tensor), 60)
        train(trained, lambda t: trained.step(5.0), updates=10)
        ours.optimizer.load_state_dict(trained.optimizer.state_dict())
    [group] = ours.optimizer.param_groups
    if tensor:
        group["lr"].fill_(new)
    else:
        group["lr"] = new
    rates: list[list[float]] = [[], []]
    for scheduler, found in zip((ours, plain), rates, strict=True):
        for _ in range(60):
            if order == "before":
                scheduler.step(5.0)
            scheduler.optimizer.step()
            found.append(float(scheduler.optimizer.param_groups[0]["lr"]))
            if order == "after":
                scheduler.step(5.0)
    assert rates[0] == pytest.approx(rates[1], rel=1e-12)
    assert max(rates[0]) == pytest.approx(new)
    assert ours.profile == plain.profile
    assert group["initial_lr"] == pytest.approx(new)


@tensor_or_float
@pytest.mark.parametrize(("by", "restores"), [("a scheduler", True), ("hand", True), ("hand", False)])
@pytest.mark.parametrize("trials", [2, 37])
def test_a_rate_that_a_finder_leaves_is_the_peak(trials: int, by: str, restores: bool, tensor: bool) -> None:
    new, opt = 3e-3, make(tensor)
    ours = AdaptiveWarmup(opt, 60 if restores else 60 + trials)  # what is not undone counts
    saved = opt.state_dict()
    tried: Any = ExponentialLR(opt, 1.3) if by == "a scheduler" else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(trials):
            opt.step()
            if tried is None:
                set_rate(opt.param_groups[0], 1e-5 * 1.3**t)
            else:
                tried.step()
        del tried
        if restores:
            opt.load_state_dict(saved)
        set_rate(opt.param_groups[0], new)
        rates = []
        for _ in range(60):
            opt.step()
            rates.append(float(opt.param_groups[0]["lr"]))
            ours.step(5.0)
    assert max(rates) == pytest.approx(new)
    assert rates[0] == pytest.approx(new / 10)
    assert ours.last_epoch == ours.total_steps


@tensor_or_float
@pytest.mark.parametrize("loop", ["sets", "replaces", "multiplies after", "multiplies before"])
def test_a_loop_that_sets_rates_itself_is_told_to_choose(loop: str, tensor: bool) -> None:
    opt = make(tensor)
    ours, [group] = AdaptiveWarmup(opt, 60), opt.param_groups

    def before(t: int) -> None:
        if loop == "sets":  # as nanoGPT's
            set_rate(group, PEAK * (1 - t / 60))
        elif loop == "replaces":
            group["lr"] = PEAK * (1 - t / 60)
        elif loop == "multiplies before":
            group["lr"] *= 0.9

    def after(t: int) -> None:
        ours.step(5.0 - t / 60)
        if loop == "multiplies after":
            group["lr"] *= 0.9

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for t in range(50):
            before(t)
            opt.step()
            after(t)
    told = [str(one.message) for one in heard if "code that is no scheduler changed the rates" in str(one.message)]
    assert len(told) == 1
    assert "delete these lines, or the AdaptiveWarmup" in told[0]


@tensor_or_float
def test_a_rate_changed_now_and_then_is_nobodys_loop(tensor: bool) -> None:
    opt = make(tensor)
    ours, [group] = AdaptiveWarmup(opt, 60), opt.param_groups

    def lowered(t: int) -> None:
        ours.step(5.0 - t / 60)
        if t % 3 in (0, 1):  # two of three updates
            group["lr"] *= 0.999

    assert train(ours, lowered) == []


@tensor_or_float
@pytest.mark.parametrize("put_back", [False, True])
def test_rates_set_to_zero_before_the_first_update_are_told_of(put_back: bool, tensor: bool) -> None:
    opt = make(tensor)
    ours, [group] = AdaptiveWarmup(opt, 60), opt.param_groups
    set_rate(group, 0.0)
    if put_back:
        set_rate(group, PEAK)
    heard = train(ours, lambda t: ours.step(5.0))
    assert len(heard) == (not put_back)
    assert put_back or "every parameter group's lr was set to 0 from outside the schedule" in heard[0]


def test_groups_set_before_the_first_update_keep_their_new_ratio() -> None:
    params = [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(3)]
    opt = torch.optim.SGD([{"params": [p], "lr": lr} for p, lr in zip(params, (0.1, 0.2, 0.0), strict=True)])
    ours = AdaptiveWarmup(opt, 20, geometry="frobenius")
    opt.param_groups[0]["lr"] = 0.4
    train(ours, lambda t: ours.step(5.0), updates=1)
    assert ours.base_lrs == [0.4, 0.2, 0.0]
    assert [group["lr"] for group in opt.param_groups] == pytest.approx([0.4 * 0.19, 0.2 * 0.19, 0.0])


@tensor_or_float
@pytest.mark.parametrize("new", [3e-3, 0.02, None])
def test_an_lr_that_an_earlier_schedulers_peak_outlives_is_told_of(new: float | None, tensor: bool) -> None:
    """A loaded optimizer has the initial_lr of its first scheduler, which is the peak of the next one, too."""
    trained = AdaptiveWarmup(make(tensor), 60)
    train(trained, lambda t: trained.step(5.0), updates=10)
    opt = make(tensor)
    opt.load_state_dict(trained.optimizer.state_dict())
    for group in opt.param_groups if new is not None else []:
        group["lr"] = torch.tensor(new, dtype=torch.float64) if tensor else new
    lr = float(opt.param_groups[0]["lr"])
    ours = AdaptiveWarmup(opt, 60)
    [said] = train(ours, lambda t: ours.step(5.0), updates=3)
    assert "initial_lr=0.01, which is the peak rate" in said
    assert f"has lr={lr:g}" in said
    meant = make(tensor)
    meant.load_state_dict(opt.state_dict())
    for group in meant.param_groups:
        del group["initial_lr"]
    again = AdaptiveWarmup(meant, 60)
    assert train(again, lambda t: again.step(5.0), updates=3) == []


@tensor_or_float
@pytest.mark.parametrize("updates", [0, 10])
@pytest.mark.parametrize("lives", [False, True])
def test_a_second_schedule_says_that_a_new_rate_is_not_its_peak(lives: bool, updates: int, tensor: bool) -> None:
    opt = make(tensor)
    firsts = [AdaptiveWarmup(opt, 60)]
    train(firsts[0], lambda t: firsts[0].step(5.0), updates=updates)
    set_rate(opt.param_groups[0], PEAK / 100)
    if not lives:
        firsts.clear()
    second = AdaptiveWarmup(opt, 60)
    heard = train(second, lambda t: second.step(5.0), updates=3)
    [said] = [one for one in heard if "keep one of them" not in one]  # of the first, which was in use
    assert f"has lr={PEAK / 100:g} and, from an earlier scheduler, initial_lr={PEAK:g}" in said


@tensor_or_float
@pytest.mark.parametrize("updates", [0, 10])
def test_a_second_schedule_at_the_first_ones_peak_needs_no_word(updates: int, tensor: bool) -> None:
    opt = make(tensor)
    ours = AdaptiveWarmup(opt, 60)
    train(ours, lambda t: ours.step(5.0), updates=updates)
    ours = AdaptiveWarmup(opt, 60)  # as a notebook's cell that is run again
    assert train(ours, lambda t: ours.step(5.0), updates=3) == []


@tensor_or_float
def test_a_resumed_run_is_told_of_no_earlier_peak(tensor: bool) -> None:
    trained = AdaptiveWarmup(make(tensor), 60)
    train(trained, lambda t: trained.step(5.0), updates=10)
    opt = make(tensor)
    opt.load_state_dict(trained.optimizer.state_dict())
    ours = AdaptiveWarmup(opt, 60)
    ours.load_state_dict(trained.state_dict())
    assert train(ours, lambda t: ours.step(5.0), updates=3) == []


@pytest.mark.parametrize(("beside", "tensor"), [("plateau", False), ("plateau", True), ("replaced", False)])
def test_a_rate_set_before_the_first_update_is_the_peak_whatever_is_still_referenced(beside: str, tensor: bool) -> None:
    """Which scheduler wrote a tensor rate cannot be told without waiting for the device."""
    opt = make(tensor)
    other = ReduceLROnPlateau(opt) if beside == "plateau" else LEFT["CosineAnnealingLR"](opt)
    ours = AdaptiveWarmup(opt, 60)
    for group in opt.param_groups:
        set_rate(group, 5 * PEAK)
    assert train(ours, lambda t: ours.step(5.0), updates=3) == []
    assert float(ours.base_lrs[0]) == pytest.approx(5 * PEAK)
    assert other is not None


def test_a_schedule_that_follows_ours_is_not_called_another_one() -> None:
    opt = make(False)
    ours = AdaptiveWarmup(opt, 20)
    train(ours, lambda t: ours.step(5.0 - t), updates=20)
    for group in opt.param_groups:
        group["lr"] = group["initial_lr"]
    following = CosineAnnealingLR(opt, 30)
    assert train(ours, lambda t: following.step(), updates=30) == []
