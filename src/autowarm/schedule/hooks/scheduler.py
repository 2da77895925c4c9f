"""A scheduler that sets rates by a rule, through PyTorch's own hooks."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...optim.known import unwrapped
from ..rule import Formula, HostRule, Observation, Ranks, Rule, rule_for
from ..search import PeakSearch
from .alarms import Alarms
from .clock import UpdateClock, hook
from .others import schedulers_beside, unwanted
from .rates import GroupRates

__all__ = ["RuleScheduler"]


class RuleScheduler(LRScheduler):
    """Drives a rule: each step counts the updates, reduces the losses, advances the rule and writes the rates.

    All of this happens in the methods that PyTorch's schedulers have for it (``get_lr``, ``_initial_step``,
    ``_update_lr``), so SequentialLR, ChainedScheduler and trainers that call only ``step()`` work.

    Args:
        optimizer: the optimizer whose rates are set.
        formula: the arguments of `Formula`, from which each new rule is made.
        ranks, alarms: see their classes.
        searches: whether the run begins with a search for its peak rate.
    """

    def __init__(
        self, optimizer: Optimizer, formula: dict[str, Any], ranks: Ranks, alarms: Alarms, *, searches: bool
    ) -> None:
        optimizer = unwrapped(optimizer)  # a trainer's wrapper has no step hooks of its own
        self._formula_arguments, self._ranks, self._alarms, self._searches = formula, ranks, alarms, searches
        self._rule: Rule = HostRule(Formula(**formula))
        self._pending: list[Observation] = []
        self._in_use = False  # whether this scheduler has stepped since the last update
        self._changes = 0  # how often a rate was not as written
        self._clock = UpdateClock(optimizer)
        self._rates = GroupRates(optimizer)
        super().__init__(optimizer)
        self._watch_groups()

    def get_lr(self) -> list[float | Tensor]:
        """The rates for the next update: each group's peak rate times its share."""
        return self._rates.aims(self.base_lrs, self._rule)

    def _initial_step(self) -> None:
        self._step_count = 1
        self._rates.adopt(self.base_lrs)
        self._restart()

    def _first_rule(self) -> Rule:
        host = HostRule(Formula(**self._formula_arguments))
        return PeakSearch(self.optimizer, host) if self._searches else host

    def _end_search(self, search: PeakSearch) -> None:
        """Start the run over at the peak rate that was found."""
        given, found = self._formula_arguments["lr"], search.found
        peak = found.guess
        if peak is None:
            self._alarms.warn(
                "unknown peak",
                f"no peak rate was found, so the lr stays at {given:g}: {found.reason}. `lowest` and the like are "
                "arguments of autowarm.find_rate",
            )
            peak = given
        search.restore()
        for i, group in enumerate(self.optimizer.param_groups):
            self.base_lrs[i] = group["initial_lr"] = self.base_lrs[i] * (peak / given)
        self._formula_arguments["lr"] = peak
        rule = HostRule(Formula(**self._formula_arguments))
        rule.updates = self.last_epoch
        rule.rewarm(rule.formula.planned_steps, rule.formula.told)
        self._rule = rule

    def _restart(self) -> None:
        self.last_epoch = 0
        self._rule = self._first_rule()
        self._pending = []
        self._clock.restart()
        self._rates.restart()
        self._write()

    def _update_lr(self, epoch: int | None = None) -> None:
        # Only SequentialLR passes an epoch, to start this scheduler at a milestone.
        if epoch is not None:
            if epoch != 0:
                raise ValueError(
                    f"AdaptiveWarmup can restart only at step 0, not at {epoch}: it depends on past losses"
                )
            self._restart()
            return
        if self.optimizer is not self._clock.optimizer or len(self.optimizer.param_groups) != len(self._rates.warms):
            self._follow_optimizer()
        self._in_use = True
        others = self._look_for_others()
        lost = self._rates.notice()
        observations, self._pending = self._pending, []
        made = self._clock.tick(observations)
        searching = isinstance(self._rule, PeakSearch)
        if made is None and not searching:
            observations = []  # a skipped update counts neither as a step nor as an observation
        # Every rank gets here at every call, so a rank that alone skipped an update is found, and nobody waits for it.
        updates = self.last_epoch + (made or 0)
        loss = self._rule.reduce(updates, observations, self._ranks)
        if made is None and searching:
            # Once the weights are broken, a GradScaler skips every update, so the search must see these losses.
            made, loss = (None, None) if loss is None or math.isfinite(loss) else (0, loss)
        if made is not None:
            self._rule.advance(updates, loss)
            self.last_epoch = updates
            if isinstance(self._rule, PeakSearch) and self._rule.over:
                self._end_search(self._rule)
            self._write()
        notices, total = self._rule.notices(), self._rule.formula.total_steps
        near_end = total is not None and updates + 1 >= total
        if near_end or loss is None or notices.failures or notices.disagree:
            if notices.disagree:
                raise RuntimeError(
                    "ranks disagree: AdaptiveWarmup has different steps or settings on them, at or shortly before step "
                    f"{self.last_epoch}; this rank's settings are {self._ranks.settings}"
                )
            self._alarms.check(
                notices, updates, self._rule, self._clock, skipped=made is None, observed=loss is not None
            )
        if lost is not None and not others:
            self._alarms.warn("raised", lost)
        rate = self.optimizer.param_groups[0]["lr"]
        if isinstance(rate, Tensor) or self._rule.device is not None:
            self._rule = rule_for(rate, self._rule)

    def _write(self) -> None:
        self._last_lr = self._rates.write(self.base_lrs, self._rule)

    @property
    def _formula(self) -> Formula:
        return self._rule.formula

    # Groups and optimizers that change during the run.

    def _watch_groups(self) -> None:
        hook(self.optimizer.register_step_pre_hook, self, RuleScheduler._before_update)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch_groups()  # a copied optimizer has lost its hooks

    def _before_update(self, *_: Any) -> None:
        if len(self.optimizer.param_groups) != len(self._rates.warms):
            self._adopt_groups()  # before new groups make an update at their peak rates
        self._clock.pretended = self._rates.are_put_out()
        if torch.compiler.is_compiling() or self._clock.pretended:
            return
        if self._in_use or self.last_epoch == 0:
            self._look_for_others()
            self._in_use = False

    def _look_for_others(self) -> bool:
        """Name another scheduler that sets the rates. Before the first update, rates that the user has set are peaks.

        Returns:
            Whether there is another scheduler.
        """
        if not self._rates.changed():
            return False
        if "other scheduler" in self._alarms.said:
            return True
        self._changes += 1
        if self._changes & (self._changes - 1):
            return False  # looking takes a while, so look at the first change, the second, the fourth, …
        beside = schedulers_beside(self)
        # A scheduler that was made and never stepped has been replaced, and complains of nothing.
        if self._in_use and (others := unwanted(beside, self)):
            mine = type(self).__name__
            self._alarms.warn(
                "other scheduler",
                f"{' and '.join(others)} sets the rates of this optimizer too, so its updates do not use the rates of "
                + (f"either {mine}: keep one of them" if mine in others else f"{mine}: delete it")
                + ", or step both through torch.optim.lr_scheduler.ChainedScheduler if their product is wanted",
            )
            return True
        started = isinstance(self._rule, PeakSearch) or self._rule.on_host().started
        if not beside and self.last_epoch == 0 and not started and (peaks := self._rates.new_peaks()) is not None:
            self._restart_at(peaks)
        return False

    def _restart_at(self, peaks: list[Any]) -> None:
        for i, (group, peak) in enumerate(zip(self.optimizer.param_groups, peaks, strict=True)):
            self.base_lrs[i] = group["initial_lr"] = peak
        self._formula_arguments["lr"] = next(lr for lr in map(float, peaks) if lr > 0)
        self._rule = self._first_rule()
        self._rates.restart()
        self._write()

    def _adopt_groups(self) -> None:
        self._rates.notice()
        self._rates.adopt(self.base_lrs)
        self._write()

    def _follow_optimizer(self) -> None:
        """Take over an optimizer that was replaced and groups that were added."""
        if self.optimizer is not self._clock.optimizer:
            # A trainer has replaced or wrapped the optimizer.
            self.optimizer = unwrapped(self.optimizer)
            if self.optimizer is not self._clock.optimizer:
                self._clock.watch(self.optimizer)
                self._rates = GroupRates(self.optimizer)
                self._rates.adopt(self.base_lrs)
                self._watch_groups()
                self._write()
        if len(self.optimizer.param_groups) != len(self._rates.warms):
            self._adopt_groups()
