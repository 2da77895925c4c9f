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
_SHARE, _FEWEST, _MOST = 0.1, 30, 100  # updates that it may take: of the run, at least, at most
LEAST_STEPS = 100  # of a run that has room for a search


class PeakSearch:
    """A rule whose rates rise by a constant factor until the loss breaks; then the run begins again where it began.

    It is `autowarm.find_rate` inside a run. The optimizer must be new: at the end, the weights are those from before
    the first update, and the optimizer's state is empty again.

    Args:
        optimizer: whose weights are copied at its first update.
        host: the rule of a run that has not begun; its lr is the unit of `share`.

    Attributes:
        losses: so far; the last one may be non-finite.
        over: whether the losses suffice.

    Raises:
        ValueError: at the first update, if the optimizer has state already; at once, if its updates may be replays of a
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
        # The weights before the first update, by optimizer. They may be loaded after this object is made, so each
        # optimizer's are copied again when it is about to step; a compiled step sees no hooks.
        self._first = [_copies(one) for one in inside(optimizer)]
        self._seen = [False] * len(self._first)
        self._again = False  # whether it goes on from a state without first weights
        self._watch()

    def _watch(self) -> None:
        for i, one in enumerate(inside(self._optimizer)):

            def keep(search: "PeakSearch", inner: Optimizer, *_: Any, i: int = i) -> None:
                if not search._seen[i] and not torch.compiler.is_compiling():
                    if any(inner.state.values()) and not search._again:
                        raise ValueError(
                            'peak="auto" needs an optimizer that has made no update, since the run begins again after '
                            "the search: use a new optimizer, or autowarm.find_rate"
                        )
                    search._first[i], search._seen[i] = _copies(inner), True

            hook(one.register_step_pre_hook, self, keep)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch()  # a copied optimizer has lost its hooks

    # What a scheduler knows of a rule.

    @property
    def device(self) -> torch.device | None:
        """The rates': the search waits for them there, once an update."""
        rate = self._optimizer.param_groups[0]["lr"]
        return rate.device if isinstance(rate, Tensor) else None

    @property
    def formula(self) -> Formula:
        """The schedule that follows."""
        return self._host.formula

    @property
    def share(self) -> float:
        """The rate for the next update, in units of the first group's lr; it may be above 1."""
        return float(self._rates[min(len(self.losses), len(self._rates) - 1)]) / self.formula.lr

    @property
    def steady_share(self) -> float:
        """The same: the search knows no warm-up."""
        return self.share

    def reduce(self, updates: int, observations: Sequence[Observation], ranks: Ranks) -> float | None:
        """As `HostRule.reduce`: ranks have the same losses, and so find the same peak."""
        return reduce_observations(observations, ranks, updates)

    def advance(self, updates: int, loss: float | None) -> None:
        """Take a loss and go on to the next rate, or end. Without a loss the rate stays."""
        self._host.updates = updates
        if loss is not None:
            self.losses.append(loss)
            self.over = has_broken(self.losses, len(self._rates)) or len(self.losses) == len(self._rates)

    def notices(self) -> Notices:
        """Nothing is amiss: a loss that is not finite ends the search."""
        return Notices(self._host.updates, 0, False, None)

    def on_host(self) -> HostRule:
        """The rule that follows, as it stands before its first loss."""
        return self._host

    # The end.

    @property
    def found(self) -> RateSearch:
        """The losses over the rates, and what they suggest for the updates that are left."""
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
                for p, content in zip(_weights(one), first, strict=False):  # more may have been added meanwhile
                    p.copy_(content)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """The losses and the first weights; None in their place before the first update, or if they are sharded."""
        plain = Tensor, torch.nn.Parameter
        sharded = any(type(p) not in plain for one in inside(self._optimizer) for p in _weights(one))
        first = None if sharded or not self.losses else [list(weights) for weights in self._first]
        return {"losses": list(self.losses), "first": first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. Without the first weights the search begins again, from the present ones."""
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
