"""What cannot be stepped is refused before anything moves, wherever among the groups and the optimizers it is."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from autowarm import LMO, Lion, Muon
from autowarm.optim import Together
from tests.cases import each
from tests.optim.makers import CLASSES, OURS, Make, draw_gradients, halves, unmoved


def a_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)).to(dtype)
    draw_gradients(model, 0)
    return model


def pair(other: Callable[..., Optimizer], *, last: bool = True, nested: bool = False) -> Make:
    """Muon for the matrices, and another optimizer for the vectors, after it or before."""

    def make(model: nn.Module) -> Together:
        matrices, vectors = halves(model)
        second = other(vectors, lr=0.1)
        both = [Muon(matrices, lr=0.1), Together(second) if nested else second]
        return Together(*(both if last else both[::-1]))

    return make


MAKERS: dict[str, Make] = OURS | {
    "muon and lion": pair(Lion),
    "muon and adamw": pair(AdamW),
    "muon and sgd, nested": pair(SGD, nested=True),
    "adamw and muon": pair(AdamW, last=False),
    "sgd, and muon nested": lambda m: Together(SGD(halves(m)[1], lr=0.1), Together(Muon(halves(m)[0], lr=0.1))),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def refused_and_then_made(make: Make, place: int, name: str, value: Any, *words: str) -> None:
    """A step with this option of a group says this and changes nothing; with the one it had it is made."""
    model = a_model()
    opt = make(model)
    opt.step()
    group = opt.param_groups[place]
    was, group[name] = group[name], value
    with unmoved(model.parameters()), pytest.raises(ValueError) as error:  # noqa: PT011 - checked below
        opt.step()
    assert all(one in str(error.value) for one in (*words, name)), error.value
    group[name] = was
    opt.step()


def ours(opt: Optimizer) -> dict[int, str]:
    """The places of the groups that are ours, and what messages call each; others' may mean what they like."""
    if isinstance(opt, Together):
        called = [one for each in opt.optimizers for one in ours(each).items() or [(0, "")]]
        return {place: name for place, (_, name) in enumerate(called) if name}
    return {i: f"{type(opt).__name__}: group {i}" for i in range(len(opt.param_groups))} if isinstance(opt, LMO) else {}


NO_NUMBERS = [("1e-3", "'1e-3'"), (None, "None"), (math.nan, "nan"), (math.inf, "inf"), ({}, "{}")]
WRONG = [
    *((name, value, words) for name in ("lr", "weight_decay") for value, words in NO_NUMBERS),
    *((name, value, "") for name in ("momentum", "adamw_eps") for value in (-1.0, math.inf, "0.5", None, (0.5, 0.5))),
    *((name, value, "") for name in ("betas", "adamw_betas") for value in ((0.9, 1.0), 0.5, (0.9,), (0.9, "0.99"))),
]


@every_optimizer
@each(("value", "words"), NO_NUMBERS)
def test_what_is_no_rate_is_refused_in_any_group(make: Make, value: Any, words: str) -> None:
    for place, called in ours(make(a_model())).items():
        refused_and_then_made(make, place, "lr", value, called, words)


@each("cls", CLASSES)
@each(("name", "value", "words"), WRONG)
def test_what_is_no_value_of_an_option_is_refused_in_a_new_group(cls: Any, name: str, value: Any, words: str) -> None:
    opt = cls([nn.Parameter(torch.eye(3))], lr=0.1)
    if name not in opt.param_groups[0]:
        return
    with pytest.raises(ValueError, match=name) as refused:
        opt.add_param_group({"params": [nn.Parameter(torch.eye(3))], name: value})
    assert words in str(refused.value)
    state = opt.state_dict()
    state["param_groups"][0][name] = value
    with pytest.raises(ValueError, match=f"the saved optimizer's group 0: {name}"):
        opt.load_state_dict(state)


@every_optimizer
@each("rate", [0, 0.0, 1, np.float64(0.1), np.float32(0.1), Fraction(1, 10), torch.tensor(0.1), torch.tensor([0.1])])
def test_any_kind_of_number_is_a_rate(make: Make, rate: Any) -> None:
    model = a_model()
    opt = make(model)
    for place in ours(opt):
        opt.param_groups[place]["lr"] = rate
    before = [p.detach().clone() for p in model.parameters()]
    opt.step()
    assert not rate or not all(map(torch.equal, model.parameters(), before))


@each("last", [False, True])
@each("nested", [False, True])
def test_what_another_optimizer_refuses_is_refused_before_ours_moves(last: bool, nested: bool) -> None:
    model = a_model()
    opt = pair(Adam, last=last, nested=nested)(model)
    matrices, vectors = halves(model)
    vectors[0][1].grad = torch.ones(4).to_sparse()
    with unmoved(p for _, p in matrices), pytest.raises(RuntimeError, match="sparse"):
        opt.step()
