"""Says once which tensors never have a gradient, because the model is another since the optimizer was built."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..frames import frames_of_ours
from ..losses import NO_BACKWARD
from .checks import name_of

_UPDATES = 3  # after so many a tensor without a gradient is taken for forgotten


class Unused:
    """Looks at an optimizer's first updates, and at updates in a row that find no gradient at all."""

    def __init__(self) -> None:
        self._groups = 0
        self._left = self._empty = 0  # updates still to look at, and those in a row without a gradient
        self._used: set[int] = set()  # the tensors that have had one
        self._told = self.silent = False

    def look(self, who: str, groups: Sequence[dict[str, Any]], *, found: bool, closure: bool) -> None:
        """Look at an update that found gradients, or none, perhaps after a closure."""
        if self.silent or torch.compiler.is_compiling():
            return
        if len(groups) != self._groups:
            self._groups, self._left = len(groups), _UPDATES
        if found and not self._left:
            self._empty = 0
            return
        if closure and not found:
            self._warn(f"{who}.step: {NO_BACKWARD}, so nothing is updated. Let it call backward, and return the loss")
            return
        watched = [group for group in groups if group.get("warn_unused", True)]
        # With rates of 0, distributed checkpoints pretend to step, to make a state.
        if not watched or all(_is_zero(group["lr"]) for group in groups):
            return
        held = [(name_of(group, i), p) for group in watched for i, p in enumerate(group["params"])]
        self._empty = 0 if found else self._empty + 1
        self._used |= {id(p) for _, p in held if p.grad is not None}
        self._left -= bool(self._left)
        if self._left or not (found or self._empty >= _UPDATES):
            return
        asking = [(name, p) for name, p in held if p.requires_grad]
        # A mixture may not ask an expert for a long time.
        never = [name for name, p in asking if id(p) not in self._used and "expert" not in name]
        which = f"none of its {len(held)} tensors {'has had' if asking else 'asks for'} a gradient in "
        which += f"{_UPDATES} updates in a row"
        if found:
            have, they_ask = ("has", "it asks") if len(never) == 1 else ("have", "they ask")
            which = f"{len(never)} of its {len(held)} tensors {have} never had a gradient, although {they_ask} for one"
            which += f": {', '.join(never[:3])}" + (f" and {len(never) - 3} more" if len(never) > 3 else "")
        if found and not never:
            return
        self._warn(
            f"{who}: {which}. If the model was copied, moved or sharded, or got other layers (a new head, LoRA), build "
            "it again from the model as it is now; if this is as it should be, pass warn_unused=False"
        )

    def _warn(self, what: str) -> None:
        if not self._told:
            self._told = True
            warnings.warn(f"{what}. This warning appears once", stacklevel=frames_of_ours())


def _is_zero(rate: float | Tensor) -> bool:
    """Whether a rate is 0, unless reading it would wait for a device."""
    return (not isinstance(rate, Tensor) or rate.is_cpu) and not rate
