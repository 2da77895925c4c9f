"""A gradient's way: is it finite → momentum → direction → oracle → move.

`Oracle` is the rule of every norm-constrained optimizer; `adamw.AdamW` is the other rule. `reference` says the same in
plain code, and tests hold this to it. What makes it longer than that:

- A bucket's tensors are processed in parts (`batches.parts_of`), and polar factors in stacks (`batches.Batch`).
- Flags of what is finite stay on an accelerator, where they mask gradients and rates; on the host they are read part by
  part, which brings a gradient into the cache for what follows.
- Ranks share out the work on whole tensors (`sharing`).
"""

from collections.abc import MutableMapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ...geometry import Rate
from ...orthogonalize import orthogonalize_
from .batches import empty_stack, fill_, move_by_stack_, parts_of, slots_of
from .buckets import Bucket, Buckets, Tensors
from .dtensors import local
from .nonfinite import SkippedUpdates, masked, read_on_host
from .sharing import move_finer_, move_gathered_

State = MutableMapping[Tensor, dict[str, Any]]


class Rule(Protocol):
    """What updates the tensors of a group."""

    entries: tuple[str, ...]  # names of what it keeps of each tensor
    options: tuple[str, ...] | None  # the group's options that have an effect, for `repr`; None for all

    def state_of(self, group: dict[str, Any], params: list[Tensor], state: State) -> list[list[Tensor]]:
        """Return the entries of these tensors' states, a list for each, creating what is missing."""

    def ready(self, group: dict[str, Any], params: list[Tensor], state: State) -> bool:
        """Whether these tensors have all the state that the rule keeps."""

    def update_(self, tensors: Tensors, buckets: Buckets, skipped: SkippedUpdates) -> None:
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
        return torch.zeros_like(p)

    def state_of(self, group: dict[str, Any], params: list[Tensor], state: State) -> list[list[Tensor]]:
        momenta: list[Tensor] = []
        if self.keeps(group):
            for p in params:
                own = state[p]
                if "momentum_buffer" not in own:
                    own["momentum_buffer"] = self.first(group, p)
                check_shape("momentum_buffer", own, p)
                if own["momentum_buffer"].dtype != p.dtype:
                    own["momentum_buffer"] = own["momentum_buffer"].to(p.dtype)  # the model has been converted
                momenta.append(own["momentum_buffer"])
        return [momenta]

    def ready(self, group: dict[str, Any], params: list[Tensor], state: State) -> bool:
        return not self.keeps(group) or all(state[p] for p in params)

    def directions(
        self, group: dict[str, Any], gs: list[Tensor], ms: list[Tensor], *, owned: bool, wanted: bool = True
    ) -> list[Tensor]:
        """Update the momenta and return the directions, if wanted; gradients that are owned may be overwritten."""
        beta = group["momentum"]
        if not beta:
            return gs
        _average_(ms, gs, beta)
        if not (group["nesterov"] and wanted):
            return ms
        if owned:
            torch._foreach_lerp_(gs, ms, beta)
            return gs
        return list(torch._foreach_lerp(gs, ms, beta))

    def taken(self, tensors: Tensors, *, wanted: bool = True) -> list[Tensor]:
        """Do the same for tensors of which some gradients may not be finite; these have no effect."""
        (ms,) = tensors.state
        gs = masked(tensors.gs, ms, tensors.finite)
        return self.directions(tensors.group, gs, ms, owned=tensors.finite is not None, wanted=wanted)

    def update_(self, tensors: Tensors, buckets: Buckets, skipped: SkippedUpdates) -> None:
        group = tensors.group
        geometry, rate = group["geometry"], Rate.of_group(group)
        for bucket in buckets.of(geometry, tensors.xs):
            own = tensors if bucket.whole else tensors.at(bucket.members)
            if own.checked:  # by ranks, which may hold shards, and of tensors on all devices
                own.xs, own.gs, *own.state = [[local(x) for x in each] for each in (own.xs, own.gs, *own.state)]
                own.finite = None if own.finite is None else own.finite.to(own.xs[0].device)
            if bucket.layout.gathered:
                own_rate = rate.where(own.finite)
                own.finite = None if own.finite is None else own.finite.unbind()  # its parts are in no order
                move_ = move_finer_ if bucket.layout.finer else move_gathered_
                move_(geometry, bucket, own, self.taken, own_rate)
                continue
            if not own.checked and not read_on_host(own.xs[0].device):
                own.checked, own.finite = True, skipped.check(own.gs)
            if bucket.batches:
                self._by_stacks(bucket, own, rate, skipped)
            else:
                self._by_parts(bucket, own, rate, skipped)

    def _by_parts(self, bucket: Bucket, tensors: Tensors, rate: Rate, skipped: SkippedUpdates) -> None:
        geometry, owned = tensors.group["geometry"], self.makes(tensors.group)
        total = bucket.layout.total if bucket.layout.axes else None
        for part in parts_of(tensors.xs, sizes=bucket.sizes):
            some = tensors[part]
            if not some.checked:
                some.finite = skipped.check(some.gs)
            radii = bucket.radii[part] if isinstance(bucket.radii, list) else bucket.radii
            # No variable holds the directions until the next part's are made.
            geometry.step_(some.xs, self.taken(some), rate.where(some.finite), radii, owned=owned, total=total)

    def _by_stacks(self, bucket: Bucket, tensors: Tensors, rate: Rate, skipped: SkippedUpdates) -> None:
        polar = tensors.group["geometry"].polar
        rate = rate.where(tensors.finite)
        start = 0
        for batch in bucket.batches:
            some = slice(start, start := start + len(batch.members))
            own, own_rate = tensors[some], rate[some]
            if not own.checked:
                own.finite = skipped.check(own.gs)
                own_rate = rate.where(own.finite)
            stack = empty_stack(batch)
            slots = slots_of(batch, stack)
            for part in parts_of(own.gs, batch.part_bytes):
                fill_(batch, slots[part], self.taken(own[part]))
            del slots  # views of the memory that the iterations free
            stack = orthogonalize_(stack, method=polar.method, steps=polar.steps)
            move_by_stack_(own.xs, batch, stack, own_rate)
            del stack  # before the next batch's is made


class TwoMomenta(Oracle):
    """Lion's: the direction is β1·m + (1 − β1)g, then m ← β2·m + (1 − β2)g."""

    def keeps(self, group: dict[str, Any]) -> bool:
        return True

    def makes(self, group: dict[str, Any]) -> bool:
        return True

    def directions(
        self, group: dict[str, Any], gs: list[Tensor], ms: list[Tensor], *, owned: bool, wanted: bool = True
    ) -> list[Tensor]:
        beta1, beta2 = group["betas"]
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
        m, keep = p.detach().clone(), Rate.of_group(group).keep
        local(m).mul_((1 - group["momentum"]) * (-1 if group.get("maximize") else 1))
        if keep is not None:
            local(m).mul_(keep)
        return m


def check_shape(name: str, own: dict[str, Any], p: Tensor) -> None:
    """Raise ValueError if this entry of a tensor's state has another shape, because the tensor was given other data."""
    if own[name].shape != p.shape:
        raise ValueError(
            f"a parameter of shape {tuple(p.shape)} has a {name} of shape {tuple(own[name].shape)}: it was resized "
            "since its last step. Make a new optimizer, or delete what it keeps of it: optimizer.state.pop(parameter)"
        )


def _average_(ms: list[Tensor], gs: list[Tensor], beta: float) -> None:
    """m ← βm + (1 − β)g, in place."""
    if not torch.compiler.is_compiling():
        torch._foreach_lerp_(ms, gs, 1 - beta)
        return
    # Inductor puts off what was computed from the old m. Before a foreach operator overwrites m, it does not look for
    # such readers, and they see the new m (in its code for GPUs of PyTorch 2.11 and 2.15); plain operators are safe.
    for m, g in zip(ms, gs, strict=True):
        m.lerp_(g, 1 - beta)
