"""Checks of an optimizer's options, tensors, gradients and saved states, and their error messages."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ..geometry import Geometry
from .heads import WRAPPERS
from .partition import USE_FSDP2
from .step.dtensors import are_flat_pieces, check_placed, local

_SWITCHES = {"nesterov", "capturable", "adamw_eps_hat", "warn_unused", "maximize"}
# What a group may have besides its options: its tensors, names, and what schedulers read or write there.
LABELS = {
    "params", "param_names", "role", "name", "group_name", "depthwise", "optimizer", "warmup", "lr_scale", "initial_lr",
    "max_lr", "min_lr", "base_lr", "swa_lr", "max_momentum", "base_momentum", "foreach", "fused",
}  # fmt: skip
# What options are called elsewhere, or what to do instead.
_ELSEWHERE = {
    "wd": "weight_decay", "kind": "algorithm", "beta": "momentum", "ns_steps": "steps", "adjust_lr_fn": "radius",
    "adam_betas": "adamw_betas", "adam_eps": "adamw_eps", "lr_mult": "give the group its own lr",
    "lr_ratio": "give the group its own lr", "use_muon": "it is for Muon", "algorithm": "it is for Muon",
    "amsgrad": "leave it out, or use torch.optim.AdamW in autowarm.optim.Together",
}  # fmt: skip


def instead_of(name: str, known: Iterable[str], others: Mapping[str, str]) -> str:
    """What to do about an unknown option, given those that are known, and what others say of theirs."""
    same = _ELSEWHERE.get(name, name)
    if same in known:
        return f"use {same}"
    if " " in (what := others.get(same) or _ELSEWHERE.get(same, same)):
        return what
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"it takes {', '.join(sorted(known))}"


def check_options(
    options: Mapping[str, Any], ends: Mapping[str, float], choices: Mapping[str, Sequence[str]], *, of_group: bool
) -> None:
    """Raise ValueError if an option is not in [0, end), or no choice or switch; only a group may have rate 0."""
    for name, value in options.items():
        if name != "param_names":  # as of a ParameterList, whose tensors are called "0" and "1"
            _check_no_text(name, value)
    for name, end in ends.items():
        value, several = options[name], name.endswith("betas")
        fits = not several or (isinstance(value, tuple | list) and len(value) == 2)
        needed = "in [0, 1)" if end == 1 else "finite and not negative"
        extra = ""
        if name == "lr":
            needed = "positive and finite"
            if not of_group and _is_number(value) and value == 0:
                fits, extra = False, "; 0 is for single groups"
        if not (fits and all(_is_number(one) and 0 <= one < end for one in (value if several else (value,)))):
            shown = value.tolist() if isinstance(value, Tensor) else value
            raise ValueError(f"{name} must be {'two numbers ' * several}{needed}, got {shown!r}{extra}")
    for name in _SWITCHES & options.keys():
        if not isinstance(options[name], bool | np.bool_):
            raise ValueError(f"{name} must be True or False, got {options[name]!r}")
    for name, known in choices.items():
        if options[name] not in known:
            raise ValueError(f"unknown {name} {options[name]!r}: use {' or '.join(map(repr, known))}")
    if options["capturable"] and not isinstance(options["lr"], Tensor):
        raise ValueError(f"capturable needs lr as a tensor, which replays read; got the number {options['lr']}")


def _check_no_text(name: str, value: Any) -> None:
    for one in value if isinstance(value, tuple | list) else (value,):
        if not isinstance(one, str):
            continue
        try:
            float(one)
        except ValueError:
            continue
        raise ValueError(
            f"{name}={value!r} is text: YAML reads 1e-3 as a string, and 1.0e-3 as a number. Write it so, or pass "
            f"float({one!r})"
        )


def check_parameters(who: str, group: Mapping[str, Any]) -> None:
    """Raise ValueError if a group contains a tensor that these optimizers cannot update."""
    for i, p in enumerate(group["params"]):
        name = name_of(group, i)
        if p.is_inference():
            raise ValueError(f"{name} was made in torch.inference_mode, and cannot be trained: make it outside")
        what = _unsupported(p)
        if what:
            raise ValueError(
                f"{who} updates real, dense tensors, but {name} is {what}: leave it to another optimizer, for example "
                "torch.optim.Adam or SparseAdam, and join the two with autowarm.optim.Together"
            )
        lr = group["lr"]
        if group["capturable"] and p.device.type not in ("meta", lr.device.type):
            raise ValueError(
                f"capturable needs lr on the parameters' device, but it is on {lr.device} and a parameter of shape "
                f"{tuple(p.shape)} on {p.device}: make it with torch.tensor({float(lr)}, device={str(p.device)!r})"
            )


def name_of(group: Mapping[str, Any], i: int) -> str:
    """What messages call a tensor."""
    shape = tuple(group["params"][i].shape)
    return group["param_names"][i] if "param_names" in group else f"a parameter of shape {shape}"


def check_whole(who: str, geometry: Geometry, params: Iterable[Tensor]) -> None:
    """Raise ValueError if FSDP1 has cut the tensors, and an entry's step in this geometry needs more than its own."""
    if geometry.locality != "entry" and are_flat_pieces(params):
        raise ValueError(
            f"{who} needs whole tensors for its steps in {type(geometry).__name__} geometry, but FSDP1 "
            f"(FullyShardedDataParallel) has cut them into flat pieces: {USE_FSDP2}"
        )


def check_capture(who: str, group: Mapping[str, Any], *, ready: bool) -> None:
    """Raise RuntimeError if a CUDA graph is capturing a step that could not be replayed, or lacks some of its state."""
    if not group["capturable"]:
        raise RuntimeError(
            f"{who}: the step is being captured in a graph, which would freeze the rate and hide the updates from a "
            "scheduler: build the optimizer with capturable=True and lr as a tensor on the device of the parameters"
        )
    if not ready:
        raise RuntimeError(
            f"{who}: the step is being captured in a graph before the first step, so every replay would create the "
            "momenta again: make one step first"
        )


def check_gradient(who: str, p: Tensor, g: Tensor) -> None:
    """Raise ValueError if a gradient is sparse, its numbers are complex or whole, or it is not on its tensor's mesh."""
    if what := _unsupported(g):
        raise ValueError(
            f"{who} needs real, dense gradients, but that of a parameter of shape {tuple(g.shape)} is {what}: "
            "build its layer with sparse=False, or leave it to torch.optim.SparseAdam"
        )
    if not g.is_floating_point():
        raise ValueError(
            f"{who} needs gradients of floating point, but that of a parameter of shape {tuple(g.shape)} is of "
            f"whole numbers ({g.dtype}): convert it to the parameter's dtype"
        )
    check_placed(who, p, g)


def _unsupported(x: Tensor) -> str | None:
    if x.layout is not torch.strided and x.layout is not torch._mkldnn:  # type: ignore[attr-defined]
        return f"sparse ({x.layout})"
    return f"complex ({x.dtype})" if x.is_complex() else None


def through(hooks: Mapping[Any, Callable[..., Any]], optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """What a user's hooks make of a state, called as PyTorch calls them."""
    for one in hooks.values():
        changed = one(optimizer, state)
        state = state if changed is None else changed
    return state


def plain_numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert NumPy's numbers to Python's, because a state with the former does not load with ``weights_only=True``.

    A weight decay in a tensor becomes a number, too: kernels take no other.
    """

    def plain(x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(map(plain, x))
        return x.item() if isinstance(x, np.generic) else x

    found = {name: x if name == "params" else plain(x) for name, x in options.items()}
    decay = found.get("weight_decay")
    return found | ({"weight_decay": decay.item()} if isinstance(decay, Tensor) and decay.numel() == 1 else {})


def name_like_others(group: dict[str, Any], others: Sequence[Mapping[str, Any]]) -> None:
    """Give the tensors of a group names if the others' have some; PyTorch wants names for all tensors or none."""
    params = group["params"]
    if not others or "param_names" not in others[0] or isinstance(params, set):
        return
    tensors = [params] if isinstance(params, Tensor) else list(params)
    n = sum(len(other["params"]) for other in others)
    group["params"] = [(f"added.{i}", p) if isinstance(p, Tensor) else p for i, p in enumerate(tensors, n)]


_INSERTED = "|".join(WRAPPERS)
_WRAPPERS = re.compile(rf"^((module|{_INSERTED})\.)+|(?<=\.)({_INSERTED})\.")


def checked_state(who: str, groups: Sequence[Mapping[str, Any]], state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a shallow copy of a saved state; ValueError if it does not belong to the tensors of these groups."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        found = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise ValueError(
            f"this is not an optimizer's state: {who} needs a dictionary with state and param_groups, got {found}"
        )
    _check_names(groups, state_dict["param_groups"])
    numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    numbered = dict(zip(numbers, chain.from_iterable(group["params"] for group in groups), strict=False))
    whole = ("momentum_buffer", "exp_avg", "exp_avg_sq")  # other optimizers' states may have other shapes
    for i, state in state_dict["state"].items():
        p = numbered.get(i)
        for name, value in state.items():
            if not isinstance(value, Tensor) or name == "step" or value.is_meta:
                continue
            if p is not None and name in whole and value.shape != p.shape:
                raise ValueError(
                    f"the saved {name} of tensor {i} has shape {tuple(value.shape)}, but the tensor {tuple(p.shape)}: "
                    "the state is another model's"
                )
            if not local(value).isfinite().all():
                raise ValueError(
                    f"the saved {name} of tensor {i} is not finite: training cannot resume from it; use an older state"
                )
    saved = state_dict["param_groups"]
    if len(saved) == len(groups):  # names here may have other wrappers, and a distributed checkpoint's may be older
        here = ({"param_names": group["param_names"]} if "param_names" in group else {} for group in groups)
        saved = [{**was, **(own if "param_names" in was else {})} for was, own in zip(saved, here, strict=True)]
    return {**state_dict, "param_groups": saved}


def check_complete(
    group: Mapping[str, Any], saved: Mapping[str, Any], state: Mapping[Any, Mapping[str, Any]], entries: Sequence[str]
) -> None:
    """Raise ValueError if a saved group lacks some of these entries of its tensors, or all of more than it had."""
    lacking = []
    for i, number in enumerate(saved["params"]):
        missing = [name for name in entries if name not in state.get(number, ())]
        if missing and len(missing) < len(entries):
            lacks = f"{missing[0]} of {name_of(group, i)}"
            raise ValueError(f"the saved optimizer has no {lacks}: use a state that is whole")
        lacking += [name_of(group, i)] * bool(missing)
    wanted = min(saved.get("kept", 0), len(saved["params"]))  # FSDP1 may have cut the tensors into fewer pieces
    if (lost := wanted - len(saved["params"]) + len(lacking)) > 0:
        raise ValueError(
            f"the saved optimizer lacks the state of {lost} of {wanted} tensors, such as {few(lacking)}: use "
            "a state that is whole. If torch.distributed.checkpoint read it, give it the places that "
            "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(model, optimizer) makes"
        )


def check_as_many(group: Mapping[str, Any], saved: Mapping[str, Any], state: Mapping[Any, Mapping[str, Any]]) -> None:
    """Raise ValueError if a saved group of another's optimizer has fewer entries than it had."""
    each = [len(state.get(number, ())) for number in saved["params"]]
    if (lost := saved.get("entries", 0) - sum(each)) > 0:
        fewest = name_of(group, each.index(min(each)))
        raise ValueError(
            f"the saved optimizer lacks {lost} of the {saved['entries']} entries of its state, some of {fewest}: use a "
            "state that is whole"
        )


def _check_names(groups: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError if both have names for their tensors, and these differ or are elsewhere."""
    here, then = _places_of(groups), _places_of(saved)
    if here is None or then is None or here == then:
        return
    if here.keys() == then.keys():
        moved = [name for name in here if here[name][0] != then[name][0]]
        moved = moved or [name for name in here if here[name] != then[name]]
        if len(groups) != len(saved):
            return  # the caller says which groups it has
        said = [f"{name} was {_place(then[name], saved)}, and is {_place(here[name], groups)} here" for name in moved]
        raise ValueError(
            f"the saved optimizer has the same tensors in other places: {few(said, '; ')}. Build this one with the "
            "groups that it had, from layers in the same order, and with the same heads= of Muon.from_model"
        )
    both = (("saved", [*then.keys() - here.keys()]), ("here", [*here.keys() - then.keys()]))
    said = [f"{len(names)} only {where}, such as {few(sorted(names))}" for where, names in both if names]
    raise ValueError(f"the saved optimizer has tensors of other names: {'; '.join(said)}")


def few(said: Sequence[str], between: str = ", ") -> str:
    """The first three of these, and how many more there are."""
    return between.join(said[:3]) + (f"{between}and {len(said) - 3} more" if len(said) > 3 else "")


def called(i: int, groups: Sequence[Mapping[str, Any]]) -> str:
    """What messages call a group."""
    return f"group {i}" + (f" ({groups[i]['role']})" if "role" in groups[i] else "")


def _place(place: tuple[int, int], groups: Sequence[Mapping[str, Any]]) -> str:
    return f"tensor {place[1]} in {called(place[0], groups)}"


def _places_of(groups: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]] | None:
    """The group and place of each tensor, by name without wrappers; None if some have none, or two have the same."""
    found: dict[str, tuple[int, int]] = {}
    for i, group in enumerate(groups):
        numbers = group["params"]
        # Distributed checkpoints number tensors by their names, in the order of the optimizer that loads them.
        named = numbers if all(isinstance(one, str) for one in numbers) else group.get("param_names") or ()
        if len(named) != len(numbers):
            return None
        found |= {_WRAPPERS.sub("", name): (i, place) for place, name in enumerate(named)}
    return found if len(found) == sum(len(group["params"]) for group in groups) else None


def _is_number(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.numel() == 1 and not x.is_complex()
    return not isinstance(x, (str, bytes, bool)) and hasattr(x, "__float__")
