"""Turns shares of the peak rate into the rates of an optimizer's parameter groups."""

import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..modes import in_normal_mode
from ..optim.wrapped import hook, inside
from ..rate.find import set_rate
from .core import Plan, State, steady_share

OUTSIDE = 3  # updates in a row whose rates others have set, before a warning


def first_peak(optimizer: Optimizer) -> float:
    """The peak rate of the first group that has one; a rate of 0 freezes its group."""
    given = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    peaks = [math.nan if lr is None else float(lr) for lr in given]  # Adafactor may have none
    if not all(lr >= 0 and math.isfinite(lr) for lr in peaks) or not any(peaks):
        need = "every group's lr must be finite and not negative, and one positive"
        raise ValueError(f"{need}, got {peaks}: the lr of the optimizer is the peak rate that the schedule rises to")
    return next(lr for lr in peaks if lr > 0)


@dataclass
class _Rate:
    """What is known of one group's rate, in plain numbers."""

    warms: bool = True  # whether the group has a warm-up
    scale: float = 1.0  # timm's ``lr_scale``
    factor: float = 1.0  # what others have made of the rate, at most 1
    before: float = 1.0  # the factor before others began to set the rate update after update
    last: float = 0.0  # the last change of others, as a share of what was written
    row: int = 0  # for how many updates in a row others have changed the rate
    aim: float = 0.0  # the rate without the factor
    written: float = 0.0


class GroupRates:
    """Writes rates into an optimizer's groups: peak · share · factor.

    What others make of a rate, by hand or by a scheduler beside ours, is the group's *factor*, at most 1. If they set
    the rate update after update, as a warm-up of their own or a cap does, theirs hold while that lasts and leave
    nothing behind. A scheduler beside ours in a `torch.optim.lr_scheduler.ChainedScheduler` multiplies the factor.

    A tensor rate is filled in place. Its version counter tells whether it has changed, and only then it is read.
    """

    others: tuple[int, float, float] | None = None
    """What the last `write` found of others: for how many updates in a row, the highest rate beside ours, and ours."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.rates: list[_Rate] = []
        self._optimizer = optimizer
        self._firsts: list[Tensor | None] = []  # by which a group is known, for it is in no other
        self._tensors: list[tuple[Tensor | None, int]] = []  # the tensor rate that was written, and its version then
        self._register()

    def _register(self) -> None:
        for one in inside(self._optimizer):
            hook(one.register_load_state_dict_post_hook, self, GroupRates.accept)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._register()
        for i, group in enumerate(self._optimizer.param_groups):  # the copied optimizer has other tensors
            self._tensors[i] = _noted(group["lr"] if _close(float(group["lr"]), self.rates[i].written) else None)

    @in_normal_mode
    def accept(self, *_: Any) -> None:
        """Take the present rates for written, as those that come with a checkpoint: they are nobody's change."""
        for i, (group, own) in enumerate(zip(self._optimizer.param_groups, self.rates, strict=False)):
            if isinstance(group["lr"], Tensor) and group["lr"].is_inference():
                group["lr"] = group["lr"].clone()
            own.written = float(group["lr"])
            self._tensors[i] = _noted(group["lr"])

    @in_normal_mode
    def adopt(self, peaks: list[float]) -> bool:
        """Take over groups that were added, with their peaks; say whether there were any. Raise if groups have gone."""
        groups = self._optimizer.param_groups
        firsts = [group["params"][0] if group["params"] else None for group in groups]
        if len(groups) == len(self.rates) and all(map(operator.is_, firsts, self._firsts)):
            return False
        known = {id(first): i for i, first in enumerate(self._firsts) if first is not None}
        if len(groups) == len(self.rates):  # tensors may have been replaced where they were
            places = [known.get(id(first), i) for i, first in enumerate(firsts)]
        else:
            left = iter(i for i, first in enumerate(self._firsts) if first is None)
            places = [next(left, -1) if first is None else known.get(id(first), -1) for first in firsts]
        if [i for i in places if i >= 0] != list(range(len(self.rates))):
            raise ValueError(
                f"the optimizer's {len(self.rates)} parameter groups were removed, replaced or put in another order, "
                f"and are {len(groups)} now: make a new scheduler"
            )
        self._firsts = firsts
        taken = [group["lr"] for group, place in zip(groups, places, strict=True) if place >= 0]
        for i, group in enumerate(groups):
            if places[i] < 0:
                self._add(i, group, peaks, taken)
        return True

    def _add(self, i: int, group: dict[str, Any], peaks: list[float], taken: list[Any]) -> None:
        rate, warms, scale = group["lr"], group.get("warmup", True), group.get("lr_scale", 1.0)
        if not (float(rate) >= 0 and math.isfinite(rate)):
            raise ValueError(f"a parameter group was added with lr={rate}: it must be finite and not negative")
        if not isinstance(warms, bool):
            raise ValueError(f"parameter group {i} has warmup={warms!r}: it must be True or False")
        if isinstance(rate, Tensor):
            # PyTorch puts one tensor into all groups and `defaults`, but we write each group's rate in place. The first
            # keeps it, for a captured graph may read it; one made in inference mode could not be filled.
            if rate.is_inference() or any(rate is other for other in taken):
                group["lr"] = rate = rate.clone()
            taken.append(rate)
            for one in (self._optimizer, *inside(self._optimizer)):
                if isinstance(given := one.defaults.get("lr"), Tensor) and given is rate:
                    one.defaults["lr"] = given.clone()
        peak = float(group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate))
        if len(peaks) < len(self._optimizer.param_groups):
            peaks.insert(i, peak)
        self.rates.insert(i, _Rate(warms, float(scale), aim=float(rate), written=float(rate)))
        self._tensors.insert(i, _noted(rate))

    def write(self, peaks: Sequence[float], plan: Plan, state: State, composed: bool = False) -> list[float]:
        """Set every group's rate, and return the rates. If PyTorch has ``composed`` others with ours, they multiply."""
        groups, written = self._optimizer.param_groups, []
        self.others, first = None, groups[0]["lr"]
        if not (isinstance(first, Tensor) or first or any(group["lr"] for group in groups)):
            self.accept()  # a loop may skip a batch by rates of 0, which are no factor
        for i, (group, own) in enumerate(zip(groups, self.rates, strict=True)):
            rate = group["lr"]
            tensor, version = self._tensors[i]
            if not isinstance(rate, Tensor):
                changed = rate != own.written
            else:
                same = tensor is rate and version == rate._version
                changed = not (same or _close(float(rate), own.written))
            if changed:
                self._follow(own, float(rate), i, composed)
            elif own.row:
                own.row, own.before = 0, own.factor
            own.aim = aim = peaks[i] * own.scale * (state.share if own.warms else steady_share(plan, state))
            own.written = aim * own.factor
            if isinstance(rate, Tensor):
                rate.fill_(own.written)
                self._tensors[i] = rate, rate._version
            else:
                group["lr"] = own.written
            written.append(own.written)
        return written

    def _follow(self, own: _Rate, rate: float, i: int, composed: bool) -> None:
        """Make a factor of a rate that others have changed."""
        if not (rate >= 0 and math.isfinite(rate)):
            raise ValueError(f"the lr of parameter group {i} was set to {rate} from outside the schedule")
        change = rate / own.written if own.written > 0 else 0.0
        alike, own.last = _close(change, own.last), change
        own.row = 0 if composed else own.row + 1
        # Two changes in a row by different shares are rates that somebody sets; by the same, or one alone, a factor.
        if own.row > 1 and not alike:
            own.factor = own.before
        elif own.aim > 0:
            own.factor = min(1.0, rate / own.aim)
        if composed:
            own.before = own.factor
        sets = composed and rate > own.aim * (1 + 1e-6)  # as LambdaLR does, and no product
        if (own.row or sets) and (self.others is None or change > self.others[1] / self.others[2]):
            self.others = max(1, own.row), rate, own.written

    def forget(self) -> None:
        """Forget what others have made of the rates."""
        for own in self.rates:
            own.factor, own.before, own.row = 1.0, 1.0, 0

    def state_dict(self) -> list[dict[str, Any]]:
        """For each group its rate now, and what is known of it."""
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        return [{"now": now, **asdict(own)} for now, own in zip(rates, self.rates, strict=True)]

    def load_state_dict(self, saved: list[dict[str, Any]]) -> None:
        """Write the rates as saved: another scheduler may have changed them. Groups that were added keep theirs."""
        for i, (group, row) in enumerate(zip(self._optimizer.param_groups, saved, strict=False)):
            self.rates[i] = _Rate(**{name: x for name, x in row.items() if name != "now"})
            set_rate(group, row["now"])
            self._tensors[i] = _noted(group["lr"] if row["now"] == row["written"] else None)


def _noted(rate: Any) -> tuple[Tensor | None, int]:
    """A tensor rate and its version; of any other rate nothing needs to be remembered."""
    return (rate, rate._version) if isinstance(rate, Tensor) else (None, 0)


def _close(one: float, other: float) -> bool:
    """Whether two numbers are equal but for the rounding of a float32 rate."""
    return abs(one - other) <= 1e-6 * abs(other)
