"""What people do wrong with a schedule, by its warning; and that a correct loop sees none."""

import copy
import math
import random
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

from autowarm import AdaptiveWarmup, Lion
from tests.schedule import schedule_runs
from tests.schedule.schedule_runs import PEAK, falling, make_optimizer, run

Loop = Callable[[], Any]


def trained_loop(
    make: Callable[[Any], torch.optim.Optimizer] = lambda params: torch.optim.AdamW(params, lr=PEAK),
    *,
    updates: int = 30,
    every: int = 1,
    value: Callable[[torch.Tensor], Any] = lambda loss: loss,
    copied: bool = False,
    resumed: bool = False,
    **options: Any,
) -> None:
    """A loop around a small regression, with one thing wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    opt = make((copy.deepcopy(model) if copied else model).parameters())
    if resumed:
        other = copy.deepcopy(model)
        before = make(other.parameters())
        for _ in range(20):
            other(torch.randn(8, 8)).square().mean().backward()
            before.step()
        opt.load_state_dict(before.state_dict())
        opt.param_groups[0]["lr"] = PEAK
    scheduler = AdaptiveWarmup(opt, 1000, **options)
    for t in range(updates):
        x = torch.randn(64, 8)
        loss = (model(x) - x[:, :4]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if t % every == every - 1:
            scheduler.step(value(loss))


def given(losses: Sequence[float | None], T: int = 1000, order: str = "after", **options: Any) -> AdaptiveWarmup:
    scheduler = AdaptiveWarmup(make_optimizer(), T, **options)
    run(scheduler, losses.__getitem__, range(len(losses)), order)
    return scheduler


def unseen(updates: int) -> None:
    """Another optimizer was swapped in, and the scheduler does not know."""
    scheduler, other = given([5.0] * 5), make_optimizer()
    for _ in range(updates):
        other.step()
        scheduler.step(4.0)
    assert scheduler.last_epoch == 5


def now_and_then() -> None:
    scheduler = AdaptiveWarmup(opt := make_optimizer(), 100)
    for call in range(100):
        if call % 7:
            opt.step()
        scheduler.step(torch.tensor(falling()(call), requires_grad=True) * 1.0)


def averaged_loop() -> None:
    """PyTorch's recipe for stochastic weight averaging, of 50 updates an epoch."""
    model = nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), lr=PEAK)
    averaged, scheduler, second = AveragedModel(model), AdaptiveWarmup(opt, 100), SWALR(opt, swa_lr=PEAK / 2)
    for epoch in range(4):
        for _ in range(50):
            loss = (model(torch.ones(2, 4)) - 1).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if epoch < 2:
                scheduler.step(loss)
        if epoch >= 2:
            averaged.update_parameters(model)
            second.step()


def replaced(at: int) -> None:
    opt = make_optimizer()
    first = AdaptiveWarmup(opt, 100)
    run(first, falling(), range(at))
    second = AdaptiveWarmup(opt, 100)
    run(second, falling(), range(60))
    assert first.last_epoch == at


def micro_batches(each: int, skips: int = 0) -> None:
    """``step(loss)`` at each of so many micro-batches; at first, a GradScaler skips some updates."""
    scheduler = AdaptiveWarmup(opt := make_optimizer(), 100)
    for call in range(40 * each + skips):
        if call >= skips and (call - skips) % each == each - 1:
            opt.step()
        scheduler.step(torch.tensor(falling()(call // each), requires_grad=True) * 1.0)


UNOBSERVED = r"step\(\) was called without a loss, so time .*call step\(loss\)"
ENDS_EARLY = "the run of total_steps=30 ends still in warm-up: "
NEVER_FELL: dict[str, Any] = {"max_warmup": None, "peak_gap": 1.0, "target_loss": 0.5}
MISTAKES: dict[str, tuple[Loop, str]] = {
    "nobody steps the schedule": (lambda: trained_loop(every=10**6), "30 updates were made since .* call step.loss."),
    "a step in 50 updates": (lambda: trained_loop(every=50, updates=60), "30 updates were made since .*not epochs"),
    "an accuracy as the loss": (
        lambda: given([0.1 + 0.01 * t + 0.03 * (t % 3) for t in range(30)]),
        "given as the loss have risen .*no accuracy",
    ),
    "an optimizer resumed alone": (lambda: trained_loop(resumed=True), "made 20 updates by its state.*load_state_dict"),
    "a copied model": (lambda: trained_loop(copied=True), "no tensor of AdamW had a gradient in 25 updates"),
    "no loss": (lambda: given([5.0] * 3 + [None] * 2), UNOBSERVED),
    **{
        f"a gap that never falls, the schedule stepped {order} the optimizer": (
            lambda order=order: given([5.0] * 30, 30, order, **NEVER_FELL),
            ENDS_EARLY + "the gap to target_loss=0.5 never fell",
        )
        for order in ("before", "after")
    },
    "neither a loss nor a ramp": (
        lambda: given([None] * 30, 30, max_warmup=None, peak_gap=1.0),
        f"{UNOBSERVED}.*|{ENDS_EARLY}no finite loss was observed",
    ),
    "losses that are not finite": (
        lambda: given([5.0, math.nan, math.inf]), "the schedule ignores it but counts the update. An",
    ),
    "two updates too many": (
        lambda: given([5.0] * 32, 30), "more than total_steps=30.*counts updates, not epochs",
    ),
    **{f"a loss {what}": (lambda values=values: given(values), "no target loss follows from these .*Pass target_loss")
       for what, values in {"that falls at once": [10 * 0.8**t for t in range(40)],
                            "with an arbitrary zero": [0.1 * math.sin(t) for t in range(40)],
                            "that falls below zero later": [5.0 - 0.1 * t for t in range(60)]}.items()},
    **{f"a step for each of {k} micro-batches": (
        lambda k=k: micro_batches(k), "as for each micro-batch, but updates count: call observe"
    ) for k in (2, 3, 8)},
    "a step for each of 16 micro-batches": (lambda: micro_batches(16), "10 times in a row, .*With micro-batches"),
    "another optimizer": (
        lambda: unseen(30), "10 times in a row, but Lion.*make a new scheduler.*Together",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_one_warning_at_the_line_that_made_it_after_at_most_30_updates(mistake: str) -> None:
    loop, messages = MISTAKES[mistake]
    with warnings.catch_warnings(record=True, action="always") as said:
        loop()
    assert len(said) == messages.count("|") + 1
    for one, message in zip(said, messages.split("|"), strict=True):
        assert re.match(f".*{message}", str(one.message))
        assert one.filename in (__file__, schedule_runs.__file__)


CORRECT: dict[str, Loop] = {
    "AdamW": trained_loop,
    "Lion": lambda: trained_loop(lambda params: Lion(params, lr=PEAK), updates=100),
    "numbers for losses": lambda: trained_loop(value=lambda loss: loss.item()),
    "a new warm-up that is meant": lambda: trained_loop(resumed=True, trained=True),
    "noise in fine-tuning": lambda: given([0.1 * math.sin(t) for t in range(40)], trained=True),
    "no loss in the decay": lambda: given([*map(falling(), range(40))] + [None] * 20, 60),
    "a ramp as long as the run": lambda: given([5.0] * 30, 30, "before", max_warmup=1.0),
    "a gap that has not fallen yet": lambda: given([5.0] * 29, 30, **NEVER_FELL),
    "an update more than planned": lambda: given([5.0] * 31, 30),
    "a GradScaler that looks for its scale": lambda: unseen(9),
    "a GradScaler that skips 9 updates at first": lambda: micro_batches(1, skips=9),
    "a GradScaler that skips an update now and then": lambda: now_and_then(),
    "averaged weights at the end, with their own schedule": lambda: averaged_loop(),
    "a second schedule, the first one still alive": lambda: replaced(at=40),
    "a second schedule made at once": lambda: replaced(at=0),
    "a loss that rises for a while": lambda: given([5 + 0.02 * t + 0.1 * math.sin(9 * t) for t in range(40)]),
}


@pytest.mark.parametrize("loop", CORRECT)
def test_a_correct_loop_sees_no_warning(loop: str) -> None:
    with warnings.catch_warnings(action="error"):
        CORRECT[loop]()


EMPTY: dict[str, Callable[[int, random.Random], bool]] = {
    "two among the first ten": lambda t, draw: t in (2, 5),
    "the first": lambda t, draw: t == 0,
    "a fifth of all batches": lambda t, draw: draw.random() < 0.2,
}


@pytest.mark.parametrize("value", [0.0, 1e-3])
@pytest.mark.parametrize("empty", EMPTY)
def test_batches_without_a_label_are_no_evidence(empty: str, value: float) -> None:
    draw = random.Random(1)
    losses = [value if EMPTY[empty](t, draw) else falling(pace=200.0)(t) for t in range(400)]
    plain, found = given([falling(pace=200.0)(t) for t in range(400)]), given(losses)
    assert plain.ended_by == found.ended_by == "loss"
    assert found.target_loss == pytest.approx(plain.target_loss, rel=0.02)
    assert abs(found.warmup_steps - plain.warmup_steps) <= 5


def test_a_loss_that_truly_falls_to_nothing_ends_the_warm_up() -> None:
    scheduler = given([5.0] * 20 + [1e-4] * 200)
    assert scheduler.ended_by == "loss"


WEIGHTS = {"finite": 1.0, "broken": math.nan}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_what_stops_a_run_says_which_it_was(weights: str) -> None:
    scheduler = given([5.0] * 3)
    [p] = scheduler.optimizer.param_groups[0]["params"]
    p.data.fill_(WEIGHTS[weights])
    if weights == "finite":
        message = "20 times in a row, .*all weights are finite.*gradients are finite.*batches give no finite loss"
    else:
        message = "the run has diverged, for weights are not finite. Lower the peak rate.*recover=True"
    with warnings.catch_warnings(action="ignore"):
        run(scheduler, lambda t: math.nan, range(19))
        with pytest.raises(RuntimeError, match=message):
            run(scheduler, lambda t: math.nan, [19])
