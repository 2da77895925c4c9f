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
    """Looks at an optimizer's first updates, and at every closure."""

    def __init__(self) -> None:
        self.left = UPDATES  # updates still to look at
        self._used: set[int] = set()  # the tensors that have had a gradient
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
        if not watched or not self.left or (len(known) == len(groups) and not any(known)):
            return
        self.left -= 1
        named = [(name_of(group, i), p) for group in watched for i, p in enumerate(group["params"])]
        self._used |= {id(p) for _, p in named if p.grad is not None}
        # A mixture may not ask an expert for a long time.
        never = [name for name, p in named if p.requires_grad and id(p) not in self._used and "expert" not in name]
        if not self.left and (never or not self._used):
            which = f", as {few(never)}" if never else "; none of them asks for one"
            count = f"{len(never or named)} of its {len(named)} tensors"
            self._warn(
                f"{who}: {count} had no gradient in {UPDATES} updates{which}. "
                "If the model was copied, moved or sharded, or got other layers (a new head, LoRA), build it again "
                "from the model as it is now; if this is as it should be, set warn_unused=False in the group"
            )

    def _warn(self, what: str) -> None:
        self.done = True  # once for each optimizer
        warnings.warn(f"{what}. This warning appears once", stacklevel=frames_of_ours())
