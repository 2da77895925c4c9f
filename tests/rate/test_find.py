"""The search on real models: nothing is left behind, and the rate is of the right order."""

import copy
import itertools
import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from autowarm import AdaptiveWarmup, Lion, Muon, find_rate
from autowarm.optim import Together
from autowarm.rate import RateSearch
from tests.closures import backward_of


def a_model() -> nn.Module:
    """Dropout draws from the generator, batch normalisation writes into buffers."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Linear(16, 1)]
    return nn.Sequential(*layers)


def closure_of(model: nn.Module) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        x = torch.randn(32, 8)
        random.random()
        drawn = float(np.random.standard_normal())  # noqa: NPY002 - of the generator that must be put back
        loss = (model(x) - x[:, :1] + 0.1 * drawn).square().mean()
        loss.backward()
        return loss

    return closure


def train(model: nn.Module, optimizer: Optimizer, scheduler: Any, steps: int) -> list[float]:
    closure, losses = closure_of(model), []
    for _ in range(steps):
        loss = closure()
        optimizer.step()
        if scheduler is not None:
            scheduler.step(*[loss.detach()] * isinstance(scheduler, AdaptiveWarmup))
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


MAKERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "muon": lambda m: Muon.from_model(m, lr=0.01),
    "muon, tensor lr": lambda m: Muon.from_model(m, lr=torch.tensor(0.01)),
    "lion": lambda m: Lion(m.parameters(), lr=0.001),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.001),
    "adamw, tensor lr, fused": lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.001), fused=True),
    "sgd, momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9),
    "together": lambda m: Together(
        torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], lr=0.01),
        torch.optim.AdamW([p for p in m.parameters() if p.ndim != 2], lr=0.003),
    ),
}
SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "none": lambda opt: None,
    "adaptive": lambda opt: AdaptiveWarmup(opt, 60, calibration="spectral"),
    "cosine": lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 60),
}


def snapshot(model: nn.Module, optimizer: Optimizer) -> Any:
    """Bits of all that a search could change, and the very objects."""
    tensors = [*model.parameters(), *model.buffers()]
    states = {id(p): {k: id(v) for k, v in s.items()} for p, s in optimizer.state.items()}
    return copy.deepcopy((
        [t.detach().numpy().tobytes() for t in tensors], repr(optimizer.state_dict()), states,
        [id(group["lr"]) if isinstance(group["lr"], torch.Tensor) else group["lr"] for group in optimizer.param_groups],
        [p.grad is not None and (id(p.grad), p.grad.numpy().tobytes()) for p in model.parameters()],
        model.training, getattr(optimizer, "skipped_updates", 0),
        list(vars(optimizer)), torch.get_rng_state().numpy().tobytes(), random.getstate(),
        repr(np.random.get_state()),  # noqa: NPY002
    ))  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*is no norm-constrained optimizer")
@pytest.mark.parametrize("before", [0, 5], ids=["fresh", "midway"])
@pytest.mark.parametrize(
    ("maker", "scheduler"), [*((maker, "adaptive") for maker in MAKERS), ("muon", "none"), ("adamw", "cosine")]
)
def test_a_run_with_a_search_in_it_is_the_same_to_the_bit(maker: str, scheduler: str, before: int) -> None:
    def run(searching: bool) -> tuple[list[float], Any]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        model = a_model()
        optimizer = MAKERS[maker](model)
        sched = SCHEDULERS[scheduler](optimizer)
        losses = train(model, optimizer, sched, before)
        closure_of(model)()  # gradients that are kept, the very tensors
        if searching:
            was = snapshot(model, optimizer)
            scheduled = repr(sched.state_dict()) if sched else ""
            find_rate(model, optimizer, closure_of(model), steps=40)
            assert snapshot(model, optimizer) == was
            assert (repr(sched.state_dict()) if sched else "") == scheduled
        losses += train(model, optimizer, sched, 10)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        return losses, (rates, [p.detach().numpy().tobytes() for p in model.state_dict().values()])

    assert run(True) == run(False)


def interrupted() -> None:
    raise KeyboardInterrupt("stop")


# What a closure does wrong in its 21st call, and what is said: each leaves nothing behind.
STEPS = "the closure steps the optimizer, which find_rate does"
WRONG: dict[str, tuple[Callable[[nn.Module, Optimizer], Any], type[BaseException], str]] = {
    "an error": (lambda model, opt: float("stop"), ValueError, "stop"),
    "Ctrl-C": (lambda model, opt: interrupted(), KeyboardInterrupt, "stop"),
    "no batch is left": (
        lambda model, opt: next(iter(())), ValueError,
        "the batches ended after 20 of 100 steps: let the closure start over, or pass steps=20$",
    ),
    "a step": (lambda model, opt: opt.step(), ValueError, STEPS),
    "a step, and no gradients": (lambda model, opt: (opt.step(), opt.zero_grad()), ValueError, STEPS),
    "no gradients": (lambda model, opt: model.zero_grad(), ValueError, "after it no tensor has a gradient"),
}  # fmt: skip


@pytest.mark.parametrize("scheduler", ["none", "adaptive"])
@pytest.mark.parametrize(
    ("maker", "wrong"), [*(("muon", wrong) for wrong in WRONG), *((maker, "a step") for maker in [*MAKERS][1:])]
)
def test_a_closure_that_goes_wrong_is_told_so_and_leaves_nothing_behind(maker: str, wrong: str, scheduler: str) -> None:
    model = a_model()
    optimizer = MAKERS[maker](model)
    train(model, optimizer, SCHEDULERS[scheduler](optimizer), 3)
    was, closure, calls = snapshot(model, optimizer), closure_of(model), itertools.count(1)
    act, error, message = WRONG[wrong]

    def spoilt() -> torch.Tensor:
        loss = closure()
        if next(calls) == 21:
            act(model, optimizer)
        return loss

    with pytest.raises(error, match=message):
        find_rate(model, optimizer, spoilt)
    assert snapshot(model, optimizer) == was
    assert not [hook for hook in optimizer._optimizer_step_post_hooks.values() if "find" in hook.__module__]


def quadratic(curvature: float) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """f(x) = curvature/2·‖x‖² from ‖x‖ = 10, entries of ±10/√64."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.randint(0, 2, (8, 8)) * 2.0 - 1).mul_(10 / 8)

    return model, backward_of(lambda: 0.5 * curvature * model.weight.square().sum())


@pytest.mark.parametrize("curvature", [0.1, 30.0])
def test_gradient_descent_on_a_quadratic_stays_below_its_limit_and_near_it(curvature: float) -> None:
    """The best rate is 1/curvature; above 2/curvature the loss grows."""
    model, closure = quadratic(curvature)
    result = find_rate(model, torch.optim.SGD(model.parameters(), lr=1.0), closure, highest=1e4)
    assert 0.03 / curvature < result.suggestion < 2 / curvature
    assert result.interval[0] < 1 / curvature


def test_gradients_that_are_not_finite_are_no_error_and_not_counted() -> None:
    model, closure = quadratic(1.0)
    optimizer = Lion(model.parameters(), lr=1.0, max_nonfinite=2)

    def spoilt() -> torch.Tensor:
        loss = closure()
        model.weight.grad.fill_(math.nan)  # type: ignore[union-attr]
        return loss

    with warnings.catch_warnings(action="error"):
        find_rate(model, optimizer, spoilt, steps=30)
    assert optimizer.skipped_updates == 0


@pytest.mark.parametrize("tensor", [False, True])
def test_groups_keep_their_ratios_by_their_peaks(tensor: bool) -> None:
    first, second, frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    rates = [torch.tensor(x) if tensor else x for x in (0.0, 1e-3, 4e-3)]
    groups = [{"params": m.parameters(), "lr": lr} for m, lr in zip((frozen, first, second), rates, strict=True)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    AdaptiveWarmup(optimizer, 100, calibration="frobenius")
    optimizer.param_groups[1]["lr"] *= 0.5  # the present rates are not what counts
    values: list[list[float]] = []

    def loss() -> torch.Tensor:
        values.append([float(group["lr"]) for group in optimizer.param_groups])
        return sum(m.weight.square().sum() for m in (first, second, frozen))

    closure = backward_of(loss)
    model = nn.ModuleList([first, second, frozen])
    result = find_rate(model, optimizer, closure, lowest=np.float32(1e-5), highest=10.0, steps=np.int64(30))
    np.testing.assert_allclose([row[1] for row in values], result.rates, rtol=1e-6)
    np.testing.assert_allclose([row[2] for row in values], 4 * result.rates, rtol=1e-6)
    assert {row[0] for row in values} == {0.0}


def test_one_bad_batch_changes_nothing_and_a_second_in_a_row_is_a_break() -> None:
    def search(*bad: int) -> RateSearch:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
        calls = itertools.count()

        def closure() -> torch.Tensor:
            assert all(p.isfinite().all() for p in model.parameters())
            now = next(calls)
            drawn = torch.get_rng_state()
            x = torch.randn(32, 8)
            loss = (model(x) - x[:, :1]).square().mean()
            if now in bad:
                loss = loss * math.nan
                torch.set_rng_state(drawn)  # the next batch comes instead
            loss.backward()
            return loss

        return find_rate(model, optimizer, closure, total_steps=1000)

    clean = search()
    assert clean.reason is None
    for bad in ((0,), (40,), (40, 60)):
        result = search(*bad)
        np.testing.assert_array_equal(result.losses, clean.losses)
        assert result.suggestion == clean.suggestion
    broken = search(60, 61)
    np.testing.assert_array_equal(broken.losses[:-1], clean.losses[:60])
    assert math.isnan(broken.losses[-1])
    assert broken.broken
    assert broken.reason is None  # what came before is enough


class Growing(nn.Linear):
    """A layer with a cache in a buffer, which grows with longer inputs as rotary embeddings do, and an expanded one."""

    cached = 0

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.register_buffer("scale", torch.ones(1).expand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.cached:
            self.register_buffer("cache", torch.ones(len(x), 1))
            self.cached = len(x)
        return super().forward(x * self.cache[: len(x)])


def test_buffers_that_grow_or_are_expanded_stay_as_the_module_counts_on_them() -> None:
    model, sizes = Growing(), itertools.count(9)
    model(torch.ones(8, 4))
    closure = backward_of(lambda: model(torch.randn(next(sizes), 4) * model.scale).square().mean())
    find_rate(model, torch.optim.SGD(model.parameters(), lr=0.1), closure, total_steps=100, steps=20)
    assert model(torch.ones(16, 4)).shape == (16, 1)
    assert model.scale.tolist() == [1.0] * 4
