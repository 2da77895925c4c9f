"""Checks of an optimizer's options, tensors and gradients, and their error messages."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..geometry import Geometry
from .model.partition import USE_FSDP2
from .ranks.dtensors import are_flat_pieces, check_placed

_SWITCHES = {"nesterov", "capturable", "warn_unused", "maximize"}
# What options of a group are called in other optimizers, and options that are not a group's.
_ELSEWHERE = {
    "adam_betas", "adam_eps", "adjust_lr_fn", "algorithm", "amsgrad", "beta", "betas", "dtype", "eps", "kind",
    "learning_rate", "lr_mult", "lr_ratio", "max_nonfinite", "method", "momentum", "nesterov", "ns_steps",
    "process_group", "radius", "skip_outliers", "steps", "use_muon", "wd",
}  # fmt: skip


def check_name(who: str, name: str, known: Iterable[str]) -> None:
    """Raise ValueError if a group's unknown option is called nearly as one that has an effect, here or elsewhere.

    Other names are those of wrappers such as SAM and Lookahead, which keep there what is theirs.
    """
    if name in _ELSEWHERE or get_close_matches(name, known, n=1, cutoff=0.85):  # above, letters may not be transposed
        raise ValueError(f"a group of {who} has no {name}: its options are {', '.join(sorted(known))}")


def check_options(
    options: Mapping[str, Any], ends: Mapping[str, float], choices: Mapping[str, Sequence[str]], *, of_group: bool
) -> None:
    """Raise ValueError if an option is not in [0, end), or no choice or switch; only a group may have rate 0."""
    # Numbers, or pairs of them; rates may be in tensors
    for name, end in ends.items():
        value, several = options[name], name.endswith("betas")
        fits = not several or (isinstance(value, tuple | list) and len(value) == 2)
        needed = "in [0, 1)" if end == 1 else "finite and not negative"
        extra = ""
        if name == "lr":
            needed = "positive and finite"
            if not of_group and isinstance(value, int | float) and value == 0:
                fits, extra = False, "; 0 is for single groups"
        numbers = value if several else (value,)
        if not (fits and all(_is_number(one, tensors=name == "lr") and 0 <= one < end for one in numbers)):
            shown = value.tolist() if isinstance(value, Tensor) else value
            raise ValueError(f"{name} must be {'two numbers ' * several}{needed}, got {shown!r}{extra}")
    # Switches: "false" would be true
    for name in _SWITCHES & options.keys():
        if not isinstance(options[name], bool | np.bool_):
            raise ValueError(f"{name} must be True or False, got {options[name]!r}")
    # Choices, and what depends on another option
    for name, known in choices.items():
        if options[name] not in known:
            raise ValueError(f"unknown {name} {options[name]!r}: use {' or '.join(map(repr, known))}")
    if options["capturable"] and not isinstance(options["lr"], Tensor):
        raise ValueError(f"capturable needs lr as a tensor, which replays read; got the number {options['lr']}")


def check_parameters(who: str, group: Mapping[str, Any]) -> None:
    """Raise ValueError if a group contains a tensor that these optimizers cannot update."""
    for i, p in enumerate(group["params"]):
        name = name_of(group, i)
        what = _unsupported(p)
        if what:
            raise ValueError(
                f"{who} updates real, dense tensors, but {name} is {what}: leave it to another optimizer, for example "
                "torch.optim.Adam or SparseAdam, and join the two with autowarm.optim.Together"
            )
        lr = group["lr"]  # a graph's replays read it where the tensors are
        if group["capturable"] and p.device.type not in ("meta", lr.device.type):
            raise ValueError(
                f"capturable needs lr on the parameters' device, but it is on {lr.device} and a parameter of shape "
                f"{tuple(p.shape)} on {p.device}: make it with torch.tensor({float(lr)}, device={str(p.device)!r})"
            )


def name_of(group: Mapping[str, Any], i: int) -> str:
    """What messages call a tensor."""
    names = group.get("param_names", ())  # none of a tensor that was appended to the list
    return names[i] if i < len(names) else f"a parameter of shape {tuple(group['params'][i].shape)}"


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
    what = _unsupported(g) or (None if g.is_floating_point() else f"of whole numbers ({g.dtype})")
    if what:
        raise ValueError(
            f"{who} needs real, dense gradients of floating point, but that of a parameter of shape {tuple(g.shape)} "
            f"is {what}: convert it, build its layer with sparse=False, or leave it to torch.optim.SparseAdam"
        )
    check_placed(who, p, g)


def _unsupported(x: Tensor) -> str | None:
    # PyTorch's own layout for CPUs is dense, too
    if x.layout is not torch.strided and x.layout is not torch._mkldnn:  # type: ignore[attr-defined]
        return f"sparse ({x.layout})"
    return f"complex ({x.dtype})" if x.is_complex() else None


def plain_numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert NumPy's numbers to Python's, because a state with the former does not load with ``weights_only=True``."""

    def plain(x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(map(plain, x))
        return x.item() if isinstance(x, np.generic) else x

    return {name: x if name == "params" else plain(x) for name, x in options.items()}


def name_like_others(group: dict[str, Any], others: Sequence[Mapping[str, Any]]) -> None:
    """Give the tensors of a group names if the others' have some; PyTorch wants names for all tensors or none."""
    params = group["params"]
    if not others or "param_names" not in others[0] or isinstance(params, set):
        return
    tensors = [params] if isinstance(params, Tensor) else list(params)  # a generator can be read once
    n = sum(len(other["params"]) for other in others)  # so that no two names are alike
    group["params"] = [(f"added.{i}", p) if isinstance(p, Tensor) else p for i, p in enumerate(tensors, n)]


def few(items: Sequence[str], between: str = ", ") -> str:
    """The first three of these, and how many more there are."""
    return between.join(items[:3]) + (f"{between}and {len(items) - 3} more" if len(items) > 3 else "")


def called(i: int, groups: Sequence[Mapping[str, Any]]) -> str:
    """What messages call a group."""
    return f"group {i}" + (f" ({groups[i]['role']})" if "role" in groups[i] else "")


def _is_number(x: Any, *, tensors: bool) -> bool:
    if isinstance(x, Tensor):
        return tensors and x.numel() == 1 and not x.is_complex()
    return isinstance(x, Real) and not isinstance(x, bool)
