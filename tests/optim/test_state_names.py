"""A saved state goes to the tensors that it was saved for, or is refused with their names."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.optim import Together
from tests.cases import each
from tests.optim.makers import ALL, Make

MAKERS: dict[str, Make] = ALL | {
    "muon, blocks": lambda m: Muon.from_model(m, blocks={"b": 2}),
    "named tensors": lambda m: Lion(m.named_parameters()),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def a_model(order: str = "abc") -> nn.Module:
    """Layers of one shape, registered in this order, whose weights do not depend on it."""
    model = nn.ModuleDict({name: nn.Linear(6, 6) for name in order})
    for name, p in model.named_parameters():
        p.data = torch.randn(p.shape, generator=torch.Generator().manual_seed(sum(map(ord, name))))
    return model


def train(model: nn.Module, opt: torch.optim.Optimizer, steps: range) -> dict[str, torch.Tensor]:
    for t in steps:
        for name, p in model.named_parameters():
            seed = sum(map(ord, name.replace("_orig_mod.", "").replace("module.", ""))) + 1000 * t
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
        opt.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def saved(make: Make, steps: int = 3) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, torch.Tensor]]:
    """The weights and the state after some steps, and the weights two steps later."""
    model = a_model()
    opt = make(model)
    train(model, opt, range(steps))
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    return weights, state, train(model, opt, range(steps, steps + 2))


@every_optimizer
@each("order", ["acb", "bac", "cba"])
def test_layers_registered_in_another_order_are_named_and_nothing_is_loaded(make: Make, order: str) -> None:
    _, state, _ = saved(make)
    opt = make(a_model(order))
    groups = copy.deepcopy(opt.state_dict()["param_groups"])
    with pytest.raises(ValueError, match=r"same tensors in other places: .* was tensor .*, and is tensor .* here"):
        opt.load_state_dict(state)
    assert not opt.state
    assert opt.state_dict()["param_groups"] == groups


@every_optimizer
def test_the_same_names_in_the_same_order_load(make: Make) -> None:
    weights, state, after = saved(make)
    before = copy.deepcopy(state)
    model = a_model()
    model.load_state_dict(weights)
    opt = make(model)
    opt.load_state_dict(state)
    for name, p in train(model, opt, range(3, 5)).items():
        assert torch.equal(p, after[name])
    assert state["param_groups"] == before["param_groups"]  # the caller's, which is not changed


WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "module.": lambda m: nn.ModuleDict({"module": m}),
    "_orig_mod.": lambda m: Renamed(m, "_orig_mod"),
    "module._orig_mod.": lambda m: nn.ModuleDict({"module": Renamed(m, "_orig_mod")}),
    "_orig_mod.module.": lambda m: Renamed(nn.ModuleDict({"module": m}), "_orig_mod"),
}


class Renamed(nn.Module):
    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.add_module(name, inner)


@every_optimizer
@each("prefix", WRAPPED)
@each("wrapped_first", [False, True])
def test_wrappers_do_not_change_a_name(make: Make, prefix: str, wrapped_first: bool) -> None:
    models = a_model(), WRAPPED[prefix](a_model())
    first, second = reversed(models) if wrapped_first else models
    opts = make(first), make(second)
    train(first, opts[0], range(2))
    second.load_state_dict(
        {name: first.state_dict()[other] for name in second.state_dict() for other in first.state_dict()
         if other.removeprefix(prefix) == name.removeprefix(prefix)}
    )  # fmt: skip
    opts[1].load_state_dict(copy.deepcopy(opts[0].state_dict()))
    found = [train(model, opt, range(2, 4)) for model, opt in zip((first, second), opts, strict=True)]
    plain = [{name.removeprefix(prefix): p for name, p in each.items()} for each in found]
    assert plain[0].keys() == plain[1].keys()
    assert all(torch.equal(p, plain[1][name]) for name, p in plain[0].items())


@every_optimizer
@each("order", ["abd", "dbc", "xyz"])
def test_other_names_are_named_and_nothing_is_loaded(make: Make, order: str) -> None:
    _, state, _ = saved(make)
    model = a_model(order)
    try:
        opt = make(model)
    except ValueError:  # no name for the pattern of blocks
        return
    gone, new = next(name for name in "abc" if name not in order), next(name for name in order if name not in "abc")
    groups = copy.deepcopy(opt.state_dict()["param_groups"])
    with pytest.raises(ValueError, match=rf"other names: \d only saved, such as .*{gone}\..*; \d only here, .*{new}\."):
        opt.load_state_dict(state)
    assert not opt.state
    assert opt.state_dict()["param_groups"] == groups


@every_optimizer
@each("nameless", ["saved", "here"])
def test_without_names_the_order_decides(make: Make, nameless: str) -> None:
    weights, state, after = saved(make)
    model = a_model()
    model.load_state_dict(weights)
    opt = make(model)
    for group in state["param_groups"] if nameless == "saved" else opt.param_groups:
        del group["param_names"]
    opt.load_state_dict(state)
    for name, p in train(model, opt, range(3, 5)).items():
        assert torch.equal(p, after[name])


@every_optimizer
def test_a_distributed_checkpoint_is_taken_as_it_addresses_tensors(make: Make) -> None:
    """It replaces numbers by names, in the order of the optimizer that loads it, so that the order may change."""
    weights, state, after = saved(make)
    model = a_model("cba")
    model.load_state_dict(weights)
    opt = make(model)
    by_name = {
        name: state["state"][number]
        for group in state["param_groups"]
        for number, name in zip(group["params"], group["param_names"], strict=True)
    }
    groups = [
        {**next(g for g in state["param_groups"] if set(g["param_names"]) == set(own["param_names"])),
         "params": list(own["param_names"])}
        for own in opt.param_groups
    ]  # fmt: skip
    opt.load_state_dict({"state": by_name, "param_groups": groups})
    for name, p in train(model, opt, range(3, 5)).items():
        assert torch.equal(p, after[name])


def grouped(cls: Any, groups: Sequence[Sequence[str]]) -> torch.optim.Optimizer:
    """An optimizer of square matrices of these names, in these groups."""
    named = [[(name, nn.Parameter(torch.zeros(4, 4))) for name in names] for names in groups]
    if cls is Together:
        return Together(*(Lion(own, lr=0.1) for own in named))
    return cls([{"params": own} for own in named], lr=0.1)


# The names of the tensors that move between the groups that were saved and other groups.
MOVES = {
    ("ab", "c"): {("ac", "b"): "bc", ("a", "bc"): "b", ("cb", "a"): "ac", ("c", "ab"): "abc"},
    ("ab", "cd"): {("ac", "bd"): "bc", ("bd", "ca"): "ad", ("dc", "ba"): "abcd", ("abc", "d"): "c"},
    ("a", "b", "cd"): {("b", "a", "cd"): "ab", ("a", "c", "bd"): "bc", ("c", "b", "ad"): "ac"},
}


@pytest.mark.parametrize("cls", [Lion, SignSGD, NormSGD, LMO, Muon, Together])
@each(
    ("saved", "here", "moved"),
    [(saved, here, moved) for saved, others in MOVES.items() for here, moved in others.items()],
)
def test_tensors_in_other_groups_are_named_and_nothing_is_loaded(
    cls: type, saved: tuple[str, ...], here: tuple[str, ...], moved: str
) -> None:
    first, second = grouped(cls, saved), grouped(cls, here)
    for group in first.param_groups:
        for name, p in zip(group["param_names"], group["params"], strict=True):
            p.grad = torch.full((4, 4), float(ord(name)))
    first.step()
    groups = copy.deepcopy(second.state_dict()["param_groups"])
    with pytest.raises(ValueError, match="the same tensors in other places") as refused:
        second.load_state_dict(first.state_dict())
    said = [name for name in "abcd" if f"{name} was tensor" in str(refused.value)]
    assert {*said} <= {*moved}
    assert len(said) == min(3, len(moved))
    assert not second.state
    assert second.state_dict()["param_groups"] == groups


@each("cls", [Lion, SignSGD, NormSGD, LMO, Muon, Together])
@each("names", [("01", "2"), (["nan", "inf"], ["1e-3"])])
def test_names_that_read_as_numbers_are_names(cls: type, names: Sequence[Sequence[str]]) -> None:
    saved = copy.deepcopy(grouped(cls, names).state_dict())
    grouped(cls, names).load_state_dict(saved)


def test_other_heads_are_named() -> None:
    def make(heads: str) -> Muon:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
        opt = Muon.from_model(model, lr=0.02, heads=[heads])
        train(model, opt, range(2))
        return opt

    opt = make("0.weight")
    before = copy.deepcopy(opt.state_dict())
    said = r"0.weight was tensor 0 in group 0 \(matrices\), and is tensor 0 in group 1 \(output heads\).*heads="
    with pytest.raises(ValueError, match=said):
        opt.load_state_dict(make("3.weight").state_dict())
    after = opt.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(x, after["state"][i][k]) for i, own in before["state"].items() for k, x in own.items())
