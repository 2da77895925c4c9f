"""A gradient's way: momentum → direction → oracle → move.

`Oracle` is the rule of every norm-constrained optimizer (the paper's eq. 2 and 4); `adamw.AdamW` is the other rule. By
then it is known whether the gradients are finite (`nonfinite`), and `plan` has said which tensors are stepped at a
time. Where ranks hold shards or copies, `sharing.Shared` calls a rule for each of them.
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ...geometry import Rate
from ...orthogonalize import orthogonalize_
from .dtensors import local
from .plan import Plans, Run, Stack, Whole

# From this size on, a tensor's kernel takes longer than its launch.
_LARGE = 8 << 20

# The dtype of a momentum: float16 would lose what is below 6e-8 of it.
_WIDE = {torch.float16: torch.float32}

State = MutableMapping[Tensor, dict[str, Any]]


@dataclass
class Update:
    """Tensors of a group that one rule updates, and what it needs of each, all lists in the same order.

    Attributes:
        group: their parameter group.
        xs: parameters, or this rank's shards of them.
        gs: their gradients.
        state: a list for each entry of a tensor's state: momenta, or AdamW's averages and step counts.
        finite: a flag on a device, without which nothing may change; None if the host knows that it is set.
        total: adds up numbers over the ranks that hold the other pieces of the tensors; None if these are whole.
        wholes: of each shard, the shape of the whole tensor, and bytes by which all ranks cut parts alike; None if all
            tensors are whole.
    """

    group: dict[str, Any]
    xs: list[Tensor]
    gs: list[Tensor]
    state: list[list[Tensor]]
    finite: Tensor | None = None
    total: Callable[[Tensor], Tensor] | None = None
    wholes: tuple[Whole, ...] | None = None

    def at(self, places: Sequence[int]) -> "Update":
        """The tensors at these indices."""
        xs, gs, *state = [[each[i] for i in places] if each else [] for each in (self.xs, self.gs, *self.state)]
        wholes = self.wholes and tuple(self.wholes[i] for i in places)
        return replace(self, xs=xs, gs=gs, state=state, wholes=wholes)

    def __getitem__(self, some: slice) -> "Update":
        state = []
        for each in self.state:
            state.append(each[some])  # noqa: PERF401  (a comprehension is a call of its own)
        return Update(self.group, self.xs[some], self.gs[some], state, self.finite, self.total)


class Rule(Protocol):
    """What updates the tensors of a group."""

    entries: tuple[str, ...]  # names of what it keeps of each tensor
    options: tuple[str, ...] | None  # the group's options that have an effect, for `repr`; None for all

    def state_of(self, group: dict[str, Any], params: list[Tensor], state: State) -> list[list[Tensor]]:
        """Return the entries of these tensors' states, a list for each, creating what is missing."""

    def ready(self, group: dict[str, Any], params: list[Tensor], state: State) -> bool:
        """Whether these tensors have all the state that the rule keeps."""

    def update_(self, update: Update, plans: Plans) -> None:
        """Update the tensors, in place, and their state."""


class Oracle:
    """x ← (1 − λη)x + η·LMO(direction); m ← βm + (1 − β)g. The direction is m, or with Nesterov βm + (1 − β)g."""

    entries: tuple[str, ...] = ("momentum_buffer",)

    def __init__(self, options: tuple[str, ...] | None = None) -> None:
        self.options = options

    def keeps(self, group: dict[str, Any]) -> bool:
        """Whether the tensors have a momentum."""
        return bool(group["momentum"])

    def makes(self, group: dict[str, Any]) -> bool:
        """Whether directions are new tensors, rather than the gradients or the momenta."""
        return bool(group["momentum"] and group["nesterov"])

    def first(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """The momentum before the first update."""
        return torch.zeros_like(p, dtype=_WIDE.get(p.dtype, p.dtype))

    def state_of(self, group: dict[str, Any], params: list[Tensor], state: State) -> list[list[Tensor]]:
        """See `Rule`."""
        momenta: list[Tensor] = []
        if self.keeps(group):
            for p in params:
                own = state[p]
                if "momentum_buffer" not in own:
                    own["momentum_buffer"] = self.first(group, p)
                if own["momentum_buffer"].shape != p.shape:
                    raise resized("momentum_buffer", own, p)
                if own["momentum_buffer"].dtype != (dtype := _WIDE.get(p.dtype, p.dtype)):
                    own["momentum_buffer"] = own["momentum_buffer"].to(dtype)  # the model has been converted
                momenta.append(own["momentum_buffer"])
        return [momenta]

    def ready(self, group: dict[str, Any], params: list[Tensor], state: State) -> bool:
        """See `Rule`."""
        return not self.keeps(group) or all(state[p] for p in params)

    def directions(self, update: Update, *, wanted: bool = True) -> list[Tensor]:
        """Update the momenta and return the directions, if wanted."""
        group, (ms,), beta = update.group, update.state, update.group["momentum"]
        gs = _masked(update)
        if not beta:
            return gs
        _average_(ms, gs, beta)
        if not (group["nesterov"] and wanted):
            return ms
        if gs is not update.gs:  # they are ours
            torch._foreach_lerp_(gs, ms, beta)
            return gs
        return list(torch._foreach_lerp(gs, ms, beta))

    def update_(self, update: Update, plans: Plans) -> None:
        """See `Rule`."""
        group, geometry = update.group, update.group["geometry"]
        for plan in plans.of(geometry, update.xs, update.wholes):
            own = update if plan.order is None else update.at(plan.order)
            if own.finite is not None:
                own.finite = own.finite.to(plan.device, non_blocking=True)
            rate = Rate.of_group(group, plan.device, own.finite)
            for some, radii in plan.parts:
                part = own[some]
                # No variable holds the directions until the next part's are made.
                geometry.step_(part.xs, self.directions(part), rate, radii, owned=self.makes(group), total=update.total)
            for stack in plan.stacks:
                self._step_stack_(own[stack.some], stack, rate)

    def _step_stack_(self, update: Update, stack: Stack, rate: Rate) -> None:
        X, slots = empty_stack(stack)
        for part in stack.parts:
            fill_(stack, slots[part], self.directions(update[part]))
        del slots  # views of the memory that the iterations free
        X = orthogonalize_(X, *stack.polar)
        for run in stack.runs:
            xs, tensor_rate = update.xs[run.tensors], isinstance(rate.lr, Tensor)
            if tensor_rate and xs[0].nbytes >= _LARGE:
                updates = block_of(stack, X, run, slice(0, len(xs)))
                rate.step_each_(xs, list(updates.unbind()), [-run.radius] * len(xs))
                continue
            for part in run.parts:
                updates = block_of(stack, X, run, part)
                if tensor_rate:  # by which they are multiplied in their own dtype, and not in the weights'
                    updates = updates.to(torch.promote_types(xs[0].dtype, torch.float32))
                rate.step_(xs[part], list(updates.unbind()), -run.radius)


class TwoMomenta(Oracle):
    """Lion's: the direction is β1·m + (1 − β1)g, then m ← β2·m + (1 − β2)g."""

    def keeps(self, group: dict[str, Any]) -> bool:
        return True

    def makes(self, group: dict[str, Any]) -> bool:
        return True

    def directions(self, update: Update, *, wanted: bool = True) -> list[Tensor]:
        (ms,), (beta1, beta2), gs = update.state, update.group["betas"], _masked(update)
        directions = list(torch._foreach_lerp(gs, ms, beta1))
        _average_(ms, gs, beta2)
        return directions


class FromWeights(Oracle):
    """A momentum that may start from the weights, as (1 − β)(1 − λη)·x.

    The authors' momentum b ← βb + g starts as a copy of the weights, taken after their decay; m is (1 − β)b.
    """

    def first(self, group: dict[str, Any], p: Tensor) -> Tensor:
        if group["momentum_init"] != "weights":
            return super().first(group, p)
        m, keep = p.detach().to(_WIDE.get(p.dtype, p.dtype), copy=True), Rate.of_group(group, p.device).keep
        local(m).mul_((1 - group["momentum"]) * (-1 if group.get("maximize") else 1))
        if keep is not None:
            local(m).mul_(keep)
        return m


def resized(name: str, own: dict[str, Any], p: Tensor) -> ValueError:
    """The error for an entry of a tensor's state of another shape, because the tensor was given other data."""
    return ValueError(
        f"a parameter of shape {tuple(p.shape)} has a {name} of shape {tuple(own[name].shape)}: it was resized "
        "since its last step. Make a new optimizer, or delete what it keeps of it: optimizer.state.pop(parameter)"
    )


def _masked(update: Update) -> list[Tensor]:
    """The gradients in the momenta's dtype, or if the flag is not set what changes no momentum: itself, or 0."""
    gs, (ms,) = update.gs, update.state
    if update.finite is None:
        for g, m in zip(gs, ms, strict=False):
            if g.dtype != m.dtype:
                return [g.to(m.dtype) for g, m in zip(gs, ms, strict=True)]
        return gs
    stay: Sequence[Tensor | float] = ms or [0.0] * len(gs)
    return [torch.where(update.finite, g, m) for g, m in zip(gs, stay, strict=True)]


def _average_(ms: list[Tensor], gs: list[Tensor], beta: float) -> None:
    """m ← βm + (1 − β)g, in place."""
    if not torch.compiler.is_compiling():
        torch._foreach_lerp_(ms, gs, 1 - beta)
        return
    # Inductor puts off what was computed from the old m. Before a foreach operator overwrites m, it does not look for
    # such readers, and they see the new m (in its code for GPUs of PyTorch 2.11 and 2.15); plain operators are safe.
    for m, g in zip(ms, gs, strict=True):
        m.lerp_(g, 1 - beta)


# These are functions, not methods, because `torch.compile` treats a stack as a constant and reads only its attributes.


def empty_stack(stack: Stack) -> tuple[Tensor, list[Tensor]]:
    """Allocate a stack (count, m, n), of zeros if it contains padding, and return it with each tensor's view of it."""
    make = torch.zeros if stack.padded else torch.empty
    X = make((stack.count, *stack.size), dtype=stack.dtype, device=stack.device)
    slots: list[Tensor] = []
    for run in stack.runs:
        matrices = _of_run(stack, X, run)
        count = run.tensors.stop - run.tensors.start
        slots += matrices.unbind() if run.each == 1 else matrices.unflatten(0, (count, run.each)).unbind()
    return X, slots


def _of_run(stack: Stack, X: Tensor, run: Run) -> Tensor:
    matrices = X[run.matrices]
    if run.size == stack.size:
        return matrices
    m, n = run.size
    return (matrices if m >= n else matrices.mT)[:, :m, :n]


def fill_(stack: Stack, slots: list[Tensor], directions: list[Tensor]) -> None:
    """Copy the directions into their slots of the stack, in its dtype."""
    if stack.turned:
        directions = [g.mT if g.shape in stack.turned else g for g in directions]
    if not stack.plain:
        directions = [g.reshape(slot.shape) for g, slot in zip(directions, slots, strict=True)]
    torch._foreach_copy_(slots, directions)


def block_of(stack: Stack, X: Tensor, run: Run, part: slice) -> Tensor:
    """Return the stack's contents for some tensors of a run as one tensor (tensors, *shape)."""
    count, shape = part.stop - part.start, run.shape
    matrices = _of_run(stack, X, run)[part.start * run.each : part.stop * run.each]
    if shape not in stack.turned:
        return matrices.reshape(count, *shape)
    return matrices.reshape(count, *shape[:-2], shape[-1], shape[-2]).mT
