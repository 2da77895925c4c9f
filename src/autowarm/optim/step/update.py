"""A gradient's way: momentum → direction → oracle → move.

`Oracle` is the rule of every norm-constrained optimizer (the paper's eq. 2 and 4); `adamw.AdamW` is the other rule. By
then it is known whether the gradients are finite (`nonfinite`), and `plan` has said which tensors are stepped at a
time. Where ranks hold shards or copies, `sharing.Shared` calls a rule for each of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...geometry import Rate
from ...orthogonalize import orthogonalize_
from .plan import Plans, Run, Stack, Whole

# From this size on, a tensor's kernel takes longer than its launch.
_LARGE = 8 << 20

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


class Rule(ABC):
    """What updates the tensors of a group."""

    entries: ClassVar[tuple[str, ...]]  # names of what it keeps of each tensor
    wide: ClassVar[Mapping[torch.dtype, torch.dtype]]  # the dtype of entries that have the tensor's shape, if another's

    def __init__(self, options: tuple[str, ...] | None = None) -> None:
        self.options = options  # the group's options that have an effect, for `repr`; None for all

    def keeps(self, group: dict[str, Any]) -> bool:
        """Whether it keeps anything of the tensors."""
        return True

    @abstractmethod
    def first(self, group: dict[str, Any], p: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """The entries of a tensor before its first update."""

    def state_of(
        self, group: dict[str, Any], params: list[Tensor], state: State, collected: Sequence[list[Tensor]]
    ) -> None:
        """Add the entries of these tensors' states to a list for each, creating what is missing."""
        lists = tuple(zip(collected, self.entries, strict=True))  # a list for each entry, to add to
        for p in params if self.keeps(group) else ():
            tensor_state, dtype = state[p], p.dtype
            dtype = self.wide.get(dtype, dtype)
            if self.entries[0] not in tensor_state:  # a state may hold what others keep there
                tensor_state |= self.first(group, p, dtype)
            for entries, name in lists:
                entry = tensor_state[name]
                if name != "step":
                    if entry.shape != p.shape:
                        raise ValueError(
                            f"a parameter of shape {tuple(p.shape)} has a {name} of shape {tuple(entry.shape)}: it was "
                            "resized since its last step. Make a new optimizer, or delete what it keeps of it: "
                            "optimizer.state.pop(parameter)"
                        )
                    if entry.dtype != dtype:  # the model has been converted
                        entry = tensor_state[name] = entry.to(dtype)
                entries.append(entry)

    def loaded(self, group: dict[str, Any], p: Tensor, name: str, entry: Tensor) -> Tensor:
        """An entry of a saved state, where the rule keeps it; PyTorch rounds all but step counts to p's dtype."""
        return entry.to(p.device)

    @abstractmethod
    def update_(self, update: Update, plans: Plans) -> None:
        """Update the tensors, in place, and their state."""


class Oracle(Rule):
    """x ← (1 − λη)x + η·LMO(direction); m ← βm + (1 − β)g. The direction is m, or with Nesterov βm + (1 − β)g."""

    entries = ("momentum_buffer",)
    wide: ClassVar = {torch.float16: torch.float32}  # float16 would lose what is below 6e-8 of a momentum

    def keeps(self, group: dict[str, Any]) -> bool:
        return bool(group["momentum"])

    def makes(self, group: dict[str, Any]) -> bool:
        """Whether directions are new tensors, rather than the gradients or the momenta."""
        return bool(group["momentum"] and group["nesterov"])

    def first(self, group: dict[str, Any], p: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(p, dtype=dtype)}

    def directions(self, update: Update, *, wanted: bool = True) -> list[Tensor]:
        """Update the momenta and return the directions, if wanted."""
        # m ← βm + (1 − β)g, in place
        group, (ms,), beta = update.group, update.state, update.group["momentum"]
        gs = _masked(update)
        if not beta:
            return gs
        _average_(ms, gs, beta)
        if not (group["nesterov"] and wanted):
            return ms
        # Nesterov: βm + (1 − β)g, in memory of ours where there is some
        if gs is not update.gs:  # they are ours
            torch._foreach_lerp_(gs, ms, beta)
            return gs
        return list(torch._foreach_lerp(gs, ms, beta))

    def update_(self, update: Update, plans: Plans) -> None:
        group, geometry = update.group, update.group["geometry"]
        for plan in plans.of(geometry, update.xs, update.wholes):  # one for each device
            ordered = update if plan.order is None else update.at(plan.order)  # as the plan's slices count them
            if ordered.finite is not None:
                ordered.finite = ordered.finite.to(plan.device, non_blocking=True)
            rate = Rate.of_group(group, plan.device, ordered.finite)
            for some, radii in plan.parts:
                part = ordered[some]
                # No variable holds the directions until the next part's are made.
                geometry.step_(part.xs, self.directions(part), rate, radii, owned=self.makes(group), total=update.total)
            for stack in plan.stacks:
                self._step_stack_(ordered[stack.some], stack, rate)

    def _step_stack_(self, update: Update, stack: Stack, rate: Rate) -> None:
        X, slots = empty_stack(stack)  # X (count, m, n); slots[i] a view of tensor i
        for part in stack.parts:
            fill_(stack, slots[part], self.directions(update[part]))
        del slots  # views of the memory that the iterations free
        X = orthogonalize_(X, *stack.polar)  # X ← UVᵀ, in place
        for run in stack.runs:  # x ← (1 − λη)x − ηR·UVᵀ, for tensors of one shape at a time
            xs, tensor_rate = update.xs[run.tensors], isinstance(rate.lr, Tensor)
            if tensor_rate and xs[0].nbytes >= _LARGE:
                updates = block_of(stack, X, run, slice(0, len(xs)))  # (tensors, *shape)
                rate.step_each_(xs, list(updates.unbind()), [-run.radius] * len(xs))
                continue
            for part in run.parts:
                updates = block_of(stack, X, run, part)  # (tensors, *shape)
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
        directions = list(torch._foreach_lerp(gs, ms, beta1))  # β1·m + (1 − β1)g, new tensors
        _average_(ms, gs, beta2)  # after the direction, which is of the old m
        return directions


def _masked(update: Update) -> list[Tensor]:
    """The gradients in the momenta's dtype, or if the flag is not set what changes no momentum: itself, or 0."""
    gs, (ms,) = update.gs, update.state
    if update.finite is None:
        for g, m in zip(gs, ms, strict=False):
            if g.dtype != m.dtype:
                return [g.to(m.dtype, copy=True) for g, m in zip(gs, ms, strict=True)]
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
    matrices = X[run.matrices]  # (matrices of the run, m, n)
    if run.size == stack.size:
        return matrices
    m, n = run.size  # smaller than the stack's: its corner
    return (matrices if m >= n else matrices.mT)[:, :m, :n]


def fill_(stack: Stack, slots: list[Tensor], directions: list[Tensor]) -> None:
    """Copy the directions into their slots of the stack, in its dtype."""
    if stack.turned:
        directions = [g.mT if g.shape in stack.turned else g for g in directions]  # (…, n, m) → (…, m, n)
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
