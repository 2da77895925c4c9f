"""An optimizer whose tensors never have a gradient says so once: the model is another by now, or a closure is idle."""

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from autowarm import Lion
from autowarm.optim import Together
from tests.cases import each
from tests.optim.makers import ALL, EVERY, Make, said_by, together

MAKERS: dict[str, Make] = {
    **{name: ALL[name] for name in ("muon", "lion", "together")},
    "no momentum": EVERY["signsgd, no momentum"].of_model,
    "nameless": lambda m, **o: Lion(m.parameters(), lr=0.1, **o),
}


def a_model() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 9))


def with_layer(place: int, layer: nn.Module) -> Callable[[nn.Sequential], nn.Module]:
    def change(model: nn.Sequential) -> nn.Module:
        model[place] = layer
        return model

    return change


def sharded(model: nn.Sequential) -> nn.Module:
    """As `fully_shard` does it: the layer's tensors become others."""
    model[1].weight = nn.Parameter(model[1].weight.detach().clone())
    return model


NEVER = "of its 7 tensors had no gradient in 3 updates, as"
# What becomes of a model once its optimizer is built, and what the warning says.
CHANGES: dict[str, tuple[Callable[[nn.Sequential], nn.Module], str]] = {
    "copied": (copy.deepcopy, f"7 {NEVER} "),
    "adapted": (
        lambda m: nn.Sequential(m.requires_grad_(False), nn.Linear(9, 9)),
        "7 of its 7 tensors had no gradient in 3 updates; none of them asks for one",
    ),
    "sharded": (sharded, f"1 {NEVER} 1.weight"),
    "new head": (with_layer(4, nn.Linear(8, 5)), f"2 {NEVER} 4.weight, 4.bias"),
}


def train(model: nn.Module, opt: Optimizer, updates: int) -> list[str]:
    """What is said in each of some updates."""
    messages = []
    for _ in range(updates):
        opt.zero_grad()
        model.zero_grad()
        model(torch.tensor([0, 3, 5])).square().mean().backward()
        messages.append(" | ".join(said_by(opt.step)))
    return messages


@each("change", CHANGES)
@each("maker", MAKERS)
def test_a_model_that_changed_after_its_optimizer_was_built_is_said_once(change: str, maker: str) -> None:
    becomes, wanted = CHANGES[change]
    model = a_model()
    opt = MAKERS[maker](model)
    first, second, third, *later = train(becomes(model), opt, 5)
    assert not any((first, second, *later))
    if maker == "nameless":
        wanted = re.sub(r"\d\.\w+(, \d\.\w+)*$", "a parameter of shape", wanted)
    assert re.search(f"{wanted}.*build it.*warn_unused=False", third), third


class Experts(nn.Module):
    """A mixture that uses its first expert alone, and what is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.frozen, self.spare = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)
        self.embed = nn.Embedding(9, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.experts[0](self.embed(x)))


@each("maker", MAKERS)
def test_what_is_frozen_or_an_expert_or_said_to_be_unused_is_no_fault(maker: str) -> None:
    model = Experts()
    messages = train(model, MAKERS[maker](model), 5)
    assert [bool(one) for one in messages] == [False, False, True, False, False]
    if maker != "nameless":
        assert "spare.weight" in messages[2]
        assert "experts" not in messages[2]
        assert "frozen" not in messages[2]
    if maker != "together":
        assert not any(train(model, MAKERS[maker](Experts(), warn_unused=False), 5))
    group = {"params": [nn.Parameter(torch.ones(2, 2))], "warn_unused": False}
    assert not any(train(model, Lion([{"params": model.experts[0].parameters()}, group], lr=0.1), 5))


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 4)).square().mean()


def backward(model: nn.Module) -> torch.Tensor:
    loss = loss_of(model)
    loss.backward()
    return loss


def cleared(model: nn.Module) -> torch.Tensor:
    loss = backward(model)
    model.zero_grad()
    return loss


# What a closure does, and whether it trains. Trainers pass some that return nothing, having run both passes themselves.
CLOSURES: list[tuple[Callable[[nn.Module], Any], bool]] = [
    (lambda model: None, False),
    (loss_of, False),  # without backward
    (lambda model: backward(nn.Linear(4, 4)), False),
    (cleared, False),
    (backward, True),
    (lambda model: backward(model) and None, True),
]
CLOSED: dict[str, Make] = ALL | {
    "nested": lambda m: Together(together(m)),
    "another": lambda m: Together(SGD(m.parameters(), lr=0.1)),
}


@pytest.mark.parametrize("make", CLOSED.values(), ids=CLOSED)
@each(("closure", "trains"), CLOSURES)
def test_a_closure_after_which_nothing_has_a_gradient_is_told_so_once(
    make: Callable, closure: Callable, trains: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    opt = make(model)
    assert not said_by(opt.step)  # nor without a closure, as in a dry run
    before = [p.detach().clone() for p in model.parameters()]
    with warnings.catch_warnings(record=True, action="always") as messages:
        for _ in range(3):
            opt.zero_grad()
            losses = []
            assert [opt.step(lambda: losses.append(closure(model)) or losses[-1])] == losses  # noqa: B023
    moved = [not torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True)]
    assert moved == [trains] * len(moved)
    assert len(messages) == (not trains)
    for one in messages:
        assert re.match(rf"{type(opt).__name__}.step: .*ran no backward pass", str(one.message))
        assert one.filename == __file__
    backward(model)
    assert not said_by(lambda: opt.step(lambda: 0.0))  # with gradients of before
