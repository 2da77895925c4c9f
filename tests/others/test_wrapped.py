"""Optimizers around other optimizers: the schedule counts their updates and sets the rates that they step by."""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from autowarm import AdaptiveWarmup
from autowarm.geometry import Sign
from autowarm.optim import Together
from autowarm.others import geometry_of
from autowarm.others.wrapped import inside, unwrapped
from tests.cases import each

# Which torch and numpy alone do without.
heavyball, pytorch_optimizer, timm = map(pytest.importorskip, ("heavyball", "pytorch_optimizer", "timm.optim"))

STEPS, LR = 50, 0.01


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


class Rate(Optimizer):
    """Adds 1 to its count and moves by its rate, so that the rates it stepped by can be read off."""

    def __init__(self, params: Any, lr: float = LR) -> None:
        super().__init__(params, {"lr": lr})
        self.rates: list[float] = []

    def step(self, closure: Callable[[], float] | None = None) -> None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.rates.append(self.param_groups[0]["lr"])
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.sub_(p.grad, alpha=group["lr"])


class Bare(Optimizer):
    """A wrapper that never calls Optimizer.__init__, and keeps the other under a name nobody has heard of."""

    def __init__(self, around: Optimizer) -> None:
        self._optimizer_step_pre_hooks: dict[int, Any] = {}
        self._optimizer_step_post_hooks: dict[int, Any] = {}
        self._very_own = around
        self.param_groups, self.defaults, self.state = around.param_groups, around.defaults, around.state

    def step(self, closure: Any = None) -> None:
        self._very_own.step(closure)


def plain(model: nn.Module) -> Rate:
    return Rate(model.parameters())


class PerTensor(Optimizer):
    """Stands for one optimizer per tensor, each stepped in the backward pass; its groups may be theirs."""

    def __init__(self, model: nn.Module, each: type[Optimizer], shares_groups: bool = False) -> None:
        self.by_tensor = {p: each([p], lr=LR) for p in model.parameters()}
        super().__init__([torch.zeros(1, 1)], {"lr": LR})
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self._update)
        if shares_groups:
            self.param_groups = [group for one in self.by_tensor.values() for group in one.param_groups]

    def _update(self, p: Any) -> None:
        self.by_tensor[p].step()
        self.by_tensor[p].zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def step(self, closure: Any = None) -> None: ...


class Several(Optimizer):
    """Steps a list of others, whose groups are its own, or which have groups of its tensors; or stands for them."""

    def __init__(self, model: nn.Module, relation: str) -> None:
        self.inner = [Rate([p]) for p in model.parameters()]
        groups = [group for one in self.inner for group in one.param_groups]
        by_relation = {"its own": groups, "copies": [*model.parameters()]}
        super().__init__(by_relation.get(relation, [torch.zeros(1)]), {"lr": LR})
        if relation == "its own":
            self.param_groups = by_relation[relation]

    def step(self, closure: Any = None) -> None:
        for one in self.inner:
            one.step()


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "timm's Lookahead": lambda model: timm.Lookahead(plain(model)),
    "Lookahead": lambda model: pytorch_optimizer.Lookahead(plain(model)),
    "SAM": lambda model: pytorch_optimizer.SAM(model.parameters(), Rate, lr=LR),
    "bare": lambda model: Bare(plain(model)),
    "two layers": lambda model: Bare(timm.Lookahead(plain(model))),
    "one per tensor": partial(PerTensor, each=Rate),
    "one per tensor, whose groups it has": partial(PerTensor, each=Rate, shares_groups=True),
    "several, whose groups it has": partial(Several, relation="its own"),
    "several that it stands for": partial(Several, relation="stands for them"),
}


def train(model: nn.Module, opt: Any, sched: AdaptiveWarmup, updates: int, seed: int = 0) -> None:
    g = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        x = torch.randn(16, 6, generator=g)

        def closure() -> torch.Tensor:
            opt.zero_grad()
            loss = model(x).square().mean() + 1  # noqa: B023
            loss.backward()
            return loss

        loss = closure()
        if hasattr(opt, "first_step"):
            opt.step(closure)
        else:
            opt.step()
        sched.step(loss)


def rates_of(opt: Any) -> list[list[float]]:
    """By optimizer that makes updates."""
    return [one.rates for one in inside(opt)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_update_is_counted_and_made_at_the_rate_of_the_schedule(name: str) -> None:
    model = make_model()
    opt = WRAPPERS[name](model)
    sched = AdaptiveWarmup(opt, STEPS, calibration="sign", decay="linear")
    train(model, opt, sched, STEPS)
    assert sched.last_epoch == STEPS
    assert len(rates_of(opt)) == (4 if isinstance(opt, PerTensor | Several) else 1)
    for rates in rates_of(opt):
        assert len(rates) == STEPS
        assert rates[0] == pytest.approx(LR / 10)
        assert max(rates) > 0.9 * LR
        assert 0 < rates[-1] < 0.1 * LR


class Apart(Optimizer):
    """Steps by groups of its own."""

    def __init__(self, params: Any, **options: Any) -> None:
        params = list(params)
        super().__init__(params, options)
        self.hidden = AdamW(params, **options)


def test_one_that_copies_its_rates_inside_is_left_as_it_is() -> None:
    wrapper = type("ZeroRedundancyOptimizer", (Apart,), {})(make_model().parameters(), lr=LR)
    assert unwrapped(wrapper) is wrapper


def test_the_geometry_is_that_of_the_optimizer_inside() -> None:
    model = make_model()
    per_tensor = PerTensor(model, AdamW)
    for opt in (
        timm.Lookahead(AdamW(model.parameters())),
        pytorch_optimizer.SAM(model.parameters(), AdamW),
        per_tensor,
    ):
        assert geometry_of(opt) == Sign()
    assert isinstance(unwrapped(per_tensor), Together)
    assert AdaptiveWarmup(per_tensor, STEPS).optimizer is unwrapped(per_tensor)


def split(model: nn.Module) -> Optimizer:
    kinds = zip(model.parameters(), cycle((heavyball.Muon, heavyball.AdamW)), strict=False)
    return heavyball.SplitOpt([{"params": [p], "optimizer": kind, "lr": LR} for p, kind in kinds])


@each(
    ("make", "says", "instead"),
    [
        (lambda model: Apart(model.parameters(), lr=LR),
         "Apart steps by the rates of the AdamW that it keeps as 'hidden'", lambda opt: opt.hidden),
        (partial(Several, relation="copies"), r"Several steps .* the Rate that it keeps as 'inner'.*Together",
         lambda opt: opt.inner),
        (split, r"SplitOpt steps by .* the Muon and AdamW that it keeps as 'optim", lambda opt: opt.optimizers),
    ],
)  # fmt: skip
def test_a_wrapper_with_groups_apart_is_refused_by_name(
    make: Callable[[nn.Module], Any], says: str, instead: Callable[[Any], Any]
) -> None:
    opt = make(make_model())
    with pytest.raises(ValueError, match=says):
        AdaptiveWarmup(opt, STEPS)
    inner = instead(opt)
    AdaptiveWarmup(inner if isinstance(inner, Optimizer) else Together(*inner), STEPS)


def test_siblings_are_not_what_an_optimizer_steps() -> None:
    several = [Rate([p]) for p in make_model().parameters()]
    for one in several:
        one.all = several  # type: ignore[attr-defined]
    assert [inside(one) for one in several] == [[one] for one in several]
