"""How far tensors move along their updates: x ← keep·x + lr·update, in as few passes over memory as possible."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rate:
    """How far tensors move: x ← keep·x + lr·update.

    Attributes:
        lr: η, or −η to maximize, as a number or 0-dim tensor for all tensors, or a 1-dim tensor with an entry for
            each; see `where`.
        keep: 1 − λη, in the same form as ``lr``, or None for 1.
    """

    lr: float | Tensor
    keep: float | Tensor | None = None

    @classmethod
    def of_group(cls, group: dict[str, Any]) -> Self:
        """The rate of a parameter group with options ``lr``, ``weight_decay`` and ``maximize``."""
        lr = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        keep = 1 - lr * group["weight_decay"] if group["weight_decay"] else None
        # Every oracle is odd, so the step along −g is minus that along g.
        return cls(-lr if group.get("maximize") else lr, keep)

    def where(self, finite: Tensor | None) -> Self:
        """This rate for tensors whose flag is set, and one that leaves the others unchanged; None sets all flags."""
        if finite is None:
            return self
        lr = torch.where(finite, _on(finite.device, self.lr), 0.0)
        return type(self)(lr, None if self.keep is None else torch.where(finite, _on(finite.device, self.keep), 1.0))

    def __getitem__(self, some: slice) -> Self:
        """The rate of a slice of the tensors."""
        if not (isinstance(self.lr, Tensor) and self.lr.ndim):
            return self
        return type(self)(self.lr[some], None if self.keep is None else self.keep[some])  # type: ignore[index]

    def keep_(self, xs: list[Tensor]) -> None:
        """x ← keep·x, in place."""
        if self.keep is not None:
            torch._foreach_mul_(xs, each(self.keep))

    def step_(self, xs: list[Tensor], updates: list[Tensor], scale: float | list[float] = 1.0) -> None:
        """x ← keep·x + lr·scale·update, in place; this overwrites the updates.

        Args:
            xs, updates: the tensors, and the update of each, of its dtype.
            scale: one factor for all updates, or one for each.
        """
        self.keep_(xs)
        if isinstance(scale, list):
            torch._foreach_mul_(updates, scale)
            scale = 1.0
        lr = self.lr * scale
        if isinstance(lr, Tensor):
            torch._foreach_mul_(updates, each(lr))
            torch._foreach_add_(xs, updates)
        else:
            torch._foreach_add_(xs, updates, alpha=lr)

    def step_each_(
        self, xs: list[Tensor], updates: list[Tensor], scales: list[float], places: Sequence[int] | None = None
    ) -> None:
        """`step_` with a scale per tensor and without temporaries: one launch per tensor, whatever the updates' dtype.

        Args:
            xs, updates, scales: the tensors, and the update and scale of each.
            places: indices of these tensors in this rate; None for all.
        """
        if not isinstance(self.lr, Tensor):
            for x, update, scale in zip(xs, updates, scales, strict=True):
                self.step_([x], [update], scale)
            return
        places = range(len(xs)) if places is None else places
        if self.keep is not None:
            torch._foreach_mul_(xs, _at(self.keep, places))
        torch._foreach_addcmul_(xs, updates, _at(self.lr, places), scales)


def each(factor: Any) -> Any:
    """The argument of `torch._foreach_mul_`: one factor for all tensors, or a list with one for each."""
    return list(factor.unbind()) if isinstance(factor, Tensor) and factor.ndim else factor


def negated(scale: float | list[float]) -> float | list[float]:
    return [-one for one in scale] if isinstance(scale, list) else -scale


def _at(factor: Any, places: Sequence[int]) -> list[Tensor]:
    """The factor of each of these tensors."""
    factors = factor.unbind() if factor.ndim else [factor] * (max(places, default=-1) + 1)
    return [factors[i] for i in places]


def _on(device: torch.device, number: float | Tensor) -> Tensor:
    if isinstance(number, Tensor):
        # One of a model's GPUs may hold the rate of all.
        elsewhere = number.device.type != "cpu" and number.device != device
        return number.to(device, non_blocking=True) if elsewhere else number
    # Double precision is slow on most accelerators, and missing on some.
    return torch.full((), number, dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
