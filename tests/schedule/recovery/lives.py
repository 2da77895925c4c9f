"""Lives of runs with `recover=True` and with `SpikeGuard`, drawn at random: what happens to real runs, in any order.

A life is a linear regression of eight weights under SGD, AdamW, Lion or normSGD, with `AdaptiveWarmup`, or with a
`SpikeGuard` beside another schedule or none. Bad batches, bursts, other data, losses or weights that are not finite
come at drawn updates, and so do extensions, added groups, skipped updates and, in some lives, micro-batches, late
losses, vetoes and a rate that is too high. Each is lived without recovery, with it, and with it
while it is killed and goes on from what was saved. These invariants were written before the first life:

- said: each change of the weights that no update made, and each lowered rate, is in one warning; idling in one.
- rates: those that another scheduler writes are as without the guard, and `extend` leaves the next one alone.
- peak: the alarms leave at least a ninth of the rate.
- finite: a run that had a copy ends with finite weights.
- resumed: it equals the uninterrupted life to the bit, up to an alarm whose copies a saved state does not hold.
- harm: where the loss fell to less than half without recovery, with it no more than 3% of that fall is lost.
"""

import copy
import math
import random
import warnings
from functools import cached_property, partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from autowarm import AdaptiveWarmup, Lion, NormSGD, SpikeGuard, losses
from autowarm.rate.restore import Snapshot

MOST_HARM, LEAST = 0.03, 1 / 9
BATCH, WIDTH, JOINS = 16, 8, 2  # points, weights, and how many of these may join in a group of their own
NOISE = 0.3
SCALES = torch.logspace(0, -0.7, WIDTH)  # of the inputs: some weights are learnt later than others
OPTIMIZERS: dict[str, Any] = {
    "sgd": (partial(torch.optim.SGD, momentum=0.9, foreach=False), 0.02),
    "adamw": (partial(torch.optim.AdamW, foreach=False), 0.05),
    "lion": (partial(Lion, max_nonfinite=None), 0.02),
    "normsgd": (partial(NormSGD, max_nonfinite=None), 0.1),
}
BESIDE: dict[str, Any] = {
    "none": lambda optimizer, steps: None,
    "sequence": lambda optimizer, steps: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=50), lr_scheduler.CosineAnnealingLR(optimizer, steps)],
        [50],
    ),
    "adaptive": AdaptiveWarmup,
}
FAULTS = ("bad batch", "burst", "other data", "NaN batch", "NaN loss", "NaN weights", "infinite loss")


class Life:
    """What is drawn from a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        draw = random.Random(number)
        self.steps = draw.randint(200, 600)
        self.kind = draw.choice(["own"] * 6 + ["none"] * 2 + ["sequence"] + ["none"] * 2 + ["adaptive"])
        self.optimizer = draw.choice(list(OPTIMIZERS))
        self.rate = draw.choice([1.0] * 6 + [3.0, 10.0, 30.0])
        self.tensor = self.kind == "own" and draw.random() < 0.3
        self.late = draw.random() < 0.2
        draw.random()  # the lives that follow are known by their numbers
        self.micro = draw.random() < 0.2
        self.first = draw.random() < 0.2  # the loss is given before the update
        self.veto = 6.0 if self.kind != "own" and self.optimizer in ("sgd", "adamw") and draw.random() < 0.3 else None
        self.skipped = {draw.randrange(self.steps) for _ in range(draw.choice([0, 0, 3]))}
        self.joins = draw.randrange(5, self.steps) if self.kind in ("own", "none") and draw.random() < 0.3 else 0
        often = 2 if self.kind == "own" and draw.random() < 0.5 else 0
        self.extended = {draw.randrange(self.steps): draw.randint(1, self.steps) for _ in range(often)}
        self.faults: dict[int, str] = {}
        self.changes: list[int] = []  # from when on the data are others
        for _ in range(draw.choice([0, 1, 1, 2, 3])):
            what, at = draw.choice(FAULTS), draw.randrange(10, self.steps)
            if what == "other data":
                self.changes.append(at)
            for t in range(at, at + (draw.randint(2, 10) if what == "burst" else 1)):
                self.faults[t] = what
        # It is killed at a drawn step, or so many after the first alarm.
        self.killed, self.after = draw.randrange(self.steps), draw.choice([None, draw.randint(0, 30)])
        self.keeps_copy = draw.random() < 0.5  # the copy is saved, too, as the lab does

    def __repr__(self) -> str:
        return ", ".join(
            f"{name}={x}" for name, x in vars(self).items() if name != "data" and x not in (None, False, 0)
        )

    @cached_property
    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        """The true weights [changes + 1, WIDTH], inputs [steps, BATCH, WIDTH] and noise."""
        generator = torch.Generator().manual_seed(self.number)
        shape = (self.steps, BATCH)
        true = 2 * torch.randn(len(self.changes) + 1, WIDTH, generator=generator)
        x = SCALES * torch.randn(*shape, WIDTH, generator=generator)
        return true, x, NOISE * torch.randn(*shape, generator=generator)


class Run:
    """A life that is being lived."""

    def __init__(self, life: Life, recovers: bool, joined: bool = False) -> None:
        self.life, self.recovers = life, recovers
        self.w = [nn.Parameter(torch.zeros(WIDTH - JOINS)), nn.Parameter(torch.zeros(JOINS))]
        make, lr = OPTIMIZERS[life.optimizer]
        self.peak = lr * life.rate
        self.opt = make(self.w[:1] if life.joins else self.w, lr=self.lr)
        self.scheduler: Any = None
        self.guard: Any = None
        if life.kind == "own":
            self.watch: Any = AdaptiveWarmup(self.opt, life.steps, recover=recovers, max_nonfinite=None)
            self.guard = self.watch._guard
        else:
            self.scheduler = BESIDE[life.kind](self.opt, life.steps)
            self.watch = SpikeGuard(self.opt, life.steps, veto=life.veto) if recovers else None
            self.guard = self.watch._guard if recovers else None
        self.used: list[float] = []
        self.opt.register_step_pre_hook(lambda opt, *_: self.used.append(float(opt.param_groups[0]["lr"])))
        if joined:
            self.join()

    @property
    def lr(self) -> Any:
        return torch.tensor(self.peak, dtype=torch.float64) if self.life.tensor else self.peak

    def join(self) -> None:
        self.opt.add_param_group({"params": self.w[1:], "lr": self.lr})

    @property
    def weights(self) -> Tensor:
        return torch.cat([p.detach() for p in self.w])

    @property
    def share(self) -> float:
        """What the alarms have left of the rate."""
        updates = self.watch.last_epoch if self.life.kind == "own" else self.watch._updates
        return float(self.guard._left(updates))

    def loss(self, weights: Tensor | None = None) -> float:
        """The expected loss on the last data."""
        away = SCALES * ((self.weights if weights is None else weights) - self.life.data[0][-1])
        return float(away.square().sum()) + NOISE**2

    @torch.no_grad()
    def gradient(self, t: int) -> Tensor:
        """Set the gradients; return the losses, one for each micro-batch."""
        life, fault = self.life, self.life.faults.get(t)
        true, x, noise = life.data
        if fault == "NaN weights":
            self.w[0][0] = math.nan
        w, aim = self.weights, true[sum(t >= at for at in life.changes)]
        ys = x[t] @ aim + noise[t]
        scale = math.nan if fault == "NaN batch" else 1.0
        if fault in ("bad batch", "burst"):
            ys, scale = ys.flip(0), 100.0
        rest = x[t] @ w - ys
        g = scale * 2 / BATCH * x[t].T @ rest
        for p, part in zip(self.w, g.split([WIDTH - JOINS, JOINS]), strict=True):
            p.grad = part.clone()
        spoilt = {"NaN loss": math.nan, "infinite loss": math.inf}.get(fault or "", 1.0)
        return spoilt * scale * rest.square().view(2 if life.micro else 1, -1).mean(1)

    def live(self, t: int) -> bool:
        """Live one step; say whether anything but the update has changed the weights."""
        life = self.life
        if t == life.joins > 0:
            self.join()
        if t in life.extended and self.watch is not None:
            before = [float(group["lr"]) for group in self.opt.param_groups]
            self.watch.extend(self.watch.last_epoch + life.extended[t])
            after = [float(group["lr"]) for group in self.opt.param_groups]
            expect(all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(before, after, strict=True)),
                   f"rates: extend at step {t} makes {before} {after}")  # fmt: skip
        found = self.gradient(t)
        made = t not in life.skipped
        if not life.first and made:
            self.opt.step()
        weights = self.weights
        if self.watch is not None:
            if life.micro:
                for one in found:
                    self.watch.observe(one)
                self.watch.step()
            else:
                self.watch.step(found)
        moved = not torch.equal(weights.nan_to_num(), self.weights.nan_to_num())
        if life.first and made:
            self.opt.step()
        if self.scheduler is not None and made:
            if life.kind == "adaptive":
                self.scheduler.step(2.0 + 20.0 / (t + 10))
            else:
                self.scheduler.step()
        return moved

    def killed(self, t: int) -> "Run":
        """Another process that goes on after step ``t`` from what was saved."""
        other = Run(self.life, True, joined=t >= self.life.joins > 0)
        with self.guard.at_copy(self.opt) as copied:
            if self.life.keeps_copy and copied is not None:
                other.load(self.saved())
                kept = copied[0], Snapshot(other.opt), copied[1]
        other.load(self.saved())
        for theirs, own in zip(other.parts(), self.parts(), strict=True):
            theirs.load_state_dict(copy.deepcopy(own.state_dict()))
        if self.life.keeps_copy and copied is not None:
            other.guard.adopt(*kept)
        other.used = list(self.used)
        return other

    def parts(self) -> list[Any]:
        return [one for one in (self.scheduler, self.watch) if one is not None]

    def saved(self) -> tuple[Any, ...]:
        return copy.deepcopy(([p.detach() for p in self.w], self.opt.state_dict()))

    def load(self, saved: tuple[Any, ...]) -> None:
        for p, one in zip(self.w, saved[0], strict=True):
            p.data.copy_(one)
        self.opt.load_state_dict(saved[1])


class Broken(AssertionError):
    """An invariant does not hold."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def live_through(life: Life) -> None:
    """Live a life three times. Raise `Broken` if an invariant does not hold."""
    plain, run, other = Run(life, False), Run(life, True), None
    said: list[str] = []
    alike, first, had_copy = False, None, False  # whether the resumed life is still to equal the other
    for t in range(life.steps):
        heard(plain, t)
        lowered, alarms = run.guard._lowered, len(run.watch.recoveries)
        copies = [[copy.update if copy else None for copy in (one.guard._copy, one.guard._before and _BEFORE)]
                  for one in (run, other) if one is not None]  # fmt: skip
        now, moved = heard(run, t)
        said += now
        if life.kind != "own":
            rates = [[float(group["lr"]) for group in one.opt.param_groups] for one in (plain, run)]
            expect(rates[0] == rates[1], f"rates: at step {t} others' are {rates[1]}, without the guard {rates[0]}")
        ours = [one for one in now if one.startswith("update ")]
        expect(len(ours) == moved or (len(ours) == 1 and not moved), f"said: at step {t} weights moved={moved}: {ours}")
        if run.guard._lowered < lowered:
            expect(any("at a peak rate of" in one for one in ours), f"said: at step {t} nothing of a lowered rate")
        expect(run.share >= LEAST * (1 - 1e-9), f"peak: {run.share} is left at step {t}")
        had_copy = had_copy or run.guard._copy is not None
        if other is not None:
            theirs, also = heard(other, t)
            if alike and (moved or also or ours or len(run.watch.recoveries) > alarms) and copies[0] != copies[1]:
                alike = False
            if alike:
                expect(same(run.weights, other.weights), f"resumed: other weights at step {t} of {life.killed}")
                expect(run.used == other.used, f"resumed: other rates at step {t}: {run.used[-2:]} {other.used[-2:]}")
                expect(ours == [one for one in theirs if one.startswith("update ")], f"resumed: {ours} {theirs}")
        if first is None and run.watch.recoveries:
            first = t
        at = life.killed if life.after is None else (first or life.steps) + life.after
        if t == at:
            other, alike = run.killed(t), True
    expect(len(said) == len(set(said)), f"said: more than once: {said}")
    idle = sum("recovery is idle" in one for one in said)
    expect(idle == run.guard._idle, f"said: idle {idle} times")
    whole = [bool(one.weights.isfinite().all()) for one in (plain, run)]
    late = any(t > life.steps - 10 for t, what in life.faults.items() if what.startswith("NaN"))  # for an alarm
    expect(whole[1] or late or not had_copy, "finite: the weights are not, at the end")
    if whole[0] and not life.changes and life.rate == 1 and plain.loss() < 0.5 * plain.loss(torch.zeros(WIDTH)):
        fall, worse = plain.loss(torch.zeros(WIDTH)) - plain.loss(), run.loss() - plain.loss()
        expect(worse <= MOST_HARM * fall, f"harm: {100 * worse / fall:.1f}% of the fall")


_BEFORE = mock.Mock(update="before")


def heard(run: Run, t: int) -> tuple[list[str], bool]:
    """Live a step: what was said, and whether anything but the update has changed the weights."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        moved = run.live(t)
    return [str(one.message) for one in caught], moved


def same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def judged(number: int) -> str:
    """What is wrong with the life of this number, or nothing."""
    life = Life(number)
    with mock.patch.object(losses, "AT_ONCE", () if life.late else ("cpu",)):
        try:
            live_through(life)
        except Broken as error:
            return f"{error}\n    {life}"
    return ""
