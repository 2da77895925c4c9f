"""The search for the peak rate in a run's first updates: what ``peak="auto"`` does before the warm-up."""

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ..frames import frames_of_ours
from ..losses import is_broken, mean_loss
from ..optim.step.dtensors import local
from ..optim.wrapped import hook_once_compiled, inside, unwrapped
from ..rate.restore import may_count
from ..rate.search import RateSearch, has_broken
from .hooks.clock import only_makes_state
from .hooks.groups import first_tensor
from .profile import Profile
from .rule import HostRule, Notices
from .rule.saved import boolean, check, count, list_of, number, optional

LOWEST, HIGHEST = 1e-6, 100.0  # rates tried, as in `autowarm.find_rate`
_SHARE, _FEWEST, _MOST = 0.1, 30, 100  # length of the search: share of the run, and bounds in updates


class PeakSearch:
    """The phase before the warm-up: rates rise by a constant factor until the loss breaks; then the run starts over.

    This is `autowarm.find_rate` inside a run. The optimizer must be new, because the search ends by restoring its
    weights and its state from before the first update. The timeline and f* are those of the rule that follows, and only
    the last loss may be non-finite.

    Raises:
        ValueError: at the first update, if the optimizer has made updates before; at once, if its updates may be
            replays of a captured graph.
    """

    def __init__(self, optimizer: Optimizer, host: HostRule) -> None:
        optimizer = unwrapped(optimizer)  # a trainer may have wrapped it since the scheduler was made
        if any(group.get("capturable") for group in optimizer.param_groups):
            raise ValueError(
                'peak="auto" restores the optimizer\'s first state after its search, which a captured graph does not '
                "see: use autowarm.find_rate before the capture"
            )
        self._optimizer, self._host = optimizer, host
        self.timeline, self.target_loss, self.updates = host.timeline, host.target_loss, host.updates
        steps = int(min(_MOST, max(_FEWEST, _SHARE * self.timeline.length)))
        self._rates = np.geomspace(LOWEST, HIGHEST, steps)
        self.losses: list[float] = []
        self.over = False
        self._doubt = False  # whether the last loss was not finite
        self._ahead = False  # whether each loss is read before the update at its rate, as in Algorithm 1
        # What was there before the first update, by optimizer. A checkpoint may be loaded after this object is made, so
        # a hook copies it again just before the first step.
        self._first = [_First(one) for one in inside(optimizer)]
        self._seen = [False] * len(self._first)
        self._again = False  # whether the search resumed from a state without first weights
        self._watch()

    def _watch(self) -> None:
        for i, one in enumerate(inside(self._optimizer)):
            hook_once_compiled(one.register_step_pre_hook, self, partial(PeakSearch._before_update, i=i))

    def _before_update(self, i: int) -> None:
        """Keep what is there before the first update of this one of the optimizers inside, and what joins later."""
        optimizer = inside(self._optimizer)[i]
        if self._seen[i]:
            self._first[i].keep_added(optimizer)
        elif not only_makes_state(optimizer):
            if not (_is_new(optimizer) or self._again):
                raise ValueError(
                    'peak="auto" needs an optimizer that has made no update, because the run starts over after the '
                    "search: use a new optimizer, or autowarm.find_rate"
                )
            self._first[i], self._seen[i] = _First(optimizer), True

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch()  # a copied optimizer has lost its hooks

    # The interface of a `Phase`.

    name = "search"
    profile: Profile | None = None  # the rule that follows makes one, and looks at the weights that the search restores
    weights_trained: bool | None = None
    reduce = staticmethod(mean_loss)  # the same for all ranks, so they find the same peak
    is_broken = staticmethod(is_broken)

    @property
    def device(self) -> torch.device | None:
        """The device of the rates. The search waits for it once per update."""
        rate = self._optimizer.param_groups[0]["lr"]
        return rate.device if isinstance(rate, Tensor) else None

    @property
    def share(self) -> float:
        """The rate for the next update, in units of the first group's lr; it may be above 1."""
        made = max(0, len(self.losses) - self._ahead)
        return float(self._rates[min(made, len(self._rates) - 1)]) / self.timeline.plan.lr

    @property
    def steady_share(self) -> float:
        """Equal to `share`: the search has no warm-up."""
        return self.share

    def advance(self, updates: int, loss: float | None) -> None:
        """Record a loss and go on to the next rate, or end the search. Without a loss, the rate stays.

        A single non-finite loss is dropped: a bad batch gives one, but broken weights give a second. After as many
        updates without a loss as there are rates, the search gives up.
        """
        self.updates = self._host.updates = updates
        if loss is None:
            self.over = updates - self.timeline.origin - len(self.losses) >= len(self._rates)
            return
        doubt, self._doubt = self._doubt, not math.isfinite(loss)
        if self._doubt and not doubt:
            return
        if not self.losses and updates == 0:
            # Either the scheduler goes first, or a GradScaler skipped the first update because a gradient overflowed.
            self._ahead = all(one.has_finite_gradients() for one in self._first)
        self.losses.append(loss)
        self.over = has_broken(self.losses, len(self._rates)) or len(self.losses) >= len(self._rates)

    def notices(self) -> Notices:
        """No failures: during the search, a non-finite loss is an expected end."""
        return Notices(self.updates, 0, False, None)

    def on_host(self) -> HostRule:
        """The rule that follows the search, which has seen no loss yet."""
        return self._host

    def following(self) -> HostRule:
        """The run from its start, at the peak rate that the losses suggest for the remaining updates."""
        losses, timeline, plan = self.losses, self.timeline, self.timeline.plan
        left = max(1, timeline.length - (self.updates - timeline.origin))
        broken = bool(losses) and has_broken(losses, len(self._rates))
        if not broken and len(losses) < len(self._rates):
            guess, why = None, "step() got too few losses"
        else:
            found = RateSearch(self._rates[: len(losses)], np.array(losses), broken, total_steps=left)
            guess, why = found.guess, f"{found.reason}. `lowest` and the like are arguments of autowarm.find_rate"
        if guess is None:
            warnings.warn(f"no peak rate was found, so the lr stays at {plan.lr:g}: {why}", stacklevel=frames_of_ours())
        else:
            plan = plan.at(guess)
        for one, first in zip(inside(self._optimizer), self._first, strict=True):
            first.restore(one)
        return HostRule.begin(plan, self.updates, timeline.planned_steps, self._host.given_target_loss)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """The losses and what was there first; that is None before the first update, or if weights are sharded."""
        plain = Tensor, torch.nn.Parameter
        groups = (group for one in inside(self._optimizer) for group in one.param_groups)
        sharded = any(type(p) not in plain for group in groups for p in group["params"])
        begun = any(self._seen) or bool(self.losses)
        kept = zip(inside(self._optimizer), self._first, strict=True)
        search = {
            "losses": list(self.losses),
            "steps": len(self._rates),
            "ahead": self._ahead,
            "doubt": self._doubt,
            "begun": begun,
            "first": [first.state_dict(one) for one, first in kept] if begun and not sharded else None,
        }
        # torch.distributed.checkpoint loads a state into one with the same entries. It does not look into a tuple, so
        # a scheduler's state has the same entries in the search and after it.
        return {**self._host.state_dict(), "search": tuple(search.items())}

    @staticmethod
    def read(saved: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """The state of a search as a dictionary. Raise ValueError if it is damaged."""
        state = dict(saved)
        checks = {
            "losses": list_of(number),
            "steps": count,
            "ahead": boolean,
            "doubt": boolean,
            "begun": boolean,
            "first": optional(list_of(_is_first)),
        }
        check(state, checks, "search.")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `read` returns. Without the first weights, the search starts over from the current ones.

        ValueError says that the state is of other weights.
        """
        if state["first"] is None:
            self._again = state["begun"]
            return
        for one, first, saved in zip(inside(self._optimizer), self._first, state["first"], strict=True):
            first.load_state_dict(one, saved)
        self.losses, self._seen = list(state["losses"]), [True] * len(self._seen)
        self._ahead, self._doubt = state["ahead"], state["doubt"]
        # The run may have another length now, but the losses so far belong to these rates.
        self._rates = np.geomspace(LOWEST, HIGHEST, state["steps"])


def _is_first(x: Any) -> bool:
    return isinstance(x, Mapping) and all(isinstance(x.get(name), list) for name in ("weights", "state", "counters"))


class _First:
    """What one optimizer, its weights and its groups' counters were before the first update.

    Groups that are added later join with what they were before their own first update.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._weights: dict[Tensor, Tensor] = {}
        self._state: dict[Tensor, dict[str, Any]] = {}
        self._counters: dict[Tensor | None, dict[str, Any]] = {}  # by the group's first tensor
        # Moments and counts that an optimizer keeps so; PyTorch's own flags say what has been called.
        held = {name: x for name, x in vars(optimizer).items() if type(x) in (int, float, Tensor)}
        self._attributes = copy.deepcopy(held)
        self.keep_added(optimizer)

    def keep_added(self, optimizer: Optimizer) -> None:
        """Keep the groups that are not kept yet."""
        for group in optimizer.param_groups:
            if (key := first_tensor(group)) in self._counters:
                continue
            self._counters[key] = {name: copy.deepcopy(x) for name, x in group.items() if may_count(name, x)}
            for p in group["params"]:
                self._weights[p] = p.detach().clone()
                self._state[p] = copy.deepcopy(dict(optimizer.state[p])) if p in optimizer.state else {}

    def restore(self, optimizer: Optimizer) -> None:
        """Restore all of it. Gradients become zero: they were taken at the weights that this replaces."""
        self.keep_added(optimizer)
        optimizer.state.clear()
        vars(optimizer).update(self._attributes)
        for group in optimizer.param_groups:
            group.update(self._counters[first_tensor(group)])
        for p, content in self._weights.items():
            with torch.no_grad():
                p.copy_(content)
            if p.grad is not None:
                p.grad.zero_()
            if state := self._state[p]:
                optimizer.state[p] = state

    def has_finite_gradients(self) -> bool:
        return all(p.grad is None or bool(p.grad.isfinite().all()) for p in self._weights)

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        self.keep_added(optimizer)
        return {
            "weights": list(self._weights.values()),
            "state": [dict(state) for state in self._state.values()],
            "counters": [dict(counters) for counters in self._counters.values()],
        }

    def load_state_dict(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        self.keep_added(optimizer)
        here = list(self._weights)
        if [tuple(p.shape) for p in here[: len(saved["weights"])]] != [tuple(w.shape) for w in saved["weights"]]:
            raise ValueError("the saved search for the peak rate belongs to other weights")
        for p, content, state in zip(here, saved["weights"], saved["state"], strict=False):  # groups may be new
            self._weights[p] = content.to(p.device, p.dtype, copy=True)
            self._state[p] = copy.deepcopy(state)
        self._counters |= zip(self._counters, copy.deepcopy(saved["counters"]), strict=False)


def _is_new(optimizer: Optimizer) -> bool:
    """Whether no update was made. Some optimizers, such as Adagrad, have a state from the start."""
    return all(_is_unused(state) for state in optimizer.state.values() if state)


def _is_unused(state: Mapping[str, Any]) -> bool:
    step = float(state.get("step", 1))
    # A step that only makes the state may count as one, but leaves averages of gradients at 0, as no update does.
    return step == 0 or (step == 1 and any(isinstance(x, Tensor) and not local(x).any() for x in state.values()))
