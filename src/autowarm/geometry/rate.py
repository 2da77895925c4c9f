"""How far tensors move along their updates: x ← keep·x + lr·update, in as few passes over memory as possible."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rate:
    """How far tensors of one device move: x ← keep·x + lr·update.

    Attributes:
        lr: η, or −η to maximize; a number or a 0-dim tensor.
        keep: 1 − λη, in the same form as ``lr``, or None for 1.
    """

    lr: float | Tensor
    keep: float | Tensor | None = None

    @classmethod
    def of_group(cls, group: dict[str, Any], device: torch.device, finite: Tensor | None = None) -> Self:
        """The rate of a parameter group with options ``lr`` and ``weight_decay``; one that moves nothing if the flag
        ``finite`` is given, and false."""
        lr = group["lr"]
        if isinstance(lr, Tensor):
            # One of a model's GPUs may hold the rate of all.
            elsewhere = lr.device.type != "cpu" and lr.device != device
            lr = (lr.to(device, non_blocking=True) if elsewhere else lr).reshape(())
        keep = 1 - lr * group["weight_decay"] if group["weight_decay"] else None
        if group.get("maximize"):
            lr = -lr  # every oracle is odd, so the step along −g is minus that along g
        if finite is None:
            return cls(lr, keep)
        lr = torch.where(finite, _on(device, lr), 0.0)
        return cls(lr, None if keep is None else torch.where(finite, _on(device, keep), 1.0))

    def keep_(self, xs: list[Tensor]) -> None:
        """x ← keep·x, in place."""
        keep = self.keep
        if keep is None:
            return
        if isinstance(keep, float) and xs[0].is_cpu and {x.dtype for x in xs} == {torch.float32}:
            # PyTorch makes a tensor of a number for every x, in more time than a small x's product takes.
            keep = torch.tensor(keep, dtype=torch.float32, device="cpu")
        torch._foreach_mul_(xs, keep)

    def step_(self, xs: list[Tensor], updates: list[Tensor], scale: float | list[float] = 1.0) -> None:
        """x ← keep·x + lr·scale·update, in place; this overwrites the updates.

        Args:
            xs, updates: the tensors, and the update of each.
            scale: one factor for all updates, or one for each.
        """
        self.keep_(xs)
        if isinstance(scale, list):
            torch._foreach_mul_(updates, scale)
            scale = 1.0
        lr = self.lr * scale
        if isinstance(lr, Tensor):
            torch._foreach_mul_(updates, lr)
            torch._foreach_add_(xs, updates)
        else:
            torch._foreach_add_(xs, updates, alpha=lr)

    def step_each_(self, xs: list[Tensor], updates: list[Tensor], scales: list[float]) -> None:
        """`step_` with a scale per tensor and no temporaries: one launch per tensor, whatever the updates' dtype."""
        self.keep_(xs)
        if isinstance(self.lr, Tensor):
            torch._foreach_addcmul_(xs, updates, [self.lr] * len(xs), scales)
        else:
            for x, update, scale in zip(xs, updates, scales, strict=True):
                x.add_(update, alpha=self.lr * scale)


def negated(scale: float | list[float]) -> float | list[float]:
    return [-one for one in scale] if isinstance(scale, list) else -scale


def _on(device: torch.device, number: float | Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number
    # Double precision is slow on most accelerators, and missing on some.
    return torch.full((), number, dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
