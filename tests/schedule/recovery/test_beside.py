"""A `SpikeGuard` beside the schedules that others set."""

import copy
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import lr_scheduler, swa_utils

from autowarm import AdaptiveWarmup, Lion, SpikeGuard
from autowarm.optim import Together
from tests.schedule.recovery.recovery_runs import MAKERS, Run, batch, halfway, lost, quiet

BAD, NAN = halfway("lion", "bad", 8), halfway("adamw", "nan")
AT = min(NAN)


def _cosine_with_warm_up(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    factor = lambda t: min(t / 50, 0.5 + 0.5 * math.cos(math.pi * t / steps))  # noqa: E731
    return lr_scheduler.LambdaLR(optimizer, factor)


def _of_transformers(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return pytest.importorskip("transformers").get_cosine_schedule_with_warmup(optimizer, 50, steps)


def _in_sequence(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=50), lr_scheduler.CosineAnnealingLR(optimizer, steps)]
    return lr_scheduler.SequentialLR(optimizer, parts, [50])


# Some compute each rate from the last one, some from the peak; some write momenta as well.
SCHEDULES: dict[str, Callable[[Any, int], Any]] = {
    "none": lambda optimizer, steps: None,
    "lambda": _cosine_with_warm_up,
    "cosine": lr_scheduler.CosineAnnealingLR,
    "sequence": _in_sequence,
    "one cycle": lambda optimizer, steps: lr_scheduler.OneCycleLR(optimizer, optimizer.defaults["lr"], steps),
    "by epochs": lambda optimizer, steps: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "plateau": lambda optimizer, steps: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
    "transformers": _of_transformers,
}


class Beside(Run):
    """A run under a hand-set schedule; ``recover=False`` leaves the guard out."""

    def __init__(self, by: str = "cosine", name: str = "adamw", first: bool = False, **options: Any) -> None:
        self.by, self.first = by, first
        super().__init__(name, **options)

    def schedule(self, steps: int, recover: Any = True, **options: Any) -> None:
        self.scheduler: Any = SCHEDULES[self.by](self.optimizer, steps)
        self.guard = SpikeGuard(self.optimizer, steps, recover=recover, **options) if recover else None
        self.used: list[float] = []  # the rate of each update, as the optimizer finds it
        self.optimizer.register_step_pre_hook(lambda opt, *_: self.used.append(float(opt.param_groups[0]["lr"])))

    def parts(self) -> list[Any]:
        return [x for x in (self.model, self.optimizer, self.scheduler, self.guard) if x is not None]

    def train(self, updates: int | None = None) -> "Beside":
        for _ in range(self.steps if updates is None else updates):
            loss = self.update()
            for turn in (self._set_rates, self._watch) if not self.first else (self._watch, self._set_rates):
                turn(loss)
        return self

    def _set_rates(self, loss: torch.Tensor) -> None:
        if self.by in ("by epochs", "plateau"):
            if self.made % 60 == 0:
                self.scheduler.step(*[loss] * (self.by == "plateau"))
        elif self.scheduler is not None:
            self.scheduler.step()

    def _watch(self, loss: torch.Tensor) -> None:
        if self.guard is not None:
            self.guard.step(loss)


@functools.cache
def healthy(by: str, name: str = "adamw") -> Beside:
    return Beside(by, name, recover=False).train()


def same_weights(a: Run, b: Run) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.weights(), b.weights(), strict=True))


def test_without_an_alarm_a_run_is_bit_identical() -> None:
    run = Beside().train()
    assert (run.guard.recoveries, run.guard.factor) == ([], 1.0)
    assert run.used == healthy("cosine").used
    assert same_weights(run, healthy("cosine"))


@pytest.mark.parametrize(("by", "first"), [*((by, False) for by in SCHEDULES), ("cosine", True)])
def test_a_nan_no_longer_kills_a_run_and_the_schedule_goes_on(by: str, first: bool) -> None:
    """Whichever of the schedule and the guard is stepped first."""
    run = quiet(Beside(by, faults=NAN, first=first))
    assert lost(run, healthy(by)) < 0.05
    [found] = run.guard.recoveries
    assert found.restored <= AT < found.update == AT + 2
    # The schedule's own rates are those of a run without fault, and the optimizer's ramp up to them again.
    if by != "plateau":
        assert run.rates == healthy(by).rates
    at = found.update
    assert run.used[:at] == run.rates[:at]
    shares = [used / rate for used, rate in zip(run.used[at : at + 22], run.rates[at:], strict=False)]
    assert shares == pytest.approx([min(1.0, 0.1 + 0.9 * i / 20) for i in range(22)])


@pytest.mark.parametrize(("name", "rate"), [("lion", 30), ("muon", 30), ("normsgd", 10)])
def test_a_rate_that_is_far_too_high_is_lowered(name: str, rate: float) -> None:
    assert lost(Beside("lambda", name, rate=rate, recover=False).train(), healthy("lambda", name)) > 0.5
    run = quiet(Beside("lambda", name, rate=rate))
    assert lost(run, healthy("lambda", name)) < 0.15
    lowered = [found for found in run.guard.recoveries if found.peak_after != found.peak_before]
    assert lowered
    assert set(run.scheduler.base_lrs) == {MAKERS[name][1] * rate}


@pytest.mark.parametrize(("name", "faults"), [("lion", BAD), ("adamw", NAN)])
def test_it_does_what_the_schedules_own_recovery_does(name: str, faults: dict[int, str]) -> None:
    own = quiet(Run(name, faults=faults, recover=True))
    run = Run(name, faults=faults)
    guard = SpikeGuard(run.optimizer, run.steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(run.steps):
            loss = run.update()
            run.scheduler.step(loss)
            guard.step(loss)
    assert guard.recoveries == own.scheduler.recoveries != []


def test_to_warn_is_to_change_nothing() -> None:
    run = Beside(name="lion", faults=BAD, recover="warn")
    with pytest.warns(UserWarning, match="; recover=True would have restored the weights") as said:
        run.train()
    assert all(one.filename == __file__ for one in said)
    assert same_weights(run, Beside(name="lion", faults=BAD, recover=False).train())
    assert [found.restored for found in run.guard.recoveries] == [None] * len(said)


@pytest.mark.parametrize(("at", "tensor"), [(1, False), (100, True), (160, False), (160, True)])
def test_a_resumed_run_equals_the_uninterrupted_one(at: int, tensor: bool) -> None:
    """From its start, before an alarm, and in the short ramp after it."""
    options: dict[str, Any] = {"faults": NAN, "tensor": tensor}
    straight = Beside(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        straight.train(at)
        resumed = straight.resumed(**options)
        straight.train(200 - at)
        resumed.train(200 - at)
    assert resumed.guard.recoveries == straight.guard.recoveries != []
    assert resumed.used == straight.used[at:]
    assert same_weights(resumed, straight)


def test_a_copied_run_restores_its_own_weights() -> None:
    run = Beside(faults=NAN).train(100)
    other = copy.deepcopy(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [one.train(100).guard.recoveries for one in (run, other)]
    assert found[0] == found[1] != []
    assert same_weights(run, other)


@pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])
def test_a_step_that_only_creates_the_state_is_no_update(tensor: bool) -> None:
    """As `torch.distributed.checkpoint` makes it."""
    run = Beside("none", tensor=tensor)
    get_optimizer_state_dict(run.model, run.optimizer)
    run.train(3)
    assert run.guard.state_dict()["updates"] == 3


@pytest.mark.parametrize("kind", ["accumulation", "scaler", "compiled model", "compiled step"])
def test_loops_of_other_kinds(kind: str) -> None:
    run = Beside(tensor=kind == "compiled step")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=kind == "scaler")
    model = torch.compile(run.model, backend="eager") if kind == "compiled model" else run.model
    if kind == "compiled step":
        run.optimizer.step = torch.compile(run.optimizer.step, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in range(250):
            for _ in range(2):
                x, y = batch(run.data, 32)
                loss = nn.functional.cross_entropy(model(x * math.nan if t in NAN else x), y)
                scaler.scale(loss / 2).backward()
                run.guard.observe(loss.detach())
            scaler.step(run.optimizer)
            scaler.update()
            run.scheduler.step()
            run.guard.step()
            run.optimizer.zero_grad()
    # A scaler skips the update of a batch that is not finite, so nothing is lost.
    assert len(run.guard.recoveries) == (kind != "scaler")
    assert run.tested() < 0.6


def test_several_optimizers_recover_as_one() -> None:
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = Together(torch.optim.SGD([a], lr=0.1), torch.optim.AdamW([b], lr=0.01))
    guard = SpikeGuard(optimizer, 1000)
    used: list[tuple[float, ...]] = []
    for one in optimizer.optimizers:
        one.register_step_pre_hook(lambda *_: used.append(tuple(group["lr"] for group in optimizer.param_groups)))

    def train(updates: range) -> None:
        for t in updates:
            for p in (a, b):
                p.grad = torch.full_like(p, math.nan if t == 100 else 1.0)
            optimizer.step()
            guard.step(2.0 - t / 100 if t < 100 else math.nan if t < 102 else 1.0)

    with pytest.warns(UserWarning, match="update 102: the last losses were .*, nan, nan, after a level of"):
        train(range(103))
    assert a.isfinite().all()
    assert b.isfinite().all()
    assert used[-1] == pytest.approx((0.1, 0.001))  # the first has stepped, and has its rate again
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


@pytest.mark.parametrize("given", [True, False])
def test_averaged_weights_go_back_if_they_are_given(given: bool) -> None:
    run = Beside("none", faults=NAN, recover=False)
    averaged = swa_utils.AveragedModel(run.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    guard = SpikeGuard(run.optimizer, run.steps, model=nn.ModuleList([run.model, averaged]) if given else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(AT + 10):
            loss = run.update()
            averaged.update_parameters(run.model)
            guard.step(loss)
    [found] = guard.recoveries
    assert all(bool(p.isfinite().all()) for p in averaged.parameters()) == given
    assert int(averaged.n_averaged) == (AT + 10 - found.update + found.restored if given else AT + 10)


def test_losses_that_stay_nan_are_said_once_and_given_up() -> None:
    run = Beside(faults=halfway("adamw", "nan", 250))
    with pytest.warns(UserWarning, match="not finite") as said:
        run.train()
    assert len(said) == 12  # ten restarts that fail at once, after the first; then nothing is restored
    assert [found.restored is None for found in run.guard.recoveries] == [False] * 11 + [True]


def test_what_is_refused() -> None:
    w = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ValueError, match=r"recover=True restores weights .*\(capturable=True\)"):
        SpikeGuard(torch.optim.AdamW(w, capturable=True), 100)
    SpikeGuard(torch.optim.AdamW(w, capturable=True), 100, recover="warn")
    for recover in ("on", False, 1):
        with pytest.raises(ValueError, match="recover must be True, "):
            SpikeGuard(torch.optim.AdamW(w), 100, recover=recover)  # type: ignore[arg-type]
    for steps in (0, 2.5, "100", True):
        with pytest.raises(ValueError, match=f"total_steps must be a whole number of updates ≥ 1.*, got {steps!r}"):
            SpikeGuard(torch.optim.AdamW(w), steps)  # type: ignore[arg-type]
    SpikeGuard(torch.optim.AdamW(w), 1e3).step(1.0)  # type: ignore[arg-type]
    guard = SpikeGuard(torch.optim.AdamW(w), None)
    with pytest.raises(ValueError, match="the SpikeGuard state is damaged"):
        guard.load_state_dict(guard.state_dict() | {"updates": 3})
    with pytest.raises(ValueError, match="not the state of SpikeGuard: it is that of AdaptiveWarmup"):
        guard.load_state_dict(AdaptiveWarmup(torch.optim.AdamW(w), 100).state_dict())


VETOED: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.003),
    "muon": lambda params: torch.optim.Muon([p for p in params if p.ndim == 2], lr=0.02),
}


@pytest.mark.parametrize("fault", [100.0, math.nan])
@pytest.mark.parametrize("make", VETOED.values(), ids=VETOED)
def test_a_veto_leaves_weights_and_state_as_they_are(make: Callable[[Any], Any], fault: float) -> None:
    run = Beside("none", recover=False)
    optimizer = make([*run.model.parameters()])
    guard = SpikeGuard(optimizer, 300, veto=6.0)

    def update(scale: float) -> None:
        x, y = batch(run.data)
        loss = nn.functional.cross_entropy(run.model(x), y) * scale
        loss.backward()
        optimizer.step()
        guard.step(loss.detach())
        optimizer.zero_grad()

    for _ in range(150):
        update(1.0)
    assert guard.skipped_updates == 0
    before = copy.deepcopy([run.weights(), optimizer.state_dict()["state"]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        update(fault)
    torch.testing.assert_close([run.weights(), optimizer.state_dict()["state"]], before, rtol=0, atol=0)
    other = SpikeGuard(optimizer, 300, veto=6.0)
    other.load_state_dict(guard.state_dict())
    assert other.skipped_updates == guard.skipped_updates == 1
    assert other.state_dict() == guard.state_dict()
    assert guard.recoveries == []


def test_a_veto_that_is_refused() -> None:
    w = [nn.Parameter(torch.ones(2, 2))]
    with pytest.raises(ValueError, match="give Lion skip_outliers=6 in place of SpikeGuard's veto"):
        SpikeGuard(Lion(w), 100, veto=6.0)
    two = Together(torch.optim.SGD(w), torch.optim.SGD([nn.Parameter(torch.ones(2))]))
    with pytest.raises(ValueError, match="veto compares the gradients of one optimizer, and Together holds 2"):
        SpikeGuard(two, 100, veto=6.0)
    sharded = torch.Tensor._make_subclass(
        type("Sharded", (torch.Tensor,), {"placements": (), "device_mesh": None}), w[0]
    )
    with pytest.raises(ValueError, match="veto needs whole gradients, and each rank has a part of them here"):
        SpikeGuard(torch.optim.SGD([sharded]), 100, veto=6.0)
    with pytest.raises(ValueError, match="veto must be a positive number of standard deviations, such as 6, got -1"):
        SpikeGuard(torch.optim.SGD(w), 100, veto=-1)
