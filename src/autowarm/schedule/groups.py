"""Writes the rates of an optimizer's parameter groups: each group's peak rate times the schedule's share."""

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from .._torch.modes import in_normal_mode
from ..others.wrapped import hook, inside
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
class Rate:
    """One group's rate: its peak, and what was written last."""

    peak: float
    warms: bool  # whether the group has a warm-up
    scale: float  # timm's ``lr_scale``
    written: float
    tensor: Tensor | None = None  # a tensor rate, and its version when it was written
    version: int = 0
    changes: int = 0  # for how many updates in a row others have changed the rate

    @classmethod
    def of(cls, i: int, group: dict[str, Any], defaults: dict[str, Any]) -> Self:
        """The rate of a group that is new to the schedule; ValueError says what is wrong with it."""
        lr, warms = group["lr"], group.get("warmup", True)
        if not (float(lr) >= 0 and math.isfinite(lr)):
            raise ValueError(f"a parameter group was added with lr={lr}: it must be finite and not negative")
        if not isinstance(warms, bool):
            raise ValueError(f"parameter group {i} has warmup={warms!r}: it must be True or False")
        if "decay" in group and "decay" not in defaults:  # of which some optimizers have one of their own
            raise ValueError(
                f"parameter group {i} has decay={group['decay']!r}, and no group has a decay of its own: give "
                "decay= to AdaptiveWarmup, for all groups, or warmup=False to a group"
            )
        peak = float(group.setdefault("initial_lr", lr.clone() if isinstance(lr, Tensor) else lr))
        rate = cls(peak, warms, float(group.get("lr_scale", 1.0)), float(lr))
        rate.note(lr)
        return rate

    def note(self, lr: float | Tensor) -> None:
        """Remember what was written. A tensor's version counter then tells whether it has changed, without a read."""
        self.tensor, self.version = (lr, lr._version) if isinstance(lr, Tensor) else (None, 0)

    def is_at(self, lr: float | Tensor) -> bool:
        """Whether this is the rate that was written last."""
        if not isinstance(lr, Tensor):
            return lr == self.written
        return (lr is self.tensor and lr._version == self.version) or _close(float(lr), self.written)


# The rates that the latest schedule of each optimizer has written, by `_key`; and the tensors that schedules fill.
_latest: "WeakKeyDictionary[Optimizer, dict[int, Rate]]" = WeakKeyDictionary()
_filled: "dict[Tensor, bool]" = WeakTensorKeyDictionary()  # type: ignore[assignment]


class GroupRates:
    """Owns the rates of an optimizer's groups: at each write every rate is peak × share, whatever it was before.

    A tensor rate is filled in place.

    Attributes:
        outside: for how many updates in a row others have changed a rate, to what, and what had been written; None
            below `OUTSIDE`.
        follows: whether another schedule of ours has written this optimizer's rates.
        unsettled: a group's lr and initial_lr, where an unknown scheduler or a loaded state has left both, so that
            nobody can say which of them is the peak.
    """

    outside: dict[str, float] | None = None

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._rates: dict[int, Rate] = {}  # by `_key`, in the order of the groups
        self._firsts: list[Tensor | None] = []  # whose ids are the keys
        self.unsettled: tuple[float, float] | None = None
        written = _latest.get(optimizer, {})
        self.follows = bool(written)
        for i, group in enumerate(optimizer.param_groups):
            lr, peak = group["lr"], group.get("initial_lr")
            if peak is None and isinstance(lr, Tensor) and lr in _filled:
                raise ValueError(
                    f"the lr of parameter group {i} is a tensor that the schedule of another optimizer fills: give "
                    "each optimizer a tensor of its own, lr.clone(), before you make the schedules"
                )
            if peak is None or float(peak) == float(lr):
                continue
            if (rate := written.get(_key(i, group))) is None:
                self.unsettled = float(lr), float(peak)
            elif not _close(float(lr), rate.written):
                del group["initial_lr"]  # the lr was set by hand since then, so it is the peak
        self._register()

    def _register(self) -> None:
        _latest[self._optimizer] = self._rates
        for one in inside(self._optimizer):
            hook(one.register_load_state_dict_post_hook, self, GroupRates.accept)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        groups = self._optimizer.param_groups  # the copied optimizer has other tensors
        copies = list(zip(groups, self._rates.values(), strict=True))
        self._rates = {_key(i, group): rate for i, (group, rate) in enumerate(copies)}
        self._firsts = [group["params"][0] if group["params"] else None for group in groups]
        for group, rate in copies:
            rate.note(group["lr"] if _close(float(group["lr"]), rate.written) else rate.written)
        self._register()

    def __iter__(self) -> Iterator[Rate]:
        return iter(self._rates.values())

    @property
    def untouched(self) -> bool:
        """Whether all groups still have the rates that were written."""
        return all(rate.is_at(group["lr"]) for group, rate in zip(self._optimizer.param_groups, self, strict=False))

    @in_normal_mode
    def accept(self, *_: Any) -> None:
        """Take the present rates for written, as those that come with a checkpoint: they are nobody's change."""
        for group, rate in zip(self._optimizer.param_groups, self, strict=False):
            if isinstance(group["lr"], Tensor) and group["lr"].is_inference():
                group["lr"] = group["lr"].clone()
            rate.written = float(group["lr"])
            rate.note(group["lr"])

    @in_normal_mode
    def adopt(self, peaks: list[float]) -> bool:
        """Bring the rates and ``peaks`` in line with the optimizer's groups; say whether any was added, moved or gone.

        A group is known by its first tensor.
        """
        groups = self._optimizer.param_groups
        firsts = [group["params"][0] if group["params"] else None for group in groups]
        if len(firsts) == len(self._firsts) and all(map(operator.is_, firsts, self._firsts)):  # a compiler traces this
            return False
        keys = [_key(i, group) for i, group in enumerate(groups)]
        for rate, peak in zip(self, peaks, strict=False):
            rate.peak = peak
        known = dict(self._rates)
        taken = [group["lr"] for key, group in zip(keys, groups, strict=True) if key in known]
        for i, (key, group) in enumerate(zip(keys, groups, strict=True)):
            if key not in known:
                self._separate(group, taken)
                known[key] = Rate.of(i, group, self._optimizer.defaults)
        self._rates.clear()
        self._rates.update({key: known[key] for key in keys})
        self._firsts = firsts
        peaks[:] = [rate.peak for rate in self]
        return True

    def _separate(self, group: dict[str, Any], taken: list[Any]) -> None:
        """Give a new group a tensor rate of its own, which can be filled in place.

        PyTorch puts one tensor into all groups and `defaults`. The first group keeps it, for a captured graph may read
        it; one made in inference mode could not be filled.
        """
        given = rate = group["lr"]
        if not isinstance(rate, Tensor):
            return
        if rate.is_inference() or any(rate is other for other in taken):
            group["lr"] = rate = rate.clone()
        taken.append(rate)
        _filled[rate] = True
        for one in (self._optimizer, *inside(self._optimizer)):
            if one.defaults.get("lr") is given:
                one.defaults["lr"] = rate.clone()

    def write(self, peaks: Sequence[float], factor: float, plan: Plan, state: State) -> list[float]:
        """Set every group's rate to peak × factor × share, and return the rates."""
        if [rate.peak for rate in self] != peaks:
            self._take_peaks(peaks)
        steady, self.outside = steady_share(plan, state), None
        for group, rate in zip(self._optimizer.param_groups, self, strict=True):
            lr = group["lr"]
            rate.changes = 0 if rate.is_at(lr) else rate.changes + 1
            if rate.changes >= OUTSIDE:
                self.outside = {"row": rate.changes, "rate": float(lr), "written": rate.written}
            rate.written = rate.peak * factor * rate.scale * (state.share if rate.warms else steady)
            if isinstance(lr, Tensor):
                lr.fill_(rate.written)
                rate.note(lr)
            else:
                group["lr"] = rate.written
        return [rate.written for rate in self]

    def _take_peaks(self, peaks: Sequence[float]) -> None:
        """Take the peaks that a user has put into `base_lrs`, also for a later schedule of this optimizer."""
        numbers = [float(peak) for peak in peaks]
        if len(numbers) != len(self._rates) or not all(x >= 0 and math.isfinite(x) for x in numbers):
            need = f"a finite peak rate, 0 or more, for each of the {len(self._rates)} parameter groups"
            raise ValueError(f"base_lrs must hold {need}, got {numbers}")
        for group, rate, peak in zip(self._optimizer.param_groups, self, numbers, strict=True):
            rate.peak = group["initial_lr"] = peak

    def state_dict(self, peaks: Sequence[float]) -> list[dict[str, Any]]:
        """For each group its rate now, its peak, and what is known of it."""
        rows = [{name: getattr(rate, name) for name in ("warms", "scale", "written", "changes")} for rate in self]
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        return [{"now": now, "peak": float(p), **row} for now, p, row in zip(rates, peaks, rows, strict=True)]

    def load_state_dict(self, saved: list[dict[str, Any]]) -> None:
        """Write the rates as saved: another scheduler may have changed them. Groups that were added keep theirs."""
        self.unsettled = None
        for group, rate, row in zip(self._optimizer.param_groups, self, saved, strict=False):
            vars(rate).update({name: x for name, x in row.items() if name != "now"})
            set_rate(group, row["now"])
            rate.note(group["lr"] if row["now"] == row["written"] else rate.written)


def _key(i: int, group: dict[str, Any]) -> int:
    """What a group is known by: its first tensor, which is in no other group, or its place if it is empty."""
    return id(group["params"][0]) if group["params"] else -1 - i


def _close(one: float, other: float) -> bool:
    """Whether two numbers are equal but for the rounding of a float32 rate."""
    return abs(one - other) <= 1e-6 * abs(other)
