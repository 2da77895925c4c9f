"""Updates that leave no trace: everything they change is copied first and restored bit for bit."""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from .._torch.undisturbed import overlaps_itself, put_back, untouched
from ..optim.ranks.dtensors import local
from ..optim.step.nonfinite import SkippedUpdates
from ..optim.step.outliers import Outliers
from ..others.wrapped import inside, is_ours, unwrapped

_OPTIONS = ("lr", "initial_lr", "weight_decay", "momentum", "eps", "warmup")  # which loops set on the way

Restore = Callable[[], Any]
"""Restores a value's content and returns the value."""


@contextmanager
def restored(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Undo every update made inside this context, even if an exception ends it.

    Inside it, our schedulers do not count the optimizer's updates, the optimizer has its own rates that may be written
    to, and no number of non-finite gradients raises an error.

    Args:
        model, optimizer: restored with all their state; the optimizer may be wrapped, or a `Together`.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    keep = Keeper(offload=False)
    with ExitStack() as stack:
        stack.enter_context(untouched(model, params))
        for tensor in (*params, *model.parameters()):
            stack.callback(keep(tensor))
        for one in _layers(optimizer):
            for group in one.param_groups:
                keep.leave(group["lr"])
            stack.callback(keep(vars(one)))
        for one in _layers(optimizer):
            _set_apart(one)
        yield


def _layers(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizer, the one it wraps, and those that make the updates."""
    core = unwrapped(optimizer)
    return list({id(one): one for one in (optimizer, core, *inside(core))}.values())


def _set_apart(optimizer: Optimizer) -> None:
    """Replaces what the search must not touch: step hooks, update counts and tensors of rates."""
    for name, value in list(vars(optimizer).items()):
        if name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            for key in [key for key, call in value.items() if is_ours(call)]:
                del value[key]
        elif isinstance(value, SkippedUpdates):
            counts = copy.copy(value)
            counts.most = None
            setattr(optimizer, name, counts)
        elif isinstance(value, Outliers):
            setattr(optimizer, name, copy.deepcopy(value))
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].detach().clone()


class Keeper:
    """Copies tensors and the contents of dicts, lists, tuples and deques, each once even if it is reached repeatedly.

    Called with a value, it returns what restores that value in place, any number of times. A sharded tensor (DTensor)
    is kept and restored by its local shard, so no rank waits for another.

    With ``offload``, copies of an accelerator's tensors are kept in pinned host memory, without the host waiting.
    """

    def __init__(self, offload: bool) -> None:
        self._offload = offload
        self._known: dict[int, tuple[Any, Restore]] = {}  # keeps the object alive, so that its id is not reused

    def __call__(self, value: Any) -> Restore:
        if id(value) in self._known:
            return self._known[id(value)][1]
        if isinstance(value, Tensor):
            return self._know(value, self._tensor(value))
        if isinstance(value, dict):
            # Registered before its items, which may refer back to it.
            items: dict[Any, Restore] = {}
            restore = self._know(value, lambda: _refilled(value, {key: restore() for key, restore in items.items()}))
            items |= {key: self(item) for key, item in value.items()}
            return restore
        if isinstance(value, tuple):  # which stays, and holds what is restored in place
            restores = [self(part) for part in value]
            return self._know(value, lambda: (*(restore() for restore in restores), value)[-1])
        if isinstance(value, list | deque):
            parts: list[Restore] = []
            restore = self._know(value, lambda: _refilled(value, [restore() for restore in parts]))
            parts += map(self, value)
            return restore
        if isinstance(value, GradScaler):
            content = self(vars(value))
            return self._know(value, lambda: content() and value)
        return lambda: value

    def anew(self, value: Any) -> Restore:
        """Copy a value that had been left."""
        del self._known[id(value)]
        return self(value)

    def leave(self, value: Any) -> None:
        """Nothing writes into this value, so restoring the reference is enough."""
        self._know(value, lambda: value)

    def _know(self, value: Any, restore: Restore) -> Restore:
        self._known[id(value)] = value, restore
        return restore

    def _tensor(self, value: Tensor) -> Restore:
        shard = local(value.detach())
        if shard.is_meta or overlaps_itself(shard):
            return lambda: value
        if self._offload and shard.device.type != "cpu":
            content = torch.empty_like(shard, device="cpu", pin_memory=True).copy_(shard, non_blocking=True)
        else:
            content = shard.clone()

        def restore() -> Tensor:
            local(value.detach()).copy_(content, non_blocking=True)
            return value

        return restore


def _refilled(value: Any, content: Any) -> Any:
    value.clear()
    if isinstance(value, dict):
        value.update(content)
    else:
        value.extend(content)
    return value


Versions = dict[Tensor, int]


def versions_of_frozen(optimizer: Optimizer, model: nn.Module | None = None) -> Versions:
    """The frozen tensors of an optimizer and a model, and their versions now, which writing to them would change."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    params += [] if model is None else model.parameters()
    return {p: p._version for p in params if not p.requires_grad and not p.is_inference()}


class Snapshot:
    """The weights, the optimizer's state and its groups' counters, as they are now; and a model's buffers.

    An accelerator's tensors are copied to pinned host memory without waiting for them, and DTensors by their local
    shards. Everything but the rates is restored, in place: compiled steps and wrappers hold the tensors themselves.
    Of the ``frozen`` tensors, those that still have these versions are not copied: nothing has to be restored.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module | None = None, frozen: "Versions | None" = None) -> None:
        self._keep = Keeper(offload=True)
        self._untouched: dict[Tensor, int] = {}  # frozen tensors that nobody has ever written, by their versions
        for p, version in (frozen or {}).items():
            if not p.requires_grad and p._version == version:
                self._untouched[p] = version
                self._keep.leave(p)
        self._parameters = [] if model is None else [self._keep(p) for p in model.parameters()]
        self._buffers = [
            (module, name, self._keep(buffer))
            for module in (() if model is None else model.modules())
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._weights: dict[Tensor, Restore] = {}
        self._counters: dict[Tensor | None, dict[str, Restore]] = {}  # by the group's first tensor
        self._states = {one: {key: self._keep(x) for key, x in one.state.items()} for one in inside(optimizer)}
        # Moments that an optimizer keeps as attributes; a number there may be an option, which a loop sets.
        attributes = chain.from_iterable(vars(one).values() for one in self._states)
        self._moments = [self._keep(x) for x in attributes if isinstance(x, Tensor)]
        self.keep_added(optimizer)

    def keep_added(self, optimizer: Optimizer) -> None:
        """Keep groups that are new and tensors that train from now on. Call it before their first update."""
        if self._untouched and any(p.requires_grad for p in self._untouched):
            for p in [p for p in self._untouched if p.requires_grad]:
                del self._untouched[p]
                self._weights[p] = self._keep.anew(p)
        if self._weights and sum(len(group["params"]) for group in optimizer.param_groups) == len(self._weights):
            return
        for group in optimizer.param_groups:
            self._weights |= {p: self._keep(p) for p in group["params"] if p not in self._weights}
            if (first := first_tensor(group)) not in self._counters:
                # What is no option may be a count that only the optimizer's updates change.
                numbers = {name: x for name, x in group.items() if isinstance(x, int | float | Tensor)}
                self._counters[first] = {name: self._keep(x) for name, x in numbers.items() if name not in _OPTIONS}

    def restore(self, optimizer: Optimizer) -> None:
        """Restore all of it. Gradients become zero: they were taken at the weights that this replaces."""
        for restore in chain(self._parameters, self._weights.values(), self._moments):
            restore()
        for module, name, restore in self._buffers:
            put_back(module, name, restore())
        for one, restores in self._states.items():
            # A state that the optimizer has loaded since is in other dictionaries.
            content = {key: restore() for key, restore in restores.items()}
            one.state.clear()
            one.state.update(content)
        for group in optimizer.param_groups:
            group.update({name: restore() for name, restore in self._counters.get(first_tensor(group), {}).items()})
        for p in self._weights:
            if p.grad is not None:
                p.grad.zero_()


def first_tensor(group: dict[str, Any]) -> Tensor | None:
    """What a parameter group is known by, for it is in no other group; None if it is empty."""
    return group["params"][0] if group["params"] else None
