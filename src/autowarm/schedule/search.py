"""The search for the peak rate in a run's first updates: what ``peak="auto"`` does before the warm-up."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ..rangetest import RateSearch, has_broken
from .hooks.clock import hook, inside
from .rule import Formula, HostRule, Notices, Observation, Ranks
from .rule.reduce import reduce_observations

__all__ = ["LEAST_STEPS", "PeakSearch"]

LOWEST, HIGHEST = 1e-6, 100.0  # rates tried, as in `autowarm.find_rate`
_SHARE, _FEWEST, _MOST = 0.1, 30, 100  # length of the search: share of the run, and bounds in updates
LEAST_STEPS = 100  # the shortest run that has room for a search


class PeakSearch:
    """A rule whose rates rise by a constant factor until the loss breaks; then the run starts over.

    This is `autowarm.find_rate` inside a run. The optimizer must be new, because the search ends by restoring the
    weights from before the first update and emptying the optimizer's state.

    Args:
        optimizer: its weights are copied just before its first update.
        host: the rule of a run that has not begun; its lr is the unit of `share`.

    Attributes:
        losses: the losses so far; only the last one may be non-finite.
        over: whether the search is over.

    Raises:
        ValueError: at the first update, if the optimizer already has state; at once, if its updates may be replays of a
            captured graph.
    """

    def __init__(self, optimizer: Optimizer, host: HostRule) -> None:
        if any(group.get("capturable") for group in optimizer.param_groups):
            raise ValueError(
                'peak="auto" empties the optimizer\'s state after its search, which a captured graph does not see: use '
                "autowarm.find_rate before the capture"
            )
        self._optimizer, self._host = optimizer, host
        steps = int(min(_MOST, max(_FEWEST, _SHARE * self.formula.length)))
        self._rates = np.geomspace(LOWEST, HIGHEST, steps)
        self.losses: list[float] = []
        self.over = False
        # The weights before the first update, by optimizer. A checkpoint may be loaded after this object is made, so a
        # hook copies them again just before the first step; a compiled step runs no hooks and keeps these copies.
        self._first = [_copies(one) for one in inside(optimizer)]
        self._seen = [False] * len(self._first)
        self._again = False  # whether the search resumed from a state without first weights
        self._watch()

    def _watch(self) -> None:
        for i, one in enumerate(inside(self._optimizer)):

            def keep(search: "PeakSearch", inner: Optimizer, *_: Any, i: int = i) -> None:
                if not search._seen[i] and not torch.compiler.is_compiling():
                    if any(inner.state.values()) and not search._again:
                        raise ValueError(
                            'peak="auto" needs an optimizer that has made no update, because the run starts over after '
                            "the search: use a new optimizer, or autowarm.find_rate"
                        )
                    search._first[i], search._seen[i] = _copies(inner), True

            hook(one.register_step_pre_hook, self, keep)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch()  # a copied optimizer has lost its hooks

    # The interface of a `Rule`.

    @property
    def device(self) -> torch.device | None:
        """The device of the rates. The search waits for it once per update."""
        rate = self._optimizer.param_groups[0]["lr"]
        return rate.device if isinstance(rate, Tensor) else None

    @property
    def formula(self) -> Formula:
        """The schedule that follows the search."""
        return self._host.formula

    @property
    def share(self) -> float:
        """The rate for the next update, in units of the first group's lr; it may be above 1."""
        return float(self._rates[min(len(self.losses), len(self._rates) - 1)]) / self.formula.lr

    @property
    def steady_share(self) -> float:
        """Equal to `share`: the search has no warm-up."""
        return self.share

    def reduce(self, updates: int, observations: Sequence[Observation], ranks: Ranks) -> float | None:
        """As `HostRule.reduce`. All ranks get the same losses, so they find the same peak."""
        return reduce_observations(observations, ranks, updates)

    def advance(self, updates: int, loss: float | None) -> None:
        """Record a loss and go on to the next rate, or end the search. Without a loss, the rate stays."""
        self._host.updates = updates
        if loss is not None:
            self.losses.append(loss)
            self.over = has_broken(self.losses, len(self._rates)) or len(self.losses) == len(self._rates)

    def notices(self) -> Notices:
        """No failures: during the search, a non-finite loss is an expected end."""
        return Notices(self._host.updates, 0, False, None)

    def on_host(self) -> HostRule:
        """The rule that follows the search, which has seen no loss yet."""
        return self._host

    # The end of the search.

    @property
    def found(self) -> RateSearch:
        """The loss at each rate, and the peak rate that the losses suggest for the remaining updates."""
        losses, formula = self.losses, self.formula
        left = max(1, formula.length - (self._host.updates - formula.origin))
        return RateSearch(
            self._rates[: len(losses)], np.array(losses), has_broken(losses, len(self._rates)), total_steps=left
        )

    def restore(self) -> None:
        """Restore the weights from before the first update, and empty the optimizer's state."""
        with torch.no_grad():
            for one, first in zip(inside(self._optimizer), self._first, strict=True):
                one.state.clear()
                for p, content in zip(_weights(one), first, strict=False):  # groups may have been added since
                    p.copy_(content)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """The losses and the first weights. The weights are None before the first loss, or if they are sharded."""
        plain = Tensor, torch.nn.Parameter
        sharded = any(type(p) not in plain for one in inside(self._optimizer) for p in _weights(one))
        first = None if sharded or not self.losses else [list(weights) for weights in self._first]
        return {"losses": list(self.losses), "first": first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`. If it lacks the first weights, the search starts over from the current ones."""
        if state["first"] is None:
            self._again = bool(state["losses"])
            return
        self.losses, self._seen = list(state["losses"]), [True] * len(self._seen)
        self._first = [
            [content.to(p.device, p.dtype, copy=True) for p, content in zip(_weights(one), first, strict=True)]
            for one, first in zip(inside(self._optimizer), state["first"], strict=True)
        ]


def _copies(optimizer: Optimizer) -> list[Tensor]:
    return [p.detach().clone() for p in _weights(optimizer)]


def _weights(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
