"""Closures of `step`: one after which no tensor has a gradient is told so, once, and any other is not."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import LMO, AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD
from autowarm.optim import Together
from tests.cases import each


def together(model: nn.Module) -> Together:
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) is many] for many in (True, False))
    return Together(torch.optim.AdamW(vectors, lr=0.1), Together(Muon(matrices, lr=0.1)))


MAKERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "muon": lambda m: Muon.from_model(m, lr=0.1, heads=[]),
    "lion": lambda m: Lion.from_model(m, lr=0.1),
    "signsgd": lambda m: SignSGD.from_model(m, lr=0.1),
    "normsgd": lambda m: NormSGD.from_model(m, lr=0.1),
    "lmo": lambda m: LMO.from_model(m, lr=0.1),
    "together": together,
    "another together": lambda m: Together(torch.optim.SGD(m.parameters(), lr=0.1)),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def loss_of(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(2, 4)).square().mean()
    return loss


def backward(model: nn.Module) -> torch.Tensor:
    loss = loss_of(model)
    loss.backward()
    return loss


def cleared(model: nn.Module) -> torch.Tensor:
    loss = backward(model)
    model.zero_grad()
    return loss


IDLE: dict[str, Callable[[nn.Module], Any]] = {
    "nothing": lambda model: None,
    "no backward": loss_of,
    "a number": lambda model: loss_of(model).item(),
    "another model": lambda model: backward(nn.Linear(4, 4)),
    "cleared": cleared,
}
# Trainers pass closures that return nothing, having run forward and backward themselves.
BUSY: dict[str, Callable[[nn.Module], Any]] = {
    "backward": backward,
    "returns nothing": lambda model: backward(model) and None,
}


@every_optimizer
@each("closure", IDLE)
def test_a_closure_after_which_nothing_has_a_gradient_is_told_so_once(make: Callable, closure: str) -> None:
    for _ in range(2):  # once for each optimizer
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        opt = make(model)
        before = [p.detach().clone() for p in model.parameters()]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(3):
                opt.step(lambda: IDLE[closure](model))  # noqa: B023
        [one] = said
        assert "ran no backward pass" in str(one.message)
        assert str(one.message).startswith(f"{type(opt).__name__}.step: ")
        assert one.filename == __file__
        assert all(map(torch.equal, before, model.parameters()))


@every_optimizer
@each("closure", BUSY)
@each("scheduled", [False, True])
def test_nothing_is_said_of_a_closure_that_trains(make: Callable, closure: str, scheduled: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    opt = make(model)
    sched = AdaptiveWarmup(opt, 10, geometry="sign") if scheduled else None
    before = [p.detach().clone() for p in model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            opt.zero_grad()
            opt.step(lambda: BUSY[closure](model))
            if sched is not None:
                sched.step(1.0)
    assert not any(map(torch.equal, before, model.parameters()))


@every_optimizer
def test_nothing_is_said_without_a_closure_or_with_gradients_of_before(make: Callable) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    opt = make(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step()  # as a dry run does
        backward(model)
        opt.step(lambda: 0.0)
