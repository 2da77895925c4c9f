"""Saved, pickled and copied optimizers go on as the uninterrupted one; bad states are refused before any is taken."""

import copy
import io
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Spectral
from tests.cases import each
from tests.optim.makers import ALL, Make, together

MAKERS: dict[str, Make] = ALL | {
    "muon, blocks": lambda m, lr: Muon.from_model(m, lr=lr, adamw_lr=0.005, blocks={"0": 4}),
    "normsgd, from weights": lambda m, lr: NormSGD.from_model(m, lr=lr, momentum_init="weights"),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def train(model: nn.Module, opt: torch.optim.Optimizer, steps: range) -> list[torch.Tensor]:
    for t in steps:
        for group in opt.param_groups:  # a schedule that fills tensor rates in place
            value = 0.02 / (t + 1)
            group["lr"].fill_(value) if isinstance(group["lr"], torch.Tensor) else group.update(lr=value)
        opt.zero_grad()
        model(torch.randn(16, 6, generator=torch.Generator().manual_seed(t))).square().mean().backward()
        opt.step()
    return [p.detach().clone() for p in model.parameters()]


def saved_whole(pair: Any) -> Any:
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded_anew(make: Make, lr: Any, model: nn.Module, opt: Optimizer) -> Any:
    file = io.BytesIO()
    torch.save((model.state_dict(), opt.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other = make_model()
    other.load_state_dict(weights)
    other_opt = make(other, lr)
    other_opt.load_state_dict(state)
    return other, other_opt


COPIES: dict[str, Callable[..., Any]] = {
    "copy": lambda make, lr, *pair: copy.deepcopy(pair),
    "pickle": lambda make, lr, *pair: pickle.loads(pickle.dumps(pair)),
    "save": lambda make, lr, *pair: saved_whole(pair),
    "state": loaded_anew,
}


@every_optimizer
@pytest.mark.parametrize("how", COPIES)
@each("lr", [lambda: 0.02, lambda: torch.tensor(0.02)])
def test_a_copy_goes_on_to_the_same_bits(make: Make, how: str, lr: Callable) -> None:
    model = make_model()
    opt = make(model, lr())
    train(model, opt, range(3))
    other, other_opt = COPIES[how](make, lr(), model, opt)
    if how != "state":
        assert len({id(g["lr"]) for g in other_opt.param_groups}) == len({id(g["lr"]) for g in opt.param_groups})
    for p, q in zip(train(model, opt, range(3, 7)), train(other, other_opt, range(3, 7)), strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(other[0].weight, make_model()[0].weight)


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


def changed(state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    first, second, *others = state["param_groups"]
    return {**state, "param_groups": [first, {**second, **group}, *others]}


def with_momentum(state: dict[str, Any], momentum: torch.Tensor) -> dict[str, Any]:
    return {**state, "state": {**state["state"], 0: {"momentum_buffer": momentum}}}


BAD_STATES = {
    "the saved optimizer's group 1: lr must be positive and finite, got nan": lambda s: changed(s, {"lr": math.nan}),
    "group 1: lr must be positive and finite, got -0.1": lambda s: changed(s, {"lr": -0.1}),
    "group 1: momentum must be in": lambda s: changed(s, {"momentum": 7.0}),
    "group 1: weight_decay must be": lambda s: changed(s, {"weight_decay": math.nan}),
    "group 1: adamw_betas must be": lambda s: changed(s, {"adamw_betas": (0.9, 2.0)}),
    "group 1: unknown algorithm 'sgd'": lambda s: changed(s, {"algorithm": "sgd"}),
    "group 1: saved Rows(), here Sign": lambda s: changed(s, {"geometry": "Rows()"}),
    "momentum_buffer of tensor 0 has shape (3, 3)": lambda s: with_momentum(s, torch.ones(3, 3)),
    "momentum_buffer of tensor 0 is not finite": lambda s: with_momentum(s, torch.full((8, 6), math.nan)),
    "needs a dictionary with state and param_groups, got ['losses']": lambda s: {"losses": [1.0]},
    "needs a dictionary with state and param_groups, got list": lambda s: [s],
}


@pytest.mark.parametrize("message", BAD_STATES)
def test_a_bad_state_is_refused_and_nothing_of_it_taken(message: str) -> None:
    model = make_model()
    opt = Muon.from_model(model, lr=0.02)
    train(model, opt, range(2))
    before = copy.deepcopy(opt.state_dict())
    bad = BAD_STATES[message](copy.deepcopy(before))
    with pytest.raises(ValueError, match=re.escape(message)):
        opt.load_state_dict(bad)
    after = opt.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for i, state in before["state"].items():
        assert all(torch.equal(after["state"][i][name], value) for name, value in state.items())


def test_a_state_with_other_groups_names_them() -> None:
    state = Muon.from_model(make_model(), heads=[]).state_dict()
    with pytest.raises(ValueError, match=r"2 saved \(matrices, embeddings and vectors\), 3 here \(.*heads"):
        Muon.from_model(make_model()).load_state_dict(state)
    Muon.from_model(make_model(), heads=[]).load_state_dict(state)


def test_together_loads_all_or_nothing() -> None:
    model = make_model()
    opt = together(model)
    train(model, opt, range(2))
    before = copy.deepcopy(opt.state_dict())
    bad = copy.deepcopy(before)
    bad["param_groups"][1]["lr"] = math.nan  # the second optimizer's, which is torch's and checks nothing
    bad["param_groups"][0]["momentum"] = 0.5
    with pytest.raises(ValueError, match="group 1: lr must be finite and not negative, got nan"):
        opt.load_state_dict(bad)
    assert opt.state_dict()["param_groups"] == before["param_groups"]
    other = copy.deepcopy(before)
    other["param_groups"][1]["lr"] = 0.5
    other["param_groups"][0]["momentum"] = 7.0
    with pytest.raises(ValueError, match="momentum must be in"):
        opt.load_state_dict(other)
    assert opt.state_dict()["param_groups"] == before["param_groups"]


def test_a_state_from_before_there_was_an_option_takes_the_default() -> None:
    model = make_model()
    opt = Muon.from_model(model, lr=0.02)
    train(model, opt, range(2))
    state = opt.state_dict()
    for group in state["param_groups"]:
        del group["adamw_eps"]
    opt.load_state_dict(state)
    assert all(group["adamw_eps"] == 1e-8 for group in opt.param_groups)
    train(model, opt, range(2))


@pytest.mark.parametrize(
    ("saved", "here"), [(Lion, SignSGD), (SignSGD, Lion), (NormSGD, Muon), (Muon, LMO)], ids=lambda cls: cls.__name__
)
def test_the_state_of_another_of_our_optimizers_is_refused(saved: type[LMO], here: type[LMO]) -> None:
    def make(cls: type[LMO]) -> LMO:
        return cls([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1)

    with pytest.raises(ValueError, match=f"is {saved.__name__}, and this one is {here.__name__}"):
        make(here).load_state_dict(make(saved).state_dict())


def test_numpy_numbers_load_with_weights_only() -> None:
    p = torch.nn.Parameter(torch.ones(2, 2))
    groups = [{"params": [p], "lr": np.float32(0.25), "weight_decay": np.float64(0.5)}]
    file = io.BytesIO()
    torch.save(Lion(groups, lr=np.float64(0.1), betas=(np.float64(0.9), np.float32(0.5))).state_dict(), file)
    file.seek(0)
    [group] = torch.load(file, weights_only=True)["param_groups"]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.25, 0.5, (0.9, 0.5))


def test_a_group_without_names_joins_groups_with_names() -> None:
    opt = Lion.from_model(torch.nn.Linear(4, 4))
    opt.add_param_group({"params": torch.nn.Linear(3, 3).parameters()})
    assert opt.param_groups[-1]["param_names"] == ["added.2", "added.3"]


def test_step_counts_move_to_where_the_kernel_reads_them() -> None:
    """A state that was saved on another device, as trainers load it: PyTorch itself leaves step counts there."""
    bias = torch.nn.Parameter(torch.zeros(4))
    bias.grad = torch.ones(4)
    opt = Muon([{"params": [torch.nn.Parameter(torch.ones(4, 4))]}, {"params": [bias], "algorithm": "adamw"}])
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


def test_a_subclass_of_ones_own_is_still_a_lion() -> None:
    class Mine(Lion):
        pass

    p = torch.nn.Parameter(torch.ones(2, 2))
    mine = Mine([p], lr=0.1)
    mine.load_state_dict(Lion([p], lr=0.2).state_dict())
    assert mine.param_groups[0]["lr"] == 0.2
    assert "optimizer" not in mine.param_groups[0]


@pytest.mark.parametrize("radius", [1, np.float64(1.0), np.float32(1.0)])
def test_equal_radii_are_one_geometry(radius: Any) -> None:
    def make(radius: Any) -> LMO:
        return LMO([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1, geometry=Spectral(radius))

    make(1.0).load_state_dict(make(radius).state_dict())
    with pytest.raises(ValueError, match="radius must be a positive finite number, got None"):
        Spectral(None)


def test_a_groups_option_without_effect_is_taken_from_another_group_alone() -> None:
    first = Lion([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1)
    added = {"params": [torch.nn.Parameter(torch.ones(2))]}
    first.add_param_group(first.param_groups[0] | added)
    with pytest.raises(ValueError, match="a group of Lion has no momentum: give betas"):
        first.add_param_group(added | {"momentum": 0.5})


def test_hooks_of_a_state_see_and_change_what_they_do_with_pytorchs_optimizers() -> None:
    """A user's wrapper goes around the state as a whole, and is taken off before the state is checked."""
    saved, loaded = (Lion([nn.Parameter(torch.ones(2, 2))]) for _ in range(2))
    seen = []
    saved.register_state_dict_post_hook(lambda _, state: {"wrapped": state})
    loaded.register_load_state_dict_pre_hook(lambda _, state: state["wrapped"])
    loaded.register_load_state_dict_post_hook(lambda optimizer: seen.append(optimizer.param_groups[0]["geometry"]))
    for p in saved.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    saved.step()
    state = saved.state_dict()
    assert [group["geometry"] for group in state["wrapped"]["param_groups"]] == ["Sign(radius=1.0)"]
    loaded.load_state_dict(state)
    assert seen == [loaded.param_groups[0]["geometry"]]
    [own], [theirs] = loaded.state.values(), saved.state.values()
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
