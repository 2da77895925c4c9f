"""A saved state that lacks some of what an optimizer keeps is refused, and the message names it."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from autowarm import Lion, Muon, SignSGD
from autowarm.optim import Together
from tests.cases import each
from tests.optim.makers import OURS, Make

State = dict[str, Any]


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


MAKERS: dict[str, Make] = OURS | {
    "nameless": lambda m: Lion(m.parameters(), lr=0.02),
    "together": lambda m: Together(Muon.from_model(m[1:], lr=0.02), torch.optim.AdamW(m[0].parameters(), lr=0.02)),
}


def trained(maker: str, updates: int = 2) -> torch.optim.Optimizer:
    model = a_model()
    opt = MAKERS[maker](model)
    for _ in range(updates):
        opt.zero_grad()
        model(torch.arange(7)).square().mean().backward()
        opt.step()
    return opt


def without(state: State, *names: str, tensors: int | None = None) -> State:
    """The state without these entries, of the first tensors that have them."""
    left = tensors
    for own in state["state"].values():
        if left != 0 and any(own.pop(name, None) is not None for name in names):
            left = None if left is None else left - 1
    return {**state, "state": {i: own for i, own in state["state"].items() if own}}


CUTS: dict[str, tuple[Callable[[State], State], str]] = {
    "nothing": (lambda s: {**s, "state": {}}, "lacks the state of "),
    "no momenta": (lambda s: without(s, "momentum_buffer"), "lacks the state of "),
    "one momentum": (lambda s: without(s, "momentum_buffer", tensors=1), "lacks the state of 1 of "),
    "no step": (lambda s: without(s, "step"), "has no step of "),
    "one step": (lambda s: without(s, "step", tensors=1), "has no step of "),
    "no second moment": (lambda s: without(s, "exp_avg_sq"), "has no exp_avg_sq of "),
    "no first moment": (lambda s: without(s, "exp_avg", tensors=1), "has no exp_avg of "),
}


@pytest.mark.parametrize("cut", CUTS)
@each("maker", MAKERS)
def test_what_a_state_lacks_is_named_and_nothing_is_loaded(cut: str, maker: str) -> None:
    change, says = CUTS[cut]
    if "m" not in cut.split()[-1] and maker not in ("muon", "together"):
        return  # which alone keep what AdamW does
    whole = trained(maker).state_dict()
    state = change(copy.deepcopy(whole))
    if state["state"].keys() == whole["state"].keys() and all(
        state["state"][i].keys() == own.keys() for i, own in whole["state"].items()
    ):
        return
    for opt in (MAKERS[maker](a_model()), trained(maker)):
        before = copy.deepcopy(opt.state_dict())
        with pytest.raises(ValueError, match=says) as refused:
            opt.load_state_dict(state)
        assert "weight" in str(refused.value) or maker == "nameless" or "bias" in str(refused.value)
        assert str(opt.state_dict()) == str(before)
        opt.load_state_dict(copy.deepcopy(whole))


@pytest.mark.parametrize("cut", CUTS)
@each("other", [torch.optim.AdamW, torch.optim.Adafactor, torch.optim.RMSprop])
def test_what_anothers_state_lacks_in_together_is_named_and_nothing_is_loaded(cut: str, other: type) -> None:
    model, twin = a_model(), a_model()
    both, fresh = (
        Together(Lion(m[0].parameters()), Together(other(m[1:].parameters(), lr=0.1))) for m in (model, twin)
    )
    model(torch.arange(7)).square().mean().backward()
    both.step()
    whole = both.state_dict()
    names = ["square_avg"] if other is torch.optim.RMSprop else ["step"]
    if cut == "nothing":
        names += ["step", "exp_avg", "exp_avg_sq", "col_var"]
    state = without(copy.deepcopy(whole), *names, tensors=1 if "one" in cut else None)
    with pytest.raises(ValueError, match=r"lacks \d+ of the \d+ entries of its state, some of a parameter of shape"):
        fresh.load_state_dict(state)
    assert not fresh.state
    fresh.load_state_dict(copy.deepcopy(whole))
    assert fresh.state.keys() == set(twin.parameters())
    assert not any({"entries", "kept"} & group.keys() for group in fresh.param_groups)


@each("maker", MAKERS)
def test_a_state_from_before_the_first_update_is_whole(maker: str) -> None:
    MAKERS[maker](a_model()).load_state_dict(trained(maker, 0).state_dict())
    opt = trained(maker)
    opt.load_state_dict(trained(maker, 0).state_dict())
    assert not opt.state


@each("maker", MAKERS)
def test_tensors_that_were_not_updated_have_no_state_to_lack(maker: str) -> None:
    model = a_model()
    model[1].requires_grad_(False)
    opt = MAKERS[maker](model)
    model(torch.arange(7)).square().mean().backward()
    opt.step()
    other = MAKERS[maker](a_model())
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert len(other.state) == len(opt.state) == 5
    assert not any({"kept", "optimizer"} & group.keys() for group in other.param_groups)


def test_signsgd_without_momentum_keeps_nothing() -> None:
    model = a_model()
    opt = SignSGD.from_model(model, momentum=0.0)
    model(torch.arange(7)).square().mean().backward()
    opt.step()
    SignSGD.from_model(a_model(), momentum=0.0).load_state_dict(opt.state_dict())


@each("maker", ["muon", "lion"])
def test_a_checkpoint_read_into_an_optimizer_without_a_state(maker: str, tmp_path: Path) -> None:
    """`torch.distributed.checkpoint` reads what it is given places for, and an optimizer has none before it steps."""
    dcp.save({"optimizer": trained(maker).state_dict()}, checkpoint_id=tmp_path / maker)
    opt = MAKERS[maker](a_model())
    read = {"optimizer": opt.state_dict()}
    dcp.load(read, checkpoint_id=tmp_path / maker)
    with pytest.raises(ValueError, match=r"lacks the state of .*get_optimizer_state_dict"):
        opt.load_state_dict(read["optimizer"])
