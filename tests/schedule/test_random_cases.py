"""Two thousand lives of a schedule, drawn at random: what happens to real runs, in any order.

In each, a run that is killed and goes on from what was saved has the rates of one that is not, to the bit; a run with
tensor rates has those of one with floats; and every rate is in (0, lr].
"""

import copy
import math
import pickle
import random
import warnings
from typing import Any

import pytest
import torch

from autowarm import AdaptiveWarmup, Lion
from tests.schedule.schedule_runs import PEAK, group, saved

CASES, BATCH, FEW = 2000, 50, 50


class Case:
    """One life, drawn from its number: settings, and a list of what happens, (name, argument)."""

    def __init__(self, number: int) -> None:
        draw = self.draw = random.Random(number)
        self.tensor = draw.random() < 0.5
        self.open = draw.random() < 0.1
        self.total = None if self.open else draw.randint(1, 40)
        self.options = {
            "max_warmup": draw.choice(["auto", "auto", 0.5, 0.2, 1.0, None, 6]),
            "smoothing": draw.choice([0.05, 0.0, 0.3]),
            "div": draw.choice([10.0, 100.0, 2.0]),
            "warmup": draw.choice(["linear", "cosine"]),
            "decay": "wso" if self.open else draw.choice(["cosine", "linear", "wsd", "wso", "1-sqrt", "power"]),
            "final_ratio": draw.choice([0.0, 0.1]),
            "max_nonfinite": None,
            "chance_loss": draw.choice([None, None, 8.0]),
            **draw.choice([{}, {"peak_gap": 0.05}, {"peak_gap": 0.3}, {"calibration": "sign"}]),
        }
        self.before = draw.random() < 0.3  # Algorithm 1's order
        self.without_warmup = draw.random() < 0.3
        self.level, self.fall = draw.uniform(2, 12), draw.uniform(0.8, 1.0)
        self.happenings = [self.draw_one() for _ in range(draw.randint(5, 22))]

    def draw_one(self) -> tuple[str, Any]:
        draw = self.draw
        self.level = max(0.5, self.level * self.fall)
        loss = draw.choice([*[self.level * draw.uniform(0.8, 1.2)] * 8, math.nan, math.inf, 1e6, -3.0, 0.0, 1e300])
        name = draw.choices(
            ["train", "micro-batches", "no loss", "skipped", "several", "dry calls", "extend", "decay_now",
             "add group", "scaled by another", "bad streak"],
            [40, 8, 4, 4, 4, 1, 3, 1, 2, 2, 2],
        )[0]  # fmt: skip
        argument: Any = {
            "train": loss,
            "micro-batches": [
                (draw.choice([loss, math.nan, self.level]), draw.choice([0.0, 1.0, 3.0])) for _ in range(3)
            ],
            "several": (draw.randint(2, 4), loss),
            "extend": draw.randint(1, 30),
            "decay_now": (draw.randint(1, 12), draw.choice(["cosine", "linear", "power", "1-sqrt"])),
            "scaled by another": draw.uniform(0.3, 1.0),
            "bad streak": (draw.randint(2, 15), draw.choice([math.nan, math.inf, -math.inf])),
        }.get(name)
        return name, argument

    def make(self, groups: int = 2, tensor: bool | None = None) -> AdaptiveWarmup:
        tensor = self.tensor if tensor is None else tensor
        second = {"warmup": False} if self.without_warmup else {}
        opt = Lion([group(tensor), group(tensor, PEAK / 4, **second)])
        scheduler = AdaptiveWarmup(opt, self.total, **self.options)
        for _ in range(groups - 2):
            opt.add_param_group(group(tensor, PEAK / 2))
        return scheduler


def update(scheduler: AdaptiveWarmup, case: Case, loss: float | None, rates: list[float], times: int = 1) -> None:
    def step() -> None:
        scheduler.step(None if loss is None else torch.tensor(loss, dtype=torch.float64))

    if case.before:
        step()
    for _ in range(times):
        scheduler.optimizer.step()
        rates.extend(float(group["lr"]) for group in scheduler.optimizer.param_groups)
    if not case.before:
        step()


def live(scheduler: AdaptiveWarmup, case: Case, happening: tuple[str, Any]) -> list[float]:
    """Let one thing happen; returns the rates of the updates that were made."""
    name, x = happening
    rates: list[float] = []
    if name == "train":
        update(scheduler, case, x, rates)
    elif name == "micro-batches":
        for loss, weight in x:
            scheduler.observe(loss, weight)
        update(scheduler, case, None, rates)
    elif name == "no loss":
        update(scheduler, case, None, rates)
    elif name == "several":
        update(scheduler, case, x[1], rates, times=x[0])
    elif name == "bad streak":
        for _ in range(x[0]):
            before = scheduler.phase, scheduler.metrics()["share"]
            update(scheduler, case, x[1], rates)
            # A loss that is not finite is no evidence: it neither ends a warm-up nor changes its rate.
            assert before[0] == "decay" or before == (scheduler.phase, scheduler.metrics()["share"])
    elif name == "skipped":  # a GradScaler's overflow
        scheduler.step(torch.tensor(3.0, dtype=torch.float64))
    elif name == "dry calls":
        for _ in range(12):
            scheduler.step(torch.tensor(3.0, dtype=torch.float64))
    elif name == "extend" and not case.open:
        scheduler.extend(scheduler.last_epoch + x)
    elif name == "decay_now":
        scheduler.decay_now(*x)
    elif name == "add group" and len(scheduler.optimizer.param_groups) < 4:
        tensor = isinstance(scheduler.optimizer.param_groups[0]["lr"], torch.Tensor)
        scheduler.optimizer.add_param_group(group(tensor, PEAK / 2))
    elif name == "scaled by another":
        for one in scheduler.optimizer.param_groups:
            if isinstance(one["lr"], torch.Tensor):
                one["lr"].mul_(x)
            else:
                one["lr"] *= x
    return rates


def killed(scheduler: AdaptiveWarmup, case: Case) -> AdaptiveWarmup:
    """The same schedule in another process."""
    how = case.draw.choice(["state", "state", "pickle", "deepcopy"])
    if how == "state":
        other = case.make(len(scheduler.optimizer.param_groups))
        if case.draw.random() < 0.5:
            other.optimizer.load_state_dict(copy.deepcopy(scheduler.optimizer.state_dict()))
        other.load_state_dict(saved(scheduler))
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(scheduler))
    else:
        other = copy.deepcopy((scheduler.optimizer, scheduler))[1]
    for one in other.optimizer.param_groups:
        one["params"][0].grad = torch.ones(4, 4)
    return other


GENERATED = [pytest.mark.long, pytest.mark.generated]


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=GENERATED if n >= FEW else []) for n in range(0, CASES, BATCH)]
)
def test_lives_drawn_at_random(first: int) -> None:
    for number in range(first, first + BATCH):
        case = Case(number)
        straight, resumed = case.make(), case.make()
        other = case.make(tensor=not case.tensor)  # floats beside tensors
        with warnings.catch_warnings(action="ignore"):
            for place, happening in enumerate(case.happenings):
                where = f"case {number}, happening {place}: {happening}"
                try:
                    rates = live(straight, case, happening)
                except ValueError as error:  # a first loss that is no further above f* than the given Δ'
                    if "peak_gap must lie between" not in str(error):
                        raise
                    for one in (resumed, other):
                        with pytest.raises(ValueError, match="peak_gap must lie between"):
                            live(one, case, happening)
                    break
                peaks = [float(group.get("initial_lr", group["lr"])) for group in straight.optimizer.param_groups]
                assert all(0 < rate <= max(peaks) * (1 + 1e-12) for rate in rates), where
                now = [float(group["lr"]) for group in straight.optimizer.param_groups]
                assert all(0 < rate <= peak * (1 + 1e-12) for rate, peak in zip(now, peaks, strict=True)), where
                if case.draw.random() < 0.2:
                    resumed = killed(resumed, case)
                assert live(resumed, case, happening) == rates, where
                assert live(other, case, happening) == pytest.approx(rates, rel=1e-9), where
                assert (other.phase, other.ended_by) == (straight.phase, straight.ended_by), where
                other.state_dict()  # which takes groups over, as it does in the other two
                assert repr(resumed.state_dict()) == repr(straight.state_dict()), where  # in which a NaN is itself
