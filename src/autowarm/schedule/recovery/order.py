"""What a loop must be like if one of its steps may restore weights."""

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


class Order:
    """Refuses the backward pass of a loss after the step that took it, from the first step on.

    If weights were restored in between, it would fail, or take gradients at weights that are gone. That it has not run
    yet cannot be asked in advance: of an update that a GradScaler skipped, gradients may be gone as well.

    Args:
        matters: whether weights may be restored.
    """

    def __init__(self, matters: bool) -> None:
        self.matters = matters
        self._watched = self._stepped = False

    def observed(self, loss: Tensor | float | None) -> None:
        """Watch this loss's backward pass, if it has one; the first update's losses tell the order of all."""
        if self.matters and not self._stepped and isinstance(loss, Tensor) and loss.requires_grad:
            self._watched = True
            loss.register_hook(self._refuse)

    def stepping(self, loss: Tensor | float | None) -> None:
        """A step takes the losses so far, and this one."""
        self.observed(loss)
        self._stepped = self._watched

    def _refuse(self, _: Tensor) -> None:
        if self._stepped:
            raise RuntimeError(
                "step() was called before loss.backward(), and may restore weights in between, with recover=True or a "
                "SpikeGuard: call step(loss) after loss.backward(), before or after optimizer.step()"
            )


def check_recover(recover: Any, optimizer: Optimizer) -> bool | str:
    """``recover`` as True, False or "warn"; ValueError if it is unknown, or the updates may be a graph's replays."""
    if isinstance(recover, nn.Module):  # whose buffers are restored, too
        recover = True
    if not (isinstance(recover, bool) or recover == "warn"):
        raise ValueError(
            'recover must be True, the model (for several a torch.nn.ModuleList), "warn" to warn only, or False, got '
            + (repr(recover) if isinstance(recover, str | int | float) else f"a {type(recover).__name__}")
        )
    if recover is True and any(group.get("capturable") for group in optimizer.param_groups):
        raise ValueError(
            "recover=True restores weights between updates, which the replays of a captured graph (capturable=True) do "
            'not see: use recover="warn", or an optimizer that is not captured'
        )
    return recover
