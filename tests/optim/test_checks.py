"""What cannot be stepped is refused before anything moves, wherever among the groups and the optimizers it is."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.optim import Together
from tests.cases import each
from tests.optim.makers import OURS, Make, draw_gradients, halves, unmoved
from tests.optim.test_caller_modes import PAIRS, give


def a_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)).to(dtype)
    draw_gradients(model, 0)
    return model


def pair(
    other: Callable[..., Optimizer], *, last: bool = True, nested: bool = False
) -> Callable[[nn.Module], Together]:
    """Muon for the matrices, and another optimizer for the vectors, after it or before."""

    def make(model: nn.Module) -> Together:
        matrices, vectors = halves(model)
        both: list[Optimizer] = [Muon(matrices, lr=0.1), other(vectors, lr=0.1)]
        if nested:
            both[1] = Together(both[1])
        return Together(*(both if last else both[::-1]))

    return make


MAKERS: dict[str, Make] = OURS | {
    "muon and lion": pair(Lion),
    "muon and adamw": pair(AdamW),
    "muon and sgd, nested": pair(SGD, nested=True),
    "adamw and muon": pair(AdamW, last=False),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
RANGES = {"momentum": 1.0, "betas": (0.9, 1.0), "adamw_betas": (0.9, 1.0), "adamw_eps": -1.0}


def refused(opt: Optimizer, model: nn.Module, *said: str) -> None:
    """The step says this and changes nothing."""
    with unmoved(model.parameters()), pytest.raises(ValueError) as error:  # noqa: PT011 - checked below
        opt.step()
    assert all(one in str(error.value) for one in said), error.value


@every_optimizer
@each("name", ["lr", "weight_decay"])
@each(
    ("value", "said"),
    [
        ("1e-3", "float('1e-3')"),
        (None, "None"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        ([0.1, "1e-3"], "text"),
        ({}, "{}"),
    ],
)
def test_a_rate_or_decay_that_is_no_number_is_refused_in_any_group(
    make: Make, name: str, value: Any, said: str
) -> None:
    for place, called in enumerate(calls(make(a_model()))):
        if not called:
            continue
        model = a_model()
        opt = make(model)
        opt.step()
        group = opt.param_groups[place]
        was, group[name] = group[name], value
        refused(opt, model, called, name, said)
        group[name] = was
        opt.step()


def calls(opt: Optimizer) -> list[str]:
    """What messages call each group."""
    if isinstance(opt, Together):
        return [name for one in opt.optimizers for name in calls(one)]
    if not isinstance(opt, LMO):
        return [""] * len(opt.param_groups)  # which may mean what it likes
    return [f"{type(opt).__name__}: group {i}" for i in range(len(opt.param_groups))]


@every_optimizer
@each("name", RANGES)
def test_every_number_of_ours_is_held_to_its_range(make: Make, name: str) -> None:
    swapped = 0.5 if "betas" in name else (0.5, 0.5)  # a number for a pair, and a pair for a number
    for bad in (RANGES[name], "0.5", None, math.nan, (0.9,), (0.9, "0.99"), torch.zeros(2), swapped):
        model = a_model()
        opt = make(model)
        for group in [group for group in opt.param_groups if "geometry" in group and name in group][-1:]:
            group[name] = bad
            refused(opt, model, "group ", name)


@each(
    ("name", "makers"),
    [
        *((name, (Muon, NormSGD, Lion, SignSGD, LMO)) for name in ("capturable", "maximize", "warn_unused")),
        ("nesterov", (Muon, NormSGD, SignSGD, LMO)),
        ("adamw_eps_hat", (Muon,)),
    ],
)
def test_a_switch_is_on_or_off(name: str, makers: Sequence[type[LMO]]) -> None:
    for make in makers:
        for bad in ("no", "false", 1, None):
            for given in ({name: bad}, {}):
                group = {"params": [nn.Parameter(torch.ones(2, 2))]} | ({} if given else {name: bad})
                with pytest.raises(ValueError, match=f"{name} must be True or False, got {bad!r}"):
                    make([group], lr=torch.tensor(0.1), **given)
        assert make([nn.Parameter(torch.ones(2, 2))], lr=torch.tensor(0.1), **{name: np.True_}).defaults[name] is True


@every_optimizer
@each("rate", [0, 0.0, 1, np.float64(0.1), np.float32(0.1), torch.tensor(0.1), torch.tensor([0.1])])
def test_any_kind_of_number_is_a_rate(make: Make, rate: Any) -> None:
    model = a_model()
    opt = make(model)
    for group in opt.param_groups:
        if "geometry" in group:
            group["lr"] = rate
    before = [p.detach().clone() for p in model.parameters()]
    opt.step()
    moved = [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
    assert any(moved) or not rate


def test_the_value_of_a_tensor_is_not_read() -> None:
    model = a_model()
    opt = Lion.from_model(model, lr=0.1)
    opt.param_groups[1] |= {"lr": torch.empty((), device="meta"), "weight_decay": "1e-3"}  # to read it is an error
    refused(opt, model, "Lion: group 1 (embeddings and vectors): weight_decay='1e-3' is text")
    opt.param_groups[1] |= {"lr": Fraction(1, 10), "weight_decay": 0.1}
    opt.step()


@each("last", [False, True])
@each("nested", [False, True])
def test_what_another_optimizer_refuses_is_refused_before_ours_moves(last: bool, nested: bool) -> None:
    model = a_model()
    opt = pair(Adam, last=last, nested=nested)(model)
    matrices, vectors = halves(model)
    vectors[0][1].grad = torch.ones(4).to_sparse()
    with unmoved(p for _, p in matrices), pytest.raises(RuntimeError, match="sparse"):
        opt.step()


@each("other", [SGD, RMSprop, Adagrad])
@each(("dtype", "of_gradients"), PAIRS)
def test_optimizers_that_take_other_dtypes_get_them(
    other: type[Optimizer], dtype: torch.dtype, of_gradients: torch.dtype
) -> None:
    model = a_model(dtype)
    for p in model.parameters():
        give(p, torch.ones(p.shape, dtype=of_gradients))
    before = [p.detach().clone() for p in model.parameters()]
    pair(other)(model).step()
    assert not any(map(torch.equal, before, model.parameters()))
