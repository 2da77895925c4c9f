"""Saved states of our optimizers: they hold text, numbers and tensors, and are checked whole before any is loaded."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..geometry import Geometry
from .checks import called, check_options, few, name_of, plain_numbers
from .model.heads import WRAPPERS
from .ranks.dtensors import local
from .step.outliers import Outliers
from .step.update import Rule

_INSERTED = "|".join(WRAPPERS)
_WRAPPERS = re.compile(rf"^((module|{_INSERTED})\.)+|(?<=\.)({_INSERTED})\.")


def checked_state(who: str, groups: Sequence[Mapping[str, Any]], state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a shallow copy of a saved state; ValueError if it does not belong to the tensors of these groups."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        got = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise ValueError(
            f"this is not an optimizer's state: {who} needs a dictionary with state and param_groups, got {got}"
        )
    # Whose tensors these are: by name, and then by shape
    _check_names(groups, state_dict["param_groups"])
    numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    numbered = dict(zip(numbers, chain.from_iterable(group["params"] for group in groups), strict=False))
    whole = ("momentum_buffer", "exp_avg", "exp_avg_sq")  # other optimizers' states may have other shapes
    for i, state in state_dict["state"].items():
        p = numbered.get(i)
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.is_meta:
                continue
            if p is not None and name in whole and value.shape != p.shape:
                raise ValueError(
                    f"the saved {name} of tensor {i} has shape {tuple(value.shape)}, but the tensor {tuple(p.shape)}: "
                    "the state is another model's"
                )
            if value.layout is torch.strided and not local(value).isfinite().all():
                raise ValueError(
                    f"the saved {name} of tensor {i} is not finite: training cannot resume from it; use an older state"
                )
    saved = state_dict["param_groups"]
    if len(saved) == len(groups):  # names here may have other wrappers, and a distributed checkpoint's may be older
        present = ({"param_names": group["param_names"]} if "param_names" in group else {} for group in groups)
        saved = [{**was, **(names if "param_names" in was else {})} for was, names in zip(saved, present, strict=True)]
    return {**state_dict, "param_groups": saved}


def check_complete(
    group: Mapping[str, Any], saved: Mapping[str, Any], state: Mapping[Any, Mapping[str, Any]], entries: Sequence[str]
) -> None:
    """Raise ValueError if a saved group lacks some of these entries of its tensors, or more tensors than it had."""
    lacking = []  # tensors with no state at all, as before their first gradient
    for i, number in enumerate(saved["params"]):
        present = state.get(number, {})
        missing = [name for name in entries if name not in present]
        if missing and len(missing) < len(entries):
            lacks = f"{missing[0]} of {name_of(group, i)}"
            raise ValueError(f"the saved optimizer has no {lacks}: use a state that is whole")
        lacking += [name_of(group, i)] * (bool(missing) or not present)
    wanted = min(saved.get("kept", 0), len(saved["params"]))  # FSDP1 may have cut the tensors into fewer pieces
    if (lost := wanted - len(saved["params"]) + len(lacking)) > 0:
        raise ValueError(
            f"the saved optimizer lacks the state of {lost} of {wanted} tensors, such as {few(lacking)}: use "
            "a state that is whole. If torch.distributed.checkpoint read it, give it the places that "
            "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(model, optimizer) makes"
        )


def _check_names(groups: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError if both have names for their tensors, and these differ or are elsewhere."""
    now, then = _names_of(groups), _names_of(saved)
    if now is None or then is None or len(now) != len(then):  # of other groups the caller says which it has
        return
    for i, both in enumerate(zip(then, now, strict=True)):
        for j, (was, name) in enumerate(zip_longest(*both, fillvalue="none")):
            if was != name:
                raise ValueError(
                    f"the saved optimizer has other tensors, or in other places: tensor {j} in {called(i, groups)} was "
                    f"{was}, and is {name}. Build this one with the groups that it had, from layers in the same order, "
                    "and with the same heads= of Muon.from_model"
                )


def _names_of(groups: Sequence[Mapping[str, Any]]) -> list[list[str]] | None:
    """The names of each group's tensors, without wrappers; None if some have none."""
    named = []
    for group in groups:
        numbers = group["params"]
        # Distributed checkpoints number tensors by their names, in the order of the optimizer that loads them.
        names = numbers if all(isinstance(one, str) for one in numbers) else group.get("param_names") or ()
        if len(names) != len(numbers):
            return None
        named.append([_WRAPPERS.sub("", name) for name in names])
    return named


class Saved(Optimizer):
    """What all our optimizers save, and how they load it."""

    _outliers: Outliers
    _rules: ClassVar[dict[str, Rule]]  # what updates the tensors, by a group's ``algorithm``
    # The options that are numbers, or pairs of them, and the ends of their ranges [0, end).
    _ends: ClassVar[dict[str, float]]
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {}

    def _check_group(self, options: Mapping[str, Any], whose: str = "") -> None:
        """Raise ValueError if a group's option is out of range."""
        try:
            check_options(options, self._ends, self._choices, of_group=True)
        except ValueError as error:
            raise ValueError(f"{whose}{error}") from None

    def state_dict(self) -> dict[str, Any]:
        """Like `torch.optim.Optimizer.state_dict`, with geometries as text; it loads with ``weights_only=True``."""
        # Before the user's hooks, which see what we return.
        with self.register_state_dict_post_hook(lambda _, state: self._describe(state), prepend=True):
            return super().state_dict()

    def _describe(self, state: dict[str, Any]) -> None:
        """Add to a state what `check_state_dict` compares, as text and numbers."""
        for group in state["param_groups"]:
            count = sum(any(name in state["state"].get(i, ()) for name in self._keeps(group)) for i in group["params"])
            group |= {"geometry": repr(group["geometry"]), "kept": count}
            group.update(plain_numbers(group))
        if self._outliers.history is not None:
            state["param_groups"][0]["gradient_norms"] = self._outliers.history.clone()

    def _keeps(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of what is kept of each tensor of a group that has been updated."""
        return self._rule(group).entries if self._rule(group).keeps(group) else ()

    def _rule(self, group: Mapping[str, Any]) -> Rule:
        """What updates the tensors of this group."""
        return self._rules[group.get("algorithm", "")]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Like `torch.optim.Optimizer.load_state_dict`, but check the whole state before loading any of it.

        Raises:
            ValueError: this is not an optimizer's state, its tensors have other names, order or groups, a group
                has another geometry (the message lists the differences), an option is out of range, or a momentum is
                missing, has a different shape or is not finite.
        """
        geometries = [group["geometry"] for group in self.param_groups]  # a state has their text only
        given: dict[str, Any] = {}  # what the user's hooks make of the state
        # After the user's hooks that change a state, and before those that look at what was loaded.
        with (
            self.register_load_state_dict_pre_hook(
                lambda _, state: given.update(self.check_state_dict(state)) or given
            ),
            self.register_load_state_dict_post_hook(lambda _: self._restore(given, geometries), prepend=True),
        ):
            super().load_state_dict(state_dict)

    def _restore(self, given: dict[str, Any], geometries: list[Geometry]) -> None:
        """Put right what PyTorch makes of a state: geometries that are text, and rounded tensors."""
        for group, geometry, was in zip(self.param_groups, geometries, given["param_groups"], strict=True):
            rule = self._rule(group)
            # Entries in their own dtype, and where the rule keeps them
            for i, p in zip(was["params"], group["params"], strict=True):
                for name in given["state"].get(i, {}).keys() & set(rule.entries):
                    self.state[p][name] = rule.loaded(group, p, name, given["state"][i][name])
            group["geometry"] = geometry
            group.pop("kept", None)
            if (norms := group.pop("gradient_norms", None)) is not None:
                self._outliers.history = norms.to(group["params"][0].device, copy=True)  # the caller's stays as it is
            elif group is self.param_groups[0] and self._outliers.history is not None:
                self._outliers.history.zero_()  # they were of the run before

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Raise the ValueErrors of `load_state_dict` without loading anything; return a shallow copy of the state."""
        state_dict = checked_state(type(self).__name__, self.param_groups, state_dict)
        geometries = [group["geometry"] for group in self.param_groups]
        saved = state_dict["param_groups"]
        if len(saved) != len(geometries):
            then, now = (", ".join(g.get("role", "tensors") for g in groups) for groups in (saved, self.param_groups))
            raise ValueError(
                f"the saved optimizer has other parameter groups: {len(saved)} saved ({then}), {len(geometries)} here "
                f"({now}). If they differ in the output layer, choose it with heads= of Muon.from_model, [] for none"
            )
        # Whose state it is: geometries, options, entries
        differ = [
            f"group {i}: saved {was.get('geometry')}, here {now!r}"
            for i, (was, now) in enumerate(zip(saved, geometries, strict=True))
            if was.get("geometry") != repr(now)
        ]
        if differ:
            raise ValueError("the saved optimizer has other geometries: " + "; ".join(differ))
        for i, group in enumerate(saved):
            self._check_group(self.defaults | group, f"the saved optimizer's group {i}: ")
            check_complete(self.param_groups[i], group, state_dict["state"], self._keeps(self.defaults | group))
        return state_dict
