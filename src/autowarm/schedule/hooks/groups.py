"""Turns shares of the peak rate into the rates of an optimizer's parameter groups."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...modes import in_normal_mode
from ...optim.wrapped import hook, inside
from ..rule import Phase
from ..rule.saved import Checks, boolean, list_of, optional, rate

__all__ = ["GroupRates", "first_peak", "old_peaks"]

Rate = float | Tensor


def first_peak(optimizer: Optimizer) -> float:
    """The peak rate of the first group that has one; a rate of 0 freezes its group.

    Raises:
        ValueError: a rate is negative or not finite, or none is positive.
    """
    given = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    peaks = [math.nan if lr is None else float(lr) for lr in given]  # Adafactor may have none
    if not all(lr >= 0 and math.isfinite(lr) for lr in peaks) or not any(peaks):
        raise ValueError(f"every group's lr must be finite and not negative, and one positive, got {peaks}")
    return next(lr for lr in peaks if lr > 0)


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

    Attributes:
        warms: for each group, whether it has a warm-up.
        factors: one for each group; None stands for 1 and saves a device the multiplication.
    """

    SAVED: ClassVar[Checks] = {
        "rates": list_of(rate),
        "written": list_of(rate),
        "aims": list_of(rate),
        "factors": list_of(optional(rate)),
        "warms": list_of(boolean),
    }

    def __init__(self, optimizer: Optimizer) -> None:
        self.warms: list[bool] = []
        self.factors: list[Any] = []  # Rate or None
        self._written: list[Rate] = []
        self._aims: list[Rate] = []  # what would have been written at factor 1
        self._tensors: list[tuple[Tensor | None, int]] = []  # the tensor written, and its version then
        self._optimizer = optimizer
        self._known: list[int] = []  # the groups that all these lists are about, by `_keys`
        self._register()

    def _register(self) -> None:
        for one in inside(self._optimizer):
            hook(one.register_load_state_dict_pre_hook, self, GroupRates._before_load)
            hook(one.register_load_state_dict_post_hook, self, GroupRates._after_load)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tensors = [(None, 0)] * len(self._tensors)  # the copied optimizer has other tensors
        self._known = self._keys()
        self._register()

    # What others do to the rates.

    def changed(self) -> bool:
        """Whether others may have changed a rate since it was written. Waits for a device only after a copy."""
        for i, (group, written) in enumerate(zip(self._optimizer.param_groups, self._written, strict=False)):
            rate = group["lr"]
            if not isinstance(rate, Tensor):
                if rate != written:
                    return True
                continue
            known, version = self._tensors[i]
            if known is None and float(rate) == float(written):
                self._tensors[i] = known, version = rate, rate._version  # a copy of what was written
            if known is not rate or version != rate._version:
                return True
        return False

    def regrouped(self) -> bool:
        """Whether groups were added or moved since the last call of `adopt`."""
        return self._keys() != self._known

    def _keys(self) -> list[int]:
        """What tells each group from the others wherever it moves: its first tensor, which is in no other."""
        return [id(group["params"][0]) if group["params"] else 0 for group in self._optimizer.param_groups]

    def take_as_peaks(self, peaks: list[Rate]) -> bool:
        """Take the rates that were set before the first update as the peaks, if they can be.

        Args:
            peaks: the scheduler's ``base_lrs``, changed in place.

        Returns:
            Whether a peak has changed.
        """
        taken = False
        values = [float(group["lr"]) for group in self._optimizer.param_groups]
        if not all(rate >= 0 and math.isfinite(rate) for rate in values) or not any(values):
            return False
        for i, (group, value) in enumerate(zip(self._optimizer.param_groups, values, strict=True)):
            if value != float(self._written[i]):
                rate = group["lr"]
                peaks[i] = group["initial_lr"] = rate.clone() if isinstance(rate, Tensor) else rate
                taken = True
        return taken

    def notice(self) -> str | None:
        """Find the rates that others have changed, and update the factors.

        Returns:
            A warning about a change that cannot be kept; None if there is none.

        Raises:
            ValueError: a rate has become negative, infinite or NaN.
        """
        lost = None
        for i, (group, written) in enumerate(zip(self._optimizer.param_groups, self._written, strict=False)):
            rate = group["lr"]
            if isinstance(rate, Tensor):
                known, version = self._tensors[i]
                if known is not rate:
                    # A checkpoint or a copy put another tensor there. That is rare, so we may wait for the device.
                    self._tensors[i] = rate, rate._version
                    if float(rate) != float(written):
                        self.factors[i] = self._quotient(rate, i)
                elif version != rate._version:
                    old = self.factors[i]
                    now = self._quotient(rate, i)
                    self.factors[i] = torch.where(rate == written, torch.ones_like(now) if old is None else old, now)
            elif rate != written:
                if not (rate >= 0 and math.isfinite(rate)):
                    raise ValueError(f"the lr of parameter group {i} was set to {rate} from outside the schedule")
                aim = float(self._aims[i])
                if rate > aim * (1 + 1e-6):
                    lost = (
                        f"the lr of parameter group {i} was raised from {float(written):g} to {rate:g} from outside "
                        "the schedule, above what the schedule sets: this is not kept, and holds for one update at "
                        "most. Other code may only lower a rate; for a higher peak, make the optimizer with a higher lr"
                    )
                self.factors[i] = min(1.0, rate / aim) if aim > 0 else None
        return lost

    def are_put_out(self) -> bool:
        """Whether someone has set all rates to 0 for a step that is no update.

        PyTorch's `torch.distributed.checkpoint.state_dict` makes such a step to create an optimizer's state. It puts a
        new tensor in the place of a tensor rate, so the device need not be asked.
        """
        for group, (known, _) in zip(self._optimizer.param_groups, self._tensors, strict=False):
            rate = group["lr"]
            if isinstance(rate, Tensor) and (rate is known or rate.device.type != "cpu"):
                return False
            if rate != 0:
                return False
        return any(isinstance(written, Tensor) or written > 0 for written in self._written)

    def _quotient(self, rate: Tensor, i: int) -> Tensor:
        return torch.nan_to_num(rate / self._aims[i], nan=1.0).clamp(0.0, 1.0)  # 0/0 where a group is frozen

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
        for i, (group, before) in enumerate(zip(self._optimizer.param_groups, self._before, strict=False)):
            if i < len(self._written) and float(group["lr"]) != before:
                self._record(i, group["lr"], group["lr"])

    # Writing.

    def adopt(self, peaks: list[Rate]) -> None:
        """Take over the groups that were added or moved since the last call.

        Args:
            peaks: the scheduler's ``base_lrs``, put in order; the lr that each new group was added with joins it.

        Raises:
            ValueError: a new group's lr is negative or not finite, or a group was removed.
        """
        groups = self._optimizer.param_groups
        if len(groups) < len(peaks):
            raise ValueError(
                f"the optimizer had {len(peaks)} parameter groups and has {len(groups)}: make a new scheduler"
            )
        self._reorder(peaks)
        self._known = self._keys()
        without_peak, unknown = self._new_places(len(peaks)), self._new_places(len(self.warms))
        self._give_each_its_own_tensor(unknown)
        for i in without_peak:
            group = groups[i]
            checked = float(group["lr"])
            if not (checked >= 0 and math.isfinite(checked)):
                raise ValueError(f"a parameter group was added with lr={checked}: it must be finite and not negative")
            rate = group["lr"]
            group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate)
            first = group["initial_lr"]
            peaks.insert(i, first.clone() if isinstance(first, Tensor) else first)
        for i in unknown:
            self.warms.insert(i, bool(groups[i].get("warmup", True)))
            self.factors.insert(i, None)
            self._written.insert(i, 0.0)
            self._aims.insert(i, 0.0)
            self._tensors.insert(i, (None, 0))
            self._record(i, groups[i]["lr"])  # nobody has changed it

    def _reorder(self, peaks: list[Rate]) -> None:
        """Put all lists in the order of the groups. Groups whose tensors were replaced are where they were."""
        keys = self._keys()
        if not set(self._known) <= set(keys):
            return
        order = sorted(range(len(self._known)), key=lambda i: keys.index(self._known[i]))
        lists: list[list[Any]] = [self.warms, self.factors, self._written, self._aims, self._tensors, peaks]
        for each in lists:
            each[: len(order)] = [each[i] for i in order]

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

    def restart(self) -> None:
        """Forget the factors."""
        self.factors = [None] * len(self.warms)

    def aims(self, peaks: Sequence[Rate], phase: Phase) -> list[Rate]:
        """Each group's peak times its share, without the factor."""
        shares = (phase.share if warm else phase.steady_share for warm in self.warms)
        return [peak * share for peak, share in zip(peaks, shares, strict=True)]

    def write(self, peaks: Sequence[Rate], phase: Phase) -> list[Rate]:
        """Set every group's rate.

        Returns:
            Copies of the rates.
        """
        for i, (group, peak, warm) in enumerate(zip(self._optimizer.param_groups, peaks, self.warms, strict=True)):
            share, factor, rate = phase.share if warm else phase.steady_share, self.factors[i], group["lr"]
            if isinstance(rate, Tensor):
                if factor is None and isinstance(peak, Tensor) and isinstance(share, Tensor):
                    torch.mul(peak, share, out=rate)  # as few operators as possible
                    self._record(i, rate)
                else:
                    aim = peak * share
                    self._set(group, aim if factor is None else aim * factor)
                    self._record(i, rate, aim)
            else:
                aim = float(peak * share)
                group["lr"] = rate = aim if factor is None else aim * float(factor)
                self._written[i], self._aims[i] = rate, aim
        return list(self._written)

    def state_dict(self) -> dict[str, Any]:
        """For each group: its rate now, as last written and at factor 1, its factor, and whether it warms up."""
        return {
            "rates": [float(group["lr"]) for group in self._optimizer.param_groups],
            "written": [float(rate) for rate in self._written],
            "aims": [float(aim) for aim in self._aims],
            "factors": [None if factor is None else float(factor) for factor in self.factors],
            "warms": list(self.warms),
        }

    def load_state_dict(self, state: dict[str, Any], peaks: Sequence[Rate], phase: Phase) -> list[Rate]:
        """Write the rates as saved, not as the phase would set them: another scheduler may have changed them.

        Groups that the state does not contain get the rates that the phase sets.

        Returns:
            Copies of the rates as this class last wrote them.
        """
        saved = len(state["rates"])
        self.warms[:saved] = state["warms"]
        self.factors[:saved] = state["factors"]
        self.write(peaks, phase)
        for i, group in enumerate(self._optimizer.param_groups[:saved]):
            self._set(group, state["rates"][i])
            self._record(i, group["lr"], state["aims"][i])
            if state["written"][i] != state["rates"][i]:
                rate, written = group["lr"], state["written"][i]
                self._written[i] = torch.full_like(rate, written) if isinstance(rate, Tensor) else written
                self._tensors[i] = None, 0
        return list(self._written)

    @staticmethod
    def _set(group: dict[str, Any], value: Rate) -> None:
        rate = group["lr"]
        if not isinstance(rate, Tensor):
            group["lr"] = float(value)
        elif isinstance(value, Tensor):
            rate.copy_(value)
        else:
            rate.fill_(value)

    def _record(self, i: int, rate: Rate, aim: Rate | None = None) -> None:
        if isinstance(rate, Tensor):
            self._tensors[i], rate = (rate, rate._version), rate.clone()
        self._written[i], self._aims[i] = rate, rate if aim is None else aim
