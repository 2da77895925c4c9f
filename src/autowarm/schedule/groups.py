"""Writes the rates of an optimizer's parameter groups: each group's peak rate times the schedule's share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from ..others.wrapped import hook, inside
from ..rate.find import set_rate
from ..rate.restore import first_tensor
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
class Rate:
    """One group's rate: its peak, and what was written last."""

    first: Tensor | None  # the group's first tensor, by which it is known; empty groups, with None, share one rate
    peak: float  # which the schedule rises to, and falls from
    warms: bool  # whether the group has a warm-up
    scale: float  # timm's ``lr_scale``
    written: float  # the rate of the last write
    tensor: Tensor | None = None  # a tensor rate, and its version when it was written
    version: int = 0
    changes: int = 0  # for how many updates in a row others have changed the rate

    @classmethod
    def of(cls, i: int, group: dict[str, Any]) -> Self:
        """The rate of a group that is new to the schedule; ValueError says what is wrong with it."""
        lr, warms = group["lr"], group.get("warmup", True)
        if not (float(lr) >= 0 and math.isfinite(lr)):
            raise ValueError(f"a parameter group was added with lr={lr}: it must be finite and not negative")
        if not isinstance(warms, bool):
            raise ValueError(f"parameter group {i} has warmup={warms!r}: it must be True or False")
        peak = float(group.setdefault("initial_lr", lr.clone() if isinstance(lr, Tensor) else lr))
        rate = cls(first_tensor(group), peak, warms, float(group.get("lr_scale", 1.0)), float(lr))
        rate.note(lr)
        return rate

    def note(self, lr: float | Tensor) -> None:
        """Remember what was written. A tensor's version counter then tells whether it has changed, without a read."""
        self.tensor, self.version = (lr, lr._version) if isinstance(lr, Tensor) else (None, 0)

    def is_at(self, lr: float | Tensor) -> bool:
        """Whether this is the rate that was written last."""
        return (lr is self.tensor and self.tensor._version == self.version) or _close(float(lr), self.written)


# The rates that the latest schedule of each optimizer has written.
_latest: "WeakKeyDictionary[Optimizer, list[Rate]]" = WeakKeyDictionary()


class GroupRates:
    """Owns the rates of an optimizer's groups: at each write every rate is peak × share, whatever it was before.

    A tensor rate is filled in place.

    Attributes:
        rates: a `Rate` for each group, in the order of the groups.
        peak: the first positive peak rate, or 0.
        outside: for how many updates in a row others have changed a rate, to what, and what had been written; None
            below `OUTSIDE`.
        follows: whether another schedule of ours has written this optimizer's rates.
        unsettled: a group's lr and initial_lr, where others have left both: nobody can say which is the peak.
    """

    outside: dict[str, float] | None = None
    unsettled: dict[str, float] | None = None
    peak = 0.0

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self.rates = optimizer, list[Rate]()
        self._peaks: list[float] = []  # those of the rates, to see whether a user has changed one
        # What the schedule before has written, if it was one of ours.
        written = {rate.first: rate for rate in _latest.get(optimizer, ())}
        self.follows = bool(written)
        filled = [rate for rates in _latest.values() for rate in rates if rate.tensor is not None]
        for i, group in enumerate(optimizer.param_groups):
            lr, first = group["lr"], first_tensor(group)
            if any(lr is rate.tensor and first is not rate.first for rate in filled):
                filler = "is a tensor that another optimizer's schedule fills"
                raise ValueError(f"the lr of parameter group {i} {filler}: give each optimizer its own, lr.clone()")
            peak = float(group.get("initial_lr", lr))
            if (known := written.get(first)) is None and peak != float(lr):
                self.unsettled = {"lr": float(lr), "peak": peak}
            elif known is not None and not _close(float(lr), known.written):
                group.pop("initial_lr", None)  # the lr was set by hand since then, so it is the peak
        self._register()

    def _register(self) -> None:
        _latest[self._optimizer] = self.rates
        for one in inside(self._optimizer):
            hook(one.register_load_state_dict_post_hook, self, GroupRates.accept)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for group, rate in zip(self._optimizer.param_groups, self.rates, strict=True):  # with copies of the tensors
            rate.note(group["lr"] if _close(float(group["lr"]), rate.written) else rate.written)
        self._register()

    @property
    def untouched(self) -> bool:
        """Whether all groups still have the rates that were written."""
        groups = self._optimizer.param_groups
        return all(rate.is_at(group["lr"]) for group, rate in zip(groups, self.rates, strict=False))

    def accept(self, *_: Any) -> None:
        """Take the present rates for written, as those that come with a checkpoint: they are nobody's change."""
        for group, rate in zip(self._optimizer.param_groups, self.rates, strict=False):
            rate.written = float(group["lr"])  # the one read of a device, once a load
            rate.note(group["lr"])

    def adopt(self, peaks: list[float]) -> bool:
        """Bring the rates and ``peaks`` in line with the optimizer's groups; say whether any came, moved or went."""
        groups = self._optimizer.param_groups
        same = len(groups) == len(self.rates)
        for group, rate in zip(groups, self.rates, strict=False):  # a compiler traces this
            same = same and (group["params"][0] if group["params"] else None) is rate.first
        if not same:
            self._line_up(peaks)
        return not same

    def _line_up(self, peaks: list[float]) -> None:
        for rate, peak in zip(self.rates, peaks, strict=False):
            rate.peak = peak  # which a user may have changed since the last write
        known, groups = {rate.first: rate for rate in self.rates}, self._optimizer.param_groups
        tensors = [group["lr"] for group in groups if first_tensor(group) in known]
        for i, group in enumerate(groups):
            if (first := first_tensor(group)) not in known:  # it joins at its own rate as its peak
                self._separate(group, tensors)
                known[first] = Rate.of(i, group)
        self.rates[:] = [known[first_tensor(group)] for group in groups]
        peaks[:] = [rate.peak for rate in self.rates]
        self._take_peaks(peaks)

    def _separate(self, group: dict[str, Any], tensors: list[Any]) -> None:
        """Give a new group a tensor rate of its own, which can be filled in place.

        PyTorch puts one tensor into all groups and `defaults`. The first group keeps it: a captured graph may read it.
        """
        given = rate = group["lr"]
        if not isinstance(rate, Tensor):
            return
        if any(rate is other for other in tensors):
            group["lr"] = rate = rate.clone()
        tensors.append(rate)
        for one in (self._optimizer, *inside(self._optimizer)):
            if one.defaults.get("lr") is given:
                one.defaults["lr"] = rate.clone()

    def write(self, peaks: list[float], factor: float, plan: Plan, state: State) -> list[float]:
        """Set every group's rate to peak × factor × share, and return the rates."""
        self.adopt(peaks)
        if peaks != self._peaks:
            self._take_peaks(peaks)
        self.outside, rates = None, []
        for group, rate in zip(self._optimizer.param_groups, self.rates, strict=True):
            lr, share = group["lr"], state.share if rate.warms else steady_share(plan, state)
            # What is not the rate written last has come from outside: it is counted, and overwritten.
            untouched = rate.is_at(lr) if isinstance(lr, Tensor) else lr == rate.written
            rate.changes = 0 if untouched else rate.changes + 1
            if rate.changes >= OUTSIDE:
                self.outside = {"row": rate.changes, "rate": float(lr), "written": rate.written}
            rate.written = rate.peak * factor * rate.scale * share
            rates.append(rate.written)
            if isinstance(lr, Tensor):
                lr.fill_(rate.written)
                rate.tensor, rate.version = lr, lr._version
            else:
                group["lr"] = rate.written
        return rates

    def _take_peaks(self, peaks: Sequence[float]) -> None:
        """Take the peaks that a user has put into `base_lrs`, also for a later schedule of this optimizer."""
        numbers = list(map(float, peaks))
        if len(numbers) != len(self.rates) or min(numbers, default=0.0) < 0 or not all(map(math.isfinite, numbers)):
            need = f"a finite peak rate, 0 or more, for each of the {len(self.rates)} parameter groups"
            raise ValueError(f"base_lrs must hold {need}, got {numbers}")
        for group, rate, peak in zip(self._optimizer.param_groups, self.rates, numbers, strict=True):
            if rate.peak != peak:
                rate.peak = group["initial_lr"] = peak
        self._peaks, self.peak = numbers, next(filter(None, numbers), 0.0)

    def state_dict(self, peaks: list[float]) -> list[dict[str, Any]]:
        """For each group its rate now, its peak, and what is known of it."""
        self.adopt(peaks)
        return [
            {"now": float(group["lr"]), "peak": float(peak), "warms": rate.warms, "scale": rate.scale,
             "written": rate.written, "changes": rate.changes}
            for group, rate, peak in zip(self._optimizer.param_groups, self.rates, peaks, strict=True)
        ]  # fmt: skip

    def load_state_dict(self, saved: list[dict[str, Any]]) -> list[float]:
        """Write the rates as saved, and return the peaks: another scheduler may have changed the rates.

        Groups that the state does not know keep theirs.
        """
        self.unsettled = None
        for group, rate, row in zip(self._optimizer.param_groups, self.rates, saved, strict=False):
            vars(rate).update({name: x for name, x in row.items() if name != "now"})
            set_rate(group, row["now"])  # not what was written, where others had changed it
            rate.note(group["lr"] if row["now"] == row["written"] else rate.written)
        self._take_peaks([rate.peak for rate in self.rates])
        return [*self._peaks]


def _close(one: float, other: float) -> bool:
    """Whether two numbers are equal but for the rounding of a float32 rate."""
    return abs(one - other) <= 1e-6 * abs(other)
