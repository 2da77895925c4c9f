"""What a checkpoint holds of a model and an optimizer, and what it cannot hold."""

import io
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from autowarm.undisturbed import overlaps_itself

from ..config import LabError
from ..tasks.fingerprint import Walk, is_users

_PYTORCHS = {*vars(nn.Module()), *vars(SGD([torch.zeros(1)])), "step", "_opt_called"}
_EXTRA = "_extra_state"  # the end of PyTorch's keys for what a module's `get_extra_state` returns, of any type


def collect(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an update changes: weights and the optimizer's tensors, and everything else, which all ranks have alike."""
    state, whole = optimizer.state_dict(), model.state_dict()
    tensors: dict[str, Any] = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    plain: dict[str, Any] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else plain)[f"optimizer.{index}.{name}"] = value
    extra = {name: value for name, value in whole.items() if name.endswith(_EXTRA)}
    _require_loadable(extra)
    return tensors, {
        "groups": state["param_groups"],
        "plain": plain,
        "devices": {key: value.device.type for key, value in tensors.items()},
        "extra": extra,
        "buffers": {name: (value, name in whole) for name, value in model.named_buffers()},
        "trained": [name for name, p in model.named_parameters() if p.requires_grad],
        "training": [name for name, module in model.named_modules() if module.training],
        "attributes": attributes(model, optimizer),
    }


def put_back(model: nn.Module, rest: Mapping[str, Any]) -> None:
    """Give a model all but its weights, from the second part of what `collect` returned."""
    for name, p in model.named_parameters():
        p.requires_grad_(name in rest["trained"])
    for name, module in model.named_modules():
        module.training = name in rest["training"]
    _put_buffers(model, rest["buffers"])
    model.load_state_dict(rest["extra"], strict=False)


def _put_buffers(model: nn.Module, saved: Mapping[str, tuple[Tensor, bool]]) -> None:
    """Put buffers in place, those that no `state_dict` holds, too, and leave the model no others."""
    modules, device = dict(model.named_modules()), next(p.device for p in model.parameters())
    for name in {**dict(model.named_buffers()), **saved}:
        path, _, own = name.rpartition(".")
        value, kept = saved.get(name, (None, True))
        if path not in modules:
            raise lacking(name, getattr(value, "shape", ()))
        held = modules[path]._buffers
        now = held.get(own)
        if now is None or value is None or now.shape != value.shape or now.dtype != value.dtype or overlaps_itself(now):
            held[own] = None if value is None else value.to(device)
        else:  # in place, as others may share its memory
            now.copy_(value)
        if not kept:
            modules[path]._non_persistent_buffers_set.add(own)


def lacking(name: str, shape: Any) -> LabError:
    return LabError(f"the checkpoint holds {name} of shape {tuple(shape)}, which the model does not have when it is "
                    "new: make it in the model's constructor")  # fmt: skip


def _require_loadable(extra: Mapping[str, Any]) -> None:
    """Raise LabError for a module's extra state that `load`, which runs no code of a checkpoint, would refuse."""
    for name, value in extra.items():
        buffer = io.BytesIO()
        torch.save(value, buffer)
        buffer.seek(0)
        if refused := torch.serialization.get_unsafe_globals_in_checkpoint(buffer):
            raise LabError(
                f"{name}: a checkpoint cannot hold what this module's get_extra_state returns ({', '.join(refused)}). "
                "Let it return tensors, numbers, text, or lists and dictionaries of them"
            )


def attributes(model: nn.Module, optimizer: Optimizer) -> dict[str, str]:
    """Checksums of what the user's modules, and an optimizer of theirs, hold beside tensors, modes and options."""
    walk = Walk(code=False)
    walk.known |= {id(part): (b"", part) for part in (*model.modules(), *model.parameters())}
    return {
        f"{place}.{name}".lstrip("."): walk.digest(value).hex()
        for place, owner in (*model.named_modules(), ("the optimizer", optimizer))
        if is_users(type(owner).__module__)
        for name, value in vars(owner).items()
        if name not in _PYTORCHS and not type(value).__module__.startswith("autowarm.")
    }


def warn_of_changed(before: Mapping[str, str], after: Mapping[str, str], why: str) -> None:
    """Warn of attributes that are not as they were, by name."""
    if names := sorted(name for name in {**before, **after} if before.get(name) != after.get(name)):
        text = f"{', '.join(names)}: {why}. If training depends on it, keep it in a buffer of its module"
        warnings.warn(text, stacklevel=2)
