"""Options of optimizers and groups: what is plain is honoured, the rest refused by name, and nothing is ignored."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.optim import Together
from tests.cases import each
from tests.optim.makers import CLASSES, OURS, Make, draw_gradients, halves, unmoved


def matrix() -> nn.Parameter:
    p = nn.Parameter(torch.eye(3))
    p.grad = torch.arange(9.0).reshape(3, 3) - 2
    return p


# Keys of a group, as people write them for other optimizers, and the classes in which they have an effect.
KEYS: dict[str, tuple[type[LMO], ...]] = {
    "wd": (), "lr_mult": (), "max_nonfinite": (), "ns_steps": (), "weigth_decay": (), "maximise": (), "amsgrad": (),
    "betas": (Lion,), "use_muon": (Muon,), "momentum": (Muon, NormSGD, SignSGD, LMO),
}  # fmt: skip


@each(("key", "classes"), KEYS.items())
@each("cls", CLASSES)
def test_a_groups_key_without_effect_is_refused_by_name(
    key: str, classes: tuple[type[LMO], ...], cls: type[LMO]
) -> None:
    if cls in classes:
        return
    opt = cls([matrix()], lr=0.1)
    with pytest.raises(ValueError, match=f"a group of {cls.__name__} has no {key}: its options are .*weight_decay"):
        opt.add_param_group({"params": [matrix()], key: 2})
    assert len(opt.param_groups) == 1


@each("cls", CLASSES)
def test_what_others_write_into_a_group_is_no_option(cls: type[LMO]) -> None:
    written = {"name": "0", "lr_scale": 0.5, "initial_lr": 0.1, "warmup": False, "role": "all", "max_lr": 1.0}
    opt = cls([{"params": [matrix()], **written}], lr=0.1)
    assert opt.param_groups[0].items() >= written.items()
    opt.add_param_group(opt.param_groups[0] | {"params": [matrix()]})  # nor what has no effect, if a group has it
    foreign = {"lookahead_step": 0, "count": torch.ones(1), "counts": [np.zeros(1)]}  # of wrappers
    foreign |= {"adaptive": False, "rho": 0.05, "perturb_eps": 1e-12, "weight_decouple": True}
    opt = cls([{"params": [matrix()], **written, **foreign}], lr=0.1)
    opt.step()
    for group in (opt.param_groups[0], opt.state_dict()["param_groups"][0]):
        assert all(group[name] is one for name, one in foreign.items() if name != "counts")
        assert type(group["counts"][0]) is np.ndarray


@each("use", [True, False])
def test_use_muon_says_which_rule_updates_a_group(use: bool) -> None:
    """As in Muon's README, DeepSpeed and others."""
    embedding, body, other = matrix(), matrix(), matrix()
    opt = Muon([{"params": [embedding], "use_muon": use}, {"params": [body], "algorithm": "muon"}], lr=0.1)
    opt.step()
    Muon([{"params": [other], "algorithm": "muon" if use else "adamw"}], lr=0.1).step()
    assert torch.equal(embedding, other)
    assert torch.equal(embedding, body) == use
    assert "use_muon" not in opt.param_groups[0]


RATE = "lr must be positive and finite, got "
COUNT = "max_nonfinite must be a whole number of at least 1"
LIMIT = "skip_outliers must be a positive number"


@each(
    ("cls", "options", "message"),
    [
        *((cls, {"lr": 0.0}, f"{RATE}0.0; 0 is for single groups") for cls in CLASSES),
        (LMO, {"lr": torch.ones(2)}, rf"{RATE}\[1.0, 1.0\]"),
        *((cls, {"lr": None}, RATE) for cls in CLASSES),
        *(
            (LMO, {"momentum": wrong}, r"momentum must be in \[0, 1\), got ")
            for wrong in (1.0, torch.tensor(0.5), "0.5")
        ),
        (LMO, {"geometry": "spektral"}, "unknown geometry 'spektral'"),
        (Muon, {"params": [{"params": [matrix()], "algorithm": "adam"}]}, "unknown algorithm 'adam'"),
        (Muon, {"params": [{"params": [matrix()], "lr": None}]}, RATE),
        (Muon, {"params": [{"params": [matrix()], "use_muon": "no"}]}, "use_muon must be True"),
        (Muon, {"params": [{"params": [matrix()], "use_muon": False, "algorithm": "muon"}]}, "leave it out of a group"),
        (Muon, {"dtype": torch.int8}, "dtype must be one of torch's floating-point"),
        (Muon, {"steps": 5.0}, "steps must be a whole number"),
        (Muon, {"params": [torch.zeros(20)]}, r"got tensors of shape \[\(20,\)\].*Muon.from_model"),
        (Muon, {"capturable": True}, "capturable needs lr as a tensor"),
        *((Lion, {"max_nonfinite": wrong}, COUNT) for wrong in (0, 2.5, True)),
        *((Lion, {"skip_outliers": wrong}, LIMIT) for wrong in (0, float("inf"), "6")),
    ],
)
def test_bad_options(cls: type[LMO], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**{"params": [nn.Parameter(torch.zeros(2, 2))]} | options)
    if "params" not in options:
        with pytest.raises(ValueError, match=message):
            cls.from_model(nn.Linear(3, 3), **options)


SWITCHES = dict.fromkeys(("capturable", "maximize", "warn_unused"), CLASSES)
SWITCHES |= {"nesterov": (Muon, NormSGD, SignSGD, LMO)}


@each(("name", "classes"), SWITCHES.items())
def test_a_switch_is_on_or_off(name: str, classes: tuple[type[LMO], ...]) -> None:
    for make in classes:
        for bad in ("no", "false", 1, None):
            for given in ({name: bad}, {}):
                group = {"params": [nn.Parameter(torch.ones(2, 2))]} | ({} if given else {name: bad})
                with pytest.raises(ValueError, match=f"{name} must be True or False, got {bad!r}"):
                    make([group], lr=torch.tensor(0.1), **given)
        assert make([nn.Parameter(torch.ones(2, 2))], lr=torch.tensor(0.1), **{name: np.True_}).defaults[name] is True


def test_a_group_without_names_joins_groups_with_names() -> None:
    opt = Lion.from_model(nn.Linear(4, 4))
    opt.add_param_group({"params": nn.Linear(3, 3).parameters()})
    assert opt.param_groups[-1]["param_names"] == ["added.2", "added.3"]


# What cannot be stepped is refused before anything moves, wherever among the groups and the optimizers it is.


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
    model = a_model()
    opt = make(model)
    opt.step()
    for place, called in ours(opt).items():
        group = opt.param_groups[place]
        was, group["lr"] = group["lr"], value
        with unmoved(model.parameters()), pytest.raises(ValueError, match=f"{called}.*lr .*{re.escape(words)}"):
            opt.step()
        group["lr"] = was
        opt.step()


@each("cls", CLASSES)
@each(("name", "value", "words"), WRONG)
def test_what_is_no_value_of_an_option_is_refused_in_a_new_group(cls: Any, name: str, value: Any, words: str) -> None:
    opt = cls([matrix()], lr=0.1)
    if name not in opt.param_groups[0]:
        return
    with pytest.raises(ValueError, match=name) as refused:
        opt.add_param_group({"params": [matrix()], name: value})
    assert words in str(refused.value)
    state = opt.state_dict()
    state["param_groups"][0][name] = value
    with pytest.raises(ValueError, match=f"the saved optimizer's group 0: {name}"):
        opt.load_state_dict(state)


@each("last", [False, True])
@each("nested", [False, True])
def test_what_another_optimizer_refuses_is_refused_before_ours_moves(last: bool, nested: bool) -> None:
    model = a_model()
    opt = pair(Adam, last=last, nested=nested)(model)
    matrices, vectors = halves(model)
    vectors[0][1].grad = torch.ones(4).to_sparse()
    with unmoved(p for _, p in matrices), pytest.raises(RuntimeError, match="sparse"):
        opt.step()
