"""A saved state goes to the tensors that it was saved for, or is refused with their names."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import Lion, Muon
from tests.cases import each
from tests.optim.makers import ALL, Make, nothing_taken

MAKERS: dict[str, Make] = ALL | {
    "muon, blocks": lambda m: Muon.from_model(m, blocks={"b": 2}),
    "named tensors": lambda m: Lion(m.named_parameters()),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def plain(name: str) -> str:
    return name.replace("_orig_mod.", "").replace("module.", "")


def seeded(name: str, shape: Sequence[int], update: int = 0) -> torch.Tensor:
    seed = sum(map(ord, plain(name))) + 1000 * update
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def a_model(order: str = "abc") -> nn.Module:
    """Layers of one shape, registered in this order, whose weights do not depend on it."""
    model = nn.ModuleDict({name: nn.Linear(6, 6) for name in order})
    for name, p in model.named_parameters():
        p.data = seeded(name, p.shape)
    return model


def train(model: nn.Module, opt: torch.optim.Optimizer, updates: range) -> dict[str, torch.Tensor]:
    for t in updates:
        for name, p in model.named_parameters():
            p.grad = seeded(name, p.shape, t)
        opt.step()
    return {plain(name): p.detach().clone() for name, p in model.named_parameters()}


def same(weights_now: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return weights_now.keys() == other.keys() and all(torch.equal(p, other[name]) for name, p in weights_now.items())


def saved(make: Make) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """The weights and the state after three updates, and the weights two updates later."""
    model = a_model()
    opt = make(model)
    train(model, opt, range(3))
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    return weights, state, train(model, opt, range(3, 5))


def goes_on(make: Make, weights: Any, state: Any, order: str = "abc") -> dict[str, torch.Tensor]:
    """The weights after two more updates of an optimizer that has loaded a state."""
    model = a_model(order)
    model.load_state_dict(weights)
    opt = make(model)
    opt.load_state_dict(state)
    return train(model, opt, range(3, 5))


@every_optimizer
@each("order", ["acb", "bac", "abd", "xyz"])
def test_layers_in_another_order_or_with_other_names_are_named(make: Make, order: str) -> None:
    try:
        opt = make(a_model(order))
    except ValueError:  # no name for the pattern of blocks
        return
    was, now = next(pair for pair in zip("abc", order, strict=True) if pair[0] != pair[1])
    says = rf"other tensors, or in other places: tensor \d in group \d.* was {was}\.\w+, and is {now}\.\w+"
    with nothing_taken(opt, says):
        opt.load_state_dict(saved(make)[1])


@every_optimizer
@each("named", ["both", "saved", "here"])
def test_the_same_names_in_the_same_order_load_and_without_names_the_order_decides(make: Make, named: str) -> None:
    def remade(model: nn.Module) -> torch.optim.Optimizer:
        opt = make(model)
        for group in opt.param_groups if named == "saved" else ():
            del group["param_names"]
        return opt

    weights, state, after = saved(make)
    for group in state["param_groups"] if named == "here" else ():
        del group["param_names"]
    before = copy.deepcopy(state)
    assert same(goes_on(remade, weights, state), after)
    assert state["param_groups"] == before["param_groups"]  # the caller's, which is not changed


@every_optimizer
def test_a_distributed_checkpoint_is_taken_as_it_addresses_tensors(make: Make) -> None:
    """It replaces numbers by names, in the order of the optimizer that loads it, so that the order may change."""
    weights, state, after = saved(make)
    names = {n: name for g in state["param_groups"] for n, name in zip(g["params"], g["param_names"], strict=True)}
    by_name = {names[number]: entry for number, entry in state["state"].items()}
    groups = [
        {**next(g for g in state["param_groups"] if set(g["param_names"]) == set(own_group["param_names"])),
         "params": list(own_group["param_names"])}
        for own_group in make(a_model("cba")).param_groups
    ]  # fmt: skip
    assert same(goes_on(make, weights, {"state": by_name, "param_groups": groups}, "cba"), after)


class Renamed(nn.Module):
    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.add_module(name, inner)


@every_optimizer
@each("wrappers", [["module"], ["_orig_mod"], ["module", "_orig_mod"]])
@each("wrapped_first", [False, True])
def test_wrappers_do_not_change_a_name(make: Make, wrappers: list[str], wrapped_first: bool) -> None:
    wrapped = a_model()
    for name in wrappers:
        wrapped = Renamed(wrapped, name)
    first, second = (wrapped, a_model()) if wrapped_first else (a_model(), wrapped)
    opts = make(first), make(second)
    train(first, opts[0], range(2))
    for p, q in zip(second.parameters(), first.parameters(), strict=True):
        p.data.copy_(q)
    opts[1].load_state_dict(copy.deepcopy(opts[0].state_dict()))
    assert same(train(first, opts[0], range(2, 4)), train(second, opts[1], range(2, 4)))


def test_other_heads_and_groups_are_named() -> None:
    def make(*heads: str) -> Muon:
        return Muon.from_model(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))), heads=heads)

    for then, now, message in (
        (["3.weight"], ["0.weight"],
         r"tensor 0 in group 0 \(matrices\) was 0.weight, and is 1.weight.*heads="),
        ([], ["0.weight"], r"2 saved \(matrices, embeddings and vectors\), 3 here \(.*heads"),
    ):  # fmt: skip
        with nothing_taken(opt := make(*now), message):
            opt.load_state_dict(make(*then).state_dict())
        make(*then).load_state_dict(make(*then).state_dict())
