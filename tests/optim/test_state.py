"""Saved, pickled and copied optimizers go on as the uninterrupted one; bad states are refused before any is taken."""

import copy
import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.optim import Optimizer

from autowarm import Lion, Muon
from autowarm.optim import Together
from tests.cases import each
from tests.optim.makers import ALL, EVERY, Make, nothing_taken, together

State = dict[str, Any]
MAKERS: dict[str, Make] = ALL | {
    "muon, blocks": lambda m, lr=0.1: Muon.from_model(m, lr=lr, adamw_lr=0.005, blocks={"1": 4}),
    "normsgd, nesterov": EVERY["normsgd, nesterov"].of_model,
    "nameless": lambda m, lr=0.1: Lion(m.parameters(), lr=lr),
    "together, nested": lambda m, lr=0.1: Together(Together(Muon.from_model(m[1:], lr)), Lion(m[0].parameters(), lr)),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def train(model: nn.Module, opt: Optimizer, updates: range = range(2)) -> list[torch.Tensor]:
    for t in updates:
        for group in opt.param_groups:  # a schedule that fills tensor rates in place
            value = 0.02 / (t + 1)
            group["lr"].fill_(value) if isinstance(group["lr"], torch.Tensor) else group.update(lr=value)
        opt.zero_grad()
        model(torch.randint(7, (16,), generator=torch.Generator().manual_seed(t))).square().mean().backward()
        opt.step()
    return [p.detach().clone() for p in model.parameters()]


def trained(make: Make) -> Optimizer:
    model = a_model()
    opt = make(model)
    train(model, opt)
    return opt


def saved_and_loaded(what: Any) -> Any:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def loaded_anew(make: Make, lr: Any, model: nn.Module, opt: Optimizer) -> Any:
    other = a_model()
    other_opt = make(other, lr)
    states = saved_and_loaded((model.state_dict(), opt.state_dict()))
    for one, state in zip((other, other_opt), states, strict=True):
        one.load_state_dict(state)
    return other, other_opt


COPIES: dict[str, Callable[..., Any]] = {
    "copy": lambda make, lr, *pair: copy.deepcopy(pair),
    "pickle": lambda make, lr, *pair: pickle.loads(pickle.dumps(pair)),
    "state": loaded_anew,
}


@every_optimizer
@each("how", COPIES)
@each("lr", [lambda: 0.02, lambda: torch.tensor(0.02)])
def test_a_copy_goes_on_to_the_same_bits(make: Make, how: str, lr: Callable) -> None:
    model = a_model()
    opt = make(model, lr())
    train(model, opt, range(3))
    other, other_opt = COPIES[how](make, lr(), model, opt)
    if "state" not in how:
        assert len({id(g["lr"]) for g in other_opt.param_groups}) == len({id(g["lr"]) for g in opt.param_groups})
    assert all(map(torch.equal, train(model, opt, range(3, 7)), train(other, other_opt, range(3, 7))))
    assert not torch.equal(other[1].weight, a_model()[1].weight)


def test_a_copy_keeps_what_it_counted() -> None:
    p = nn.Parameter(torch.ones(2, 2))
    opt = Lion([p], lr=0.1, max_nonfinite=2)
    p.grad = torch.full_like(p, math.nan)
    with pytest.warns(UserWarning, match="not finite"):
        opt.step()
    p, opt = pickle.loads(pickle.dumps((p, opt)))
    assert opt.skipped_updates == 1
    p.grad = torch.full_like(p, math.nan)
    with pytest.raises(RuntimeError, match="2 updates in a row"):
        opt.step()


def changed(state: State, **group: Any) -> State:
    first, second, *others = state["param_groups"]
    return {**state, "param_groups": [first, {**second, **group}, *others]}


def with_momentum(state: State, momentum: torch.Tensor) -> State:
    return {**state, "state": {**state["state"], 0: {"momentum_buffer": momentum}}}


BAD_STATES = {
    "the saved optimizer's group 1: lr must be positive and finite, got nan": lambda s: changed(s, lr=math.nan),
    "group 1: unknown algorithm 'sgd'": lambda s: changed(s, algorithm="sgd"),
    "group 1: saved Rows(), here Sign": lambda s: changed(s, geometry="Rows()"),
    "momentum_buffer of tensor 0 has shape (3, 3)": lambda s: with_momentum(s, torch.ones(3, 3)),
    "momentum_buffer of tensor 0 is not finite": lambda s: with_momentum(s, torch.full((8, 6), math.nan)),
    "needs a dictionary with state and param_groups, got ['losses']": lambda s: {"losses": [1.0]},
    "needs a dictionary with state and param_groups, got list": lambda s: [s],
    "the saved step of tensor": lambda s: {
        **s,
        "state": {
            i: entries | ({"step": torch.tensor(math.nan)} if "step" in entries else {})
            for i, entries in s["state"].items()
        },
    },
}


@each("message", BAD_STATES)
def test_a_bad_state_is_refused_and_nothing_of_it_taken(message: str) -> None:
    opt = trained(MAKERS["muon"])
    with nothing_taken(opt, re.escape(message)):
        opt.load_state_dict(BAD_STATES[message](copy.deepcopy(opt.state_dict())))


def lacking(state: State, *names: str, tensors: int | None = None) -> bool:
    """Whether a state had these entries, which the first tensors that have them, or all, lose."""
    left = tensors
    for entries in state["state"].values():
        if left != 0 and (present := entries.keys() & {*names}):
            for name in present:
                del entries[name]
            left = -1 if left is None else left - 1
    state["state"] = {i: entries for i, entries in state["state"].items() if entries}
    return left != tensors


# What is taken out of a state, of how many tensors, and what the refusal says.
CUTS = [
    (("momentum_buffer", "exp_avg", "exp_avg_sq", "step"), None, "lacks the state of "),
    (("momentum_buffer",), 1, "lacks the state of 1 of "),
    (("step",), 1, "has no step of "),
    (("exp_avg_sq",), None, "has no exp_avg_sq of "),
]


@every_optimizer
@each(("names", "tensors", "says"), CUTS)
def test_what_a_state_lacks_is_named_and_nothing_is_loaded(
    make: Make, names: tuple[str, ...], tensors: int | None, says: str
) -> None:
    whole = trained(make).state_dict()
    if make is together and "momentum_buffer" not in names:
        return  # its AdamW, which is PyTorch's, lacks an entry in its next step
    for opt in (make(a_model()), trained(make)):
        state = copy.deepcopy(whole)
        if not lacking(state, *names, tensors=tensors):
            return
        with nothing_taken(opt, says) as refused:
            opt.load_state_dict(state)
        assert re.search(r"weight|bias|a parameter of shape", str(refused.value))
        opt.load_state_dict(copy.deepcopy(whole))


@each("other", [torch.optim.AdamW, torch.optim.Adafactor, torch.optim.RMSprop])
@each("tensors", [None, 1])
def test_what_anothers_state_lacks_in_together_is_named(other: type, tensors: int | None) -> None:
    model, twin = a_model(), a_model()
    make = lambda m: Together(Lion(m[0].parameters()), Together(other(m[1:].parameters(), lr=0.1)))  # noqa: E731
    both, fresh = make(model), make(twin)
    train(model, both)
    whole = both.state_dict()
    state = copy.deepcopy(whole)
    entries = [name for kept in state["state"].values() for name in kept if name != "momentum_buffer"]
    assert lacking(state, *entries, tensors=tensors)
    with nothing_taken(fresh, r"lacks the state of \d of 6 tensors, such as a parameter of shape"):
        fresh.load_state_dict(state)
    assert not fresh.state
    fresh.load_state_dict(copy.deepcopy(whole))
    assert fresh.state.keys() == set(twin.parameters())
    assert not any("kept" in group for group in fresh.param_groups)


@every_optimizer
def test_tensors_that_were_not_updated_have_no_state_to_lack(make: Make) -> None:
    for opt in (make(a_model()), trained(make)):  # from before the first update
        opt.load_state_dict(make(a_model()).state_dict())
        assert not opt.state
    model = a_model()
    model[3].requires_grad_(False)
    opt, other = make(model), make(a_model())
    train(model, opt, range(1))
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert len(other.state) == len(opt.state) == 5
    assert not any("kept" in group for group in other.param_groups)


@each("maker", ["muon", "lion"])
def test_a_checkpoint_read_into_an_optimizer_without_a_state(maker: str, tmp_path: Path) -> None:
    """`torch.distributed.checkpoint` reads what it is given places for, and an optimizer has none before it steps."""
    dcp.save({"optimizer": trained(MAKERS[maker]).state_dict()}, checkpoint_id=tmp_path / maker)
    opt = MAKERS[maker](a_model())
    read = {"optimizer": opt.state_dict()}
    dcp.load(read, checkpoint_id=tmp_path / maker)
    with pytest.raises(ValueError, match=r"lacks the state of .*get_optimizer_state_dict"):
        opt.load_state_dict(read["optimizer"])


@each(
    ("maker", "first", "second", "message"),
    [  # the second's, which is PyTorch's, checks nothing
        *(("together", {"momentum": 0.5}, {"lr": lr}, "group 1: lr must be finite and not")
          for lr in (math.nan, math.inf, -0.1)),
        ("together", {"momentum": 7.0}, {"lr": 0.5}, "momentum must be in"),
        ("together, nested", {}, {"geometry": "Rows()"}, "other geometries"),
    ],
)  # fmt: skip
def test_together_loads_all_or_nothing(maker: str, first: State, second: State, message: str) -> None:
    opt = trained(MAKERS[maker])
    bad = changed(copy.deepcopy(opt.state_dict()), **second)
    bad["param_groups"][0] |= first
    with nothing_taken(opt, message):
        opt.load_state_dict(bad)


def test_numpy_numbers_load_with_weights_only() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(2))], "lr": np.float32(0.25), "weight_decay": np.float64(0.5)}]
    opt = Lion(groups, lr=np.float64(0.1), betas=(np.float64(0.9), np.float32(0.5)))
    [group] = saved_and_loaded(opt.state_dict())["param_groups"]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.25, 0.5, (0.9, 0.5))


def test_step_counts_move_to_where_the_kernel_reads_them() -> None:
    """A state that was saved on another device, as trainers load it: PyTorch itself leaves step counts there."""
    bias = nn.Parameter(torch.zeros(4))
    bias.grad = torch.ones(4)
    opt = Muon([{"params": [nn.Parameter(torch.ones(4, 4))]}, {"params": [bias], "algorithm": "adamw"}])
    opt.step()

    class Elsewhere(torch.Tensor):
        device = torch.device("cuda")

        def to(self, device: torch.device) -> torch.Tensor:
            return self.as_subclass(torch.Tensor)

    state = opt.state_dict()
    state["state"][1]["step"] = state["state"][1]["step"].as_subclass(Elsewhere)
    opt.load_state_dict(state)
    opt.step()
    assert opt.state[bias]["step"].device.type == "cpu"
    assert opt.state[bias]["step"] == 2


@every_optimizer
def test_hooks_of_a_state_see_and_change_what_they_do_with_pytorchs_optimizers(make: Make) -> None:
    """A user's wrapper goes around the state as a whole, and is taken off before the state is checked."""
    saved, loaded, calls = trained(make), make(a_model()), []
    saved.register_state_dict_pre_hook(lambda _: calls.append("before saving"))
    saved.register_state_dict_post_hook(lambda _, state: {"wrapped": state})
    loaded.register_load_state_dict_pre_hook(lambda _, state: state["wrapped"])
    loaded.register_load_state_dict_post_hook(lambda opt: calls.append([g.get("geometry") for g in opt.param_groups]))
    state = saved.state_dict()
    assert all(isinstance(group.get("geometry", ""), str) for group in state["wrapped"]["param_groups"])
    loaded.load_state_dict(state)
    assert calls == ["before saving", [group.get("geometry") for group in loaded.param_groups]]
    torch.testing.assert_close(loaded.state_dict()["state"], state["wrapped"]["state"], rtol=0, atol=0)
