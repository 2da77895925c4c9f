"""Says once which tensors never have a gradient, because the model is another since the optimizer was built."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch.frames import frames_of_ours
from ..losses import NO_BACKWARD
from .checks import few, name_of

UPDATES = 3  # after so many a tensor without a gradient is taken for forgotten


class Unused:
    """Looks at an optimizer's first updates, and at updates in a row that find no gradient at all."""

    def __init__(self) -> None:
        self.left, self.empty = UPDATES, 0  # updates still to look at, and those in a row without a gradient
        self._used: set[int] = set()  # the tensors that have had one
        self.done = False

    def look(self, who: str, groups: Sequence[dict[str, Any]], *, any_gradient: bool, closure: bool) -> None:
        """Look at an update that found gradients, or none, perhaps after a closure; no need if there are none left."""
        if self.done or torch.compiler.is_compiling():
            return
        if closure and not any_gradient:
            self._warn(f"{who}.step: {NO_BACKWARD}, so nothing is updated. Let it call backward, and return the loss")
            return
        watched = [group for group in groups if group.get("warn_unused", True)]
        # With rates of 0, distributed checkpoints pretend to step, to make a state. A rate on a device is not read.
        known = [lr for group in groups if not isinstance(lr := group["lr"], Tensor) or lr.is_cpu]
        if not watched or (len(known) == len(groups) and not any(known)):
            return
        # Which tensors have had a gradient by now
        named = [(name_of(group, i), p) for group in watched for i, p in enumerate(group["params"])]
        self.empty = 0 if any_gradient else self.empty + 1
        self._used |= {id(p) for _, p in named if p.grad is not None}
        last, self.left = self.left == 1, max(0, self.left - 1)
        asking = [(name, p) for name, p in named if p.requires_grad]
        # A mixture may not ask an expert for a long time.
        never = [name for name, p in asking if id(p) not in self._used and "expert" not in name]
        if any_gradient and last and never:
            which = f"{len(never)} of its {len(named)} tensors never had a gradient, but ask for one: {few(never)}"
        elif not any_gradient and not self.left and self.empty >= UPDATES:
            does = "has had" if asking else "asks for"
            which = f"none of its {len(named)} tensors {does} a gradient in {UPDATES} updates in a row"
        else:
            return
        self._warn(
            f"{who}: {which}. If the model was copied, moved or sharded, or got other layers (a new head, LoRA), build "
            "it again from the model as it is now; if this is as it should be, set warn_unused=False in the group"
        )

    def _warn(self, what: str) -> None:
        self.done = True  # once for each optimizer
        warnings.warn(f"{what}. This warning appears once", stacklevel=frames_of_ours())
