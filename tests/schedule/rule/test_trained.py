"""Weights that were trained before the run are recognised at the first update, and shorten the warm-up."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion, Muon
from autowarm.optim import Together
from tests.schedule.schedule_runs import run, saved

T = 200
SHORT = 6  # 3 % of T
MAKERS: dict[str, Callable[[nn.Module, Any], torch.optim.Optimizer]] = {
    "Muon": lambda model, lr: Muon.from_model(model, lr, heads=[]),
    "Lion": lambda model, lr: Lion(model.parameters(), lr),
    "AdamW": lambda model, lr: torch.optim.AdamW(model.parameters(), lr),
    "SGD": lambda model, lr: torch.optim.SGD(model.parameters(), lr),
    "together": lambda model, lr: Together(Lion(model[0].parameters(), lr), Lion(model[2].parameters(), lr)),
}


def new_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(48, 64, bias=False), nn.Tanh(), nn.Linear(64, 48, bias=False))


def trained_model() -> nn.Sequential:
    model = new_model()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        x = torch.randn(64, 48)
        opt.zero_grad()
        (model(x) - x.cumsum(1)).square().mean().backward()
        opt.step()
    return model


TRAINED = trained_model()


def steps(scheduler: AdaptiveWarmup, updates: int, order: str = "after") -> list[float]:
    """Updates with a loss that never falls, and gradients that leave the weights about as they are."""
    return run(scheduler, lambda t: 5.0, range(updates), order, lambda p, t: torch.full_like(p, 1e-6))


def scheduled(model: nn.Module, name: str = "Lion", lr: Any = 1e-6, **options: Any) -> AdaptiveWarmup:
    with warnings.catch_warnings(action="ignore"):
        return AdaptiveWarmup(MAKERS[name](copy.deepcopy(model), lr), T, **options)


@pytest.mark.parametrize("order", ["after", "before"])
@pytest.mark.parametrize("name", MAKERS)
def test_trained_weights_warm_up_for_3_percent_and_new_ones_for_half(name: str, order: str) -> None:
    for model, trained, length in ((TRAINED, True, SHORT), (new_model(), False, T // 2)):
        scheduler = scheduled(model, name)
        assert scheduler.trained is None
        steps(scheduler, T // 2 + 5, order)
        assert (scheduler.trained, scheduler.phase) == (trained, "decay")
        assert scheduler.warmup_steps == length
        assert scheduler.metrics()["trained"] == trained
        assert ("trained weights" in repr(scheduler)) == trained


@pytest.mark.parametrize(("trained", "length"), [(True, SHORT), (False, T // 2)])
def test_the_verdict_can_be_given_and_counts_on_resuming(trained: bool, length: int) -> None:
    for model, lr in ((TRAINED, 1e-6), (new_model(), torch.tensor(1e-6))):
        for resumed in (False, True):
            scheduler = scheduled(model, lr=copy.deepcopy(lr), trained=trained)
            if resumed:
                steps(first := scheduled(new_model() if trained else TRAINED), 5)
                scheduler.load_state_dict(saved(first))
            steps(scheduler, T // 2 + 5)
            assert (scheduler.trained, scheduler.warmup_steps) == (trained, length)
    # A verdict is not asked for again, whatever the weights are by then.
    straight, first, second = scheduled(TRAINED), scheduled(TRAINED), scheduled(new_model())
    rates, head = steps(straight, 20), steps(first, 1)
    second.load_state_dict(saved(first))
    assert head + steps(second, 19) == rates


@pytest.mark.parametrize("kind", ["after", "before", "compiled", "in the backward pass"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, Lion, Muon], ids=lambda make: make.__name__)
def test_an_adapters_base_is_trained_though_the_first_update_fills_its_zeros(
    make: Callable[..., torch.optim.Optimizer], kind: str
) -> None:
    torch.manual_seed(0)
    a, b = nn.Parameter(torch.randn(4, 64)), nn.Parameter(torch.zeros(64, 4))  # LoRA's adapter, random and zero
    if kind == "in the backward pass":
        each = {p: make([p], lr=1e-2) for p in (a, b)}
        for p, one in each.items():
            p.register_post_accumulate_grad_hook(lambda _, one=one: one.step())
        opt, step = Together(*each.values()), lambda: None
    else:
        opt = make([a, b], lr=1e-2)
        step = torch.compile(opt.step, backend="eager") if kind == "compiled" else opt.step
    scheduler = AdaptiveWarmup(opt, T)
    x = torch.randn(8, 64)
    loss = (x @ a.T @ b.T - x).square().mean()
    loss.backward()
    if kind == "before":
        scheduler.step(loss)
        opt.step()
    step()
    scheduler.step(loss)
    assert scheduler.trained is True
    assert b.any()
