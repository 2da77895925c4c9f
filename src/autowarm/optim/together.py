"""Several optimizers as one, so that one scheduler sets all their learning rates."""

import math
from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .lmo import LMO, Watched
from .states import check_complete, checked_state
from .unused import Unused


class Together(Watched):
    """Combine several optimizers into one that steps them all. It concatenates their parameter groups and states.

    `torch.optim.Muon` takes matrices only, so the rest of a model needs a second optimizer. A scheduler on the
    combination keeps the ratios between their rates, counts one update when both step, and uses the geometry of the
    first optimizer that is norm-constrained. Each optimizer judges its own gradients, so that an update which one of
    them skips is made by the others.

    Args:
        optimizers: optimizers that share no tensor. Call ``step`` on the combination, not on them.

    Raises:
        ValueError: no optimizer is given, or two of them share a tensor.

    Example:
        >>> import torch
        >>> from autowarm import AdaptiveWarmup
        >>> from autowarm.optim import Together
        >>> layer = torch.nn.Linear(8, 4)
        >>> opt = Together(torch.optim.Muon([layer.weight], lr=0.02), torch.optim.AdamW([layer.bias], lr=0.002))
        >>> sched = AdaptiveWarmup(opt, total_steps=100)
        >>> [round(group["lr"] / group["initial_lr"], 3) for group in opt.param_groups]
        [0.1, 0.1]
    """

    optimizers: tuple[Optimizer, ...]

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ValueError("Together needs at least one optimizer")
        for one in optimizers:
            if not isinstance(one, Optimizer):
                raise TypeError(f"Together takes optimizers, as in Together(muon, adamw), got a {type(one).__name__}")
        # Each tensor has one owner: two would step it twice.
        owners: dict[int, str] = {}
        for one in optimizers:
            for p in (p for group in one.param_groups for p in group["params"]):
                if id(p) in owners:
                    raise ValueError(
                        f"a tensor of shape {tuple(p.shape)} is in two optimizers, {owners[id(p)]} and "
                        f"{type(one).__name__}: each tensor must belong to one"
                    )
                owners[id(p)] = type(one).__name__
        # Optimizer.__init__ would copy the groups; __setstate__ is how PyTorch itself makes an optimizer without it.
        self.__setstate__({"optimizers": tuple(optimizers), "defaults": {}})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._unused = Unused()  # a copy looks anew
        for one in self._ours():
            one._unused.done = True  # this one looks

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers, "defaults": self.defaults}

    # Look these up each time: loading a checkpoint gives an optimizer new groups and a new state.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """All groups in order; they are the optimizers' own dictionaries, not copies."""
        return [group for one in self.optimizers for group in one.param_groups]

    @property
    def state(self) -> Mapping[Tensor, Any]:  # type: ignore[override]
        """All states, to be read: they belong to the optimizers."""
        return MappingProxyType({p: state for one in self.optimizers for p, state in one.state.items()})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise TypeError, whose message says where to add the group instead."""
        raise TypeError("add the group to one of Together's optimizers, Together(...).optimizers[i], instead")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like `torch.optim.Optimizer.zero_grad`, for all the optimizers."""
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)

    def _step(self) -> bool:
        self.check_step()  # each checks by itself, but others may have stepped by then
        # Others' may refuse their gradients, too, so they step before ours.
        for one in sorted(self.optimizers, key=lambda one: 2 * isinstance(one, LMO) + isinstance(one, Together)):
            one.step()
        return any(p.grad is not None for group in self.param_groups for p in group["params"])

    def check_step(self) -> None:
        """Raise the errors of `LMO.step` that the present gradients would cause in ours, without a step."""
        for one in self._ours():
            one.check_step()

    @property
    def skipped_updates(self) -> int:
        """How many updates ours have skipped, added up; reading it waits for the device."""
        return sum(one.skipped_updates for one in self._ours())  # others' skip none, or count none

    def _ours(self) -> "list[LMO | Together]":
        return [one for one in self.optimizers if isinstance(one, (LMO, Together))]

    def state_dict(self) -> dict[str, Any]:
        """Like `torch.optim.Optimizer.state_dict`; tensors are numbered consecutively, as checkpoints need."""
        for before in self._optimizer_state_dict_pre_hooks.values():  # as PyTorch's own method calls them
            before(self)
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0  # the number of an optimizer's first tensor among all
        for one in self.optimizers:
            inner = one.state_dict()
            state |= {first + i: value for i, value in inner["state"].items()}
            for group in inner["param_groups"]:
                kept = sum(bool(inner["state"].get(i)) for i in group["params"])  # as ours count what has a state
                groups.append({"kept": kept, **group, "params": [first + i for i in group["params"]]})
            first += sum(len(group["params"]) for group in inner["param_groups"])
        saved = {"state": state, "param_groups": groups}
        for after in self._optimizer_state_dict_post_hooks.values():
            saved = changed if (changed := after(self, saved)) is not None else saved
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Like `torch.optim.Optimizer.load_state_dict`, but check every optimizer's share before loading any.

        Raises:
            ValueError: the saved groups differ in number, size or the tensors that they have by name, or a rate, an
                option or a momentum is invalid.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():  # which may unwrap it
            state_dict = changed if (changed := before(self, state_dict)) is not None else state_dict
        for one, share in zip(self.optimizers, self.check_state_dict(state_dict), strict=True):
            one.load_state_dict(share)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def check_state_dict(self, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
        """Raise the ValueErrors of `load_state_dict` without loading anything; return each optimizer's share."""
        # The whole state first: its names, shapes and group sizes
        state_dict = checked_state(type(self).__name__, self.param_groups, state_dict)
        saved = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in saved], [len(group["params"]) for group in self.param_groups]
        if sizes[0] != sizes[1]:
            raise ValueError(f"the saved optimizers differ in tensors per group: saved {sizes[0]}, here {sizes[1]}")
        for i, group in enumerate(saved):  # others' optimizers do not check their rates
            lr = float(group.get("lr", 0.0))
            if not (lr >= 0 and math.isfinite(lr)):
                raise ValueError(f"the saved optimizer's group {i}: lr must be finite and not negative, got {lr}")
        # Then each optimizer's share, with its tensors numbered from 0
        shares = []
        start = 0
        for one in self.optimizers:
            mine = saved[start : start + len(one.param_groups)]
            start += len(one.param_groups)
            renumbered = {old: new for new, old in enumerate(chain.from_iterable(group["params"] for group in mine))}
            share: dict[str, Any] = {
                "state": {renumbered[i]: v for i, v in state_dict["state"].items() if i in renumbered},
                "param_groups": [{**group, "params": [renumbered[i] for i in group["params"]]} for group in mine],
            }
            if isinstance(one, (LMO, Together)):
                one.check_state_dict(share)
            else:
                for present, group in zip(one.param_groups, share["param_groups"], strict=True):
                    check_complete(present, group, share["state"], ())
                    group.pop("kept", None)
            shares.append(share)
        return shares

    def __repr__(self) -> str:
        return "Together(\n" + ",\n".join(repr(one) for one in self.optimizers) + "\n)"
