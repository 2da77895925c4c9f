"""Turns shares of the peak rate into the rates of an optimizer's parameter groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...modes import in_normal_mode
from ...optim.wrapped import hook, inside
from ...rate.find import set_rate
from ..rule import Phase
from ..rule.saved import Checks, boolean, list_of, optional, rate

Rate = float | Tensor


def first_peak(optimizer: Optimizer) -> float:
    """The peak rate of the first group that has one; a rate of 0 freezes its group."""
    given = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    peaks = [math.nan if lr is None else float(lr) for lr in given]  # Adafactor may have none
    if not all(lr >= 0 and math.isfinite(lr) for lr in peaks) or not any(peaks):
        raise ValueError(f"every group's lr must be finite and not negative, and one positive, got {peaks}")
    return next(lr for lr in peaks if lr > 0)


@dataclass
class _Group:
    """What is known of one group and its rate."""

    first: Tensor | None  # by which it is known, see `first_tensor`
    warms: bool  # whether it has a warm-up
    factor: Any = None  # what others multiply the rate by; None stands for 1 and saves a device the multiplication
    written: Rate = 0.0
    aim: Rate = 0.0  # what would have been written at factor 1
    tensor: Tensor | None = None  # the tensor written, and its version then
    version: int = 0

    def record(self, rate: Rate, aim: Rate | None = None) -> None:
        if isinstance(rate, Tensor):
            self.tensor, self.version, rate = rate, rate._version, rate.clone()
        self.written, self.aim = rate, rate if aim is None else aim

    def quotient(self, rate: Tensor) -> Tensor:
        return torch.nan_to_num(rate / self.aim, nan=1.0).clamp(0.0, 1.0)  # 0/0 where a group is frozen


def old_peaks(optimizer: Optimizer) -> str | None:
    """A warning of groups whose peak rate is that of an earlier scheduler, and not their ``lr``; None if none is."""
    for i, group in enumerate(optimizer.param_groups):
        if (peak := float(group.get("initial_lr", group["lr"]))) != (rate := float(group["lr"])):
            return (
                f"parameter group {i} has lr={rate:g} and, from an earlier scheduler, initial_lr={peak:g}, which is "
                "the peak rate. If the lr is meant, del group['initial_lr'] before you make the scheduler; if the run "
                "goes on, load the scheduler's state, too"
            )
    return None


class GroupRates:
    """Writes rates into an optimizer's groups: peak · share · factor.

    Another scheduler beside ours (in a `ChainedScheduler`, or a `ReduceLROnPlateau`) multiplies the rates it finds. If
    a rate is no longer what this class wrote, its ratio to peak · share becomes the group's *factor*, at most 1. A
    tensor's version counter shows whether it has changed, so nothing is read from the device.
    """

    SAVED: ClassVar[Checks] = {
        "rates": list_of(rate),
        "written": list_of(rate),
        "aims": list_of(rate),
        "factors": list_of(optional(rate)),
        "warms": list_of(boolean),
    }

    def __init__(self, optimizer: Optimizer) -> None:
        self._all: list[_Group] = []
        self._optimizer = optimizer
        self._register()

    def _register(self) -> None:
        for one in inside(self._optimizer):
            hook(one.register_load_state_dict_pre_hook, self, GroupRates._before_load)
            hook(one.register_load_state_dict_post_hook, self, GroupRates._after_load)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for own in self._all:
            own.tensor, own.version = None, 0  # the copied optimizer has other tensors
        self._register()

    # What others do to the rates.

    def changed(self) -> bool:
        """Whether groups were added or moved since the last call of `adopt`, or others may have changed a rate.

        Waits for a device only after a copy.
        """
        groups = self._optimizer.param_groups
        if len(groups) != len(self._all):
            return True
        for group, own in zip(groups, self._all, strict=True):
            params, rate = group["params"], group["lr"]
            if own.first is not (params[0] if params else None):
                return True
            if not isinstance(rate, Tensor):
                if rate != own.written:
                    return True
                continue
            if own.tensor is None and float(rate) == float(own.written):
                own.tensor, own.version = rate, rate._version  # a copy of what was written
            if own.tensor is not rate or own.version != rate._version:
                return True
        return False

    def regrouped(self) -> bool:
        """Whether groups were added or moved since the last call of `adopt`."""
        groups = self._optimizer.param_groups
        return [id(own.first) for own in self._all] != [id(first_tensor(group)) for group in groups]

    def take_as_peaks(self, peaks: list[Rate]) -> bool:
        """Take the rates that were set before the first update as the peaks, if they can be; whether one changed."""
        values = [float(group["lr"]) for group in self._optimizer.param_groups]
        if not all(rate >= 0 and math.isfinite(rate) for rate in values):
            return False
        changed = [i for i, own in enumerate(self._all) if values[i] != float(own.written)]
        for i in changed:
            group = self._optimizer.param_groups[i]
            peaks[i] = group["initial_lr"] = _copy(group["lr"])
        return bool(changed)

    def are_zero(self) -> bool:
        """Whether all rates are 0, and not all were written so. Waits for the device."""
        written = any(float(own.written) > 0 for own in self._all)
        return written and not any(float(group["lr"]) for group in self._optimizer.param_groups)

    def notice(self) -> str | None:
        """Find the rates that others have changed, and update the factors; return a warning about one not kept."""
        lost = None
        for i, (group, own) in enumerate(zip(self._optimizer.param_groups, self._all, strict=False)):
            rate = group["lr"]
            if isinstance(rate, Tensor):
                if own.tensor is not rate:
                    # A checkpoint or a copy put another tensor there. That is rare, so we may wait for the device.
                    own.tensor, own.version = rate, rate._version
                    if float(rate) != float(own.written):
                        own.factor = own.quotient(rate)
                elif own.version != rate._version:
                    now = own.quotient(rate)
                    old = torch.ones_like(now) if own.factor is None else own.factor
                    own.factor = torch.where(rate == own.written, old, now)
            elif rate != own.written:
                if not (rate >= 0 and math.isfinite(rate)):
                    raise ValueError(f"the lr of parameter group {i} was set to {rate} from outside the schedule")
                aim = float(own.aim)
                if rate > aim * (1 + 1e-6):
                    lost = (
                        f"the lr of parameter group {i} was raised from {float(own.written):g} to {rate:g} from "
                        "outside the schedule, above what the schedule sets: this is not kept, and holds for one "
                        "update at most. Other code may only lower a rate; for a higher peak, make the optimizer with "
                        "a higher lr"
                    )
                own.factor = min(1.0, rate / aim) if aim > 0 else None
        return lost

    def are_put_out(self) -> bool:
        """Whether someone has set all rates to 0 for a step that is no update.

        PyTorch's `torch.distributed.checkpoint.state_dict` makes such a step to create an optimizer's state. It puts a
        new tensor in the place of a tensor rate, so the device need not be asked.
        """
        for group, own in zip(self._optimizer.param_groups, self._all, strict=False):
            rate = group["lr"]
            if isinstance(rate, Tensor) and (rate is own.tensor or rate.device.type != "cpu"):
                return False
            if rate != 0:
                return False
        return any(isinstance(own.written, Tensor) or own.written > 0 for own in self._all)

    def _replace_inference_tensors(self) -> None:
        """Make rates that can be changed of those that were made, or loaded, in inference mode."""
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor) and group["lr"].is_inference():
                group["lr"] = group["lr"].clone()

    def _before_load(self, *_: Any) -> None:
        self._before = [float(group["lr"]) for group in self._optimizer.param_groups]

    @in_normal_mode
    def _after_load(self, *_: Any) -> None:
        self._replace_inference_tensors()
        # A rate loaded from a checkpoint is not another scheduler's factor.
        for group, own, before in zip(self._optimizer.param_groups, self._all, self._before, strict=False):
            if float(group["lr"]) != before:
                own.record(group["lr"], group["lr"])

    # Writing.

    def adopt(self, peaks: list[Rate]) -> None:
        """Take over groups that were added or moved since the last call; their rates join the peaks, put in order."""
        groups = self._optimizer.param_groups
        if len(groups) < len(peaks):
            raise ValueError(
                f"the optimizer had {len(peaks)} parameter groups and has {len(groups)}: make a new scheduler"
            )
        self._reorder(peaks)
        without_peak, unknown = self._new_places(len(peaks)), self._new_places(len(self._all))
        self._give_each_its_own_tensor(unknown)
        for i in without_peak:
            checked = float(groups[i]["lr"])
            if not (checked >= 0 and math.isfinite(checked)):
                raise ValueError(f"a parameter group was added with lr={checked}: it must be finite and not negative")
            peaks.insert(i, _copy(groups[i].setdefault("initial_lr", _copy(groups[i]["lr"]))))
        for i in unknown:
            warms = groups[i].get("warmup", True)
            if not isinstance(warms, bool):
                raise ValueError(f"parameter group {i} has warmup={warms!r}: it must be True or False")
            self._all.insert(i, _Group(first_tensor(groups[i]), warms))
            self._all[i].record(groups[i]["lr"])  # nobody has changed it
        for group, own in zip(groups, self._all, strict=True):
            own.first = first_tensor(group)

    def _reorder(self, peaks: list[Rate]) -> None:
        """Put what is known in the order of the groups. Groups whose tensors were replaced are where they were."""
        places = {id(first_tensor(group)): i for i, group in reversed(list(enumerate(self._optimizer.param_groups)))}
        if not all(id(own.first) in places for own in self._all):
            return
        order = sorted(range(len(self._all)), key=lambda i: places[id(self._all[i].first)])
        self._all[: len(order)] = [self._all[i] for i in order]
        peaks[: len(order)] = [peaks[i] for i in order]

    def _new_places(self, known: int) -> list[int]:
        """Where the groups are that were added to this many. A `Together` may have put them between others."""
        groups = self._optimizer.param_groups
        unmarked = [i for i, group in enumerate(groups) if "initial_lr" not in group]
        return unmarked if len(unmarked) == len(groups) - known else list(range(known, len(groups)))

    def _give_each_its_own_tensor(self, new: Sequence[int]) -> None:
        """PyTorch puts one tensor `lr` into all groups and `defaults`, but we write each group's rate in place.

        The first group keeps its tensor, because a captured graph may read it.
        """
        groups = self._optimizer.param_groups
        self._replace_inference_tensors()
        taken = {id(group["lr"]) for i, group in enumerate(groups) if i not in new}
        for group in (groups[i] for i in new):
            if isinstance(group["lr"], Tensor) and id(group["lr"]) in taken:
                group["lr"] = group["lr"].clone()
            taken.add(id(group["lr"]))
        for one in (self._optimizer, *inside(self._optimizer)):
            if isinstance(one.defaults.get("lr"), Tensor) and id(one.defaults["lr"]) in taken:
                one.defaults["lr"] = one.defaults["lr"].clone()

    def scale_later(self, ratio: float) -> None:
        """Let groups that are added without an ``lr`` have another peak, so that their ratio to the others stays."""
        for one in dict.fromkeys([self._optimizer, *inside(self._optimizer)]):
            if "lr" in one.defaults:
                one.defaults["lr"] = one.defaults["lr"] * ratio

    def restart(self) -> None:
        """Forget the factors."""
        for own in self._all:
            own.factor = None

    def aims(self, peaks: Sequence[Rate], phase: Phase) -> list[Rate]:
        """Each group's peak times its share, without the factor."""
        shares = (phase.share if own.warms else phase.steady_share for own in self._all)
        return [peak * share for peak, share in zip(peaks, shares, strict=True)]

    def write(self, peaks: Sequence[Rate], phase: Phase) -> list[Rate]:
        """Set every group's rate; return copies of the rates."""
        written: list[Rate] = []
        for group, peak, own in zip(self._optimizer.param_groups, peaks, self._all, strict=True):
            share, factor, rate = phase.share if own.warms else phase.steady_share, own.factor, group["lr"]
            if isinstance(rate, Tensor):
                if factor is None and isinstance(peak, Tensor) and isinstance(share, Tensor):
                    torch.mul(peak, share, out=rate)  # as few operators as possible
                    own.record(rate)
                else:
                    aim = peak * share
                    set_rate(group, aim if factor is None else aim * factor)
                    own.record(rate, aim)
            else:
                own.aim = aim = float(peak * share)
                group["lr"] = own.written = aim if factor is None else aim * float(factor)
            written.append(own.written)
        return written

    def state_dict(self) -> dict[str, Any]:
        """For each group: its rate now, as last written and at factor 1, its factor, and whether it warms up."""
        return {
            "rates": [float(group["lr"]) for group in self._optimizer.param_groups],
            "written": [float(own.written) for own in self._all],
            "aims": [float(own.aim) for own in self._all],
            "factors": [None if own.factor is None else float(own.factor) for own in self._all],
            "warms": [own.warms for own in self._all],
        }

    def load_state_dict(self, state: dict[str, Any], peaks: Sequence[Rate], phase: Phase) -> list[Rate]:
        """Write the rates as saved, not as the phase would set them: another scheduler may have changed them.

        Groups that the state does not contain get the rates that the phase sets. Returns copies of the rates as this
        class last wrote them.
        """
        for own, warms, factor in zip(self._all, state["warms"], state["factors"], strict=False):
            own.warms, own.factor = warms, factor
        self.write(peaks, phase)
        saved = zip(state["rates"], state["written"], state["aims"], strict=True)
        for group, own, (now, written, aim) in zip(self._optimizer.param_groups, self._all, saved, strict=False):
            set_rate(group, now)
            own.record(group["lr"], aim)
            if written != now:
                own.written = torch.full_like(own.written, written) if isinstance(own.written, Tensor) else written
                own.tensor, own.version = None, 0
        return [own.written for own in self._all]


def first_tensor(group: dict[str, Any]) -> Tensor | None:
    """What a group is known by: this tensor is in no other group, and moves with it."""
    return group["params"][0] if group["params"] else None


def _copy(rate: Rate) -> Rate:
    return rate.clone() if isinstance(rate, Tensor) else rate
