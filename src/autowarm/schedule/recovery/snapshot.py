"""Everything that an update changes, as it was at some update, to go back to any number of times."""

from itertools import chain

from torch import Tensor, nn
from torch.optim import Optimizer

from ...optim.wrapped import inside
from ...rate.restore import Keeper, may_count


class Snapshot:
    """The weights, the optimizer's state and its groups' counters, as they are now; and a model's buffers.

    An accelerator's tensors are copied to pinned host memory without waiting for them, and DTensors by their local
    shards. Everything but the rates is restored, in place: compiled steps and wrappers hold the tensors themselves.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module | None = None) -> None:
        keep = Keeper(offload=True)
        self._params: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        ours = () if model is None else chain(model.parameters(), (module._buffers for module in model.modules()))
        self._restores = [keep(x) for x in chain(self._params, ours, (one.state for one in inside(optimizer)))]
        self._counters = [
            (group, {name: keep(x) for name, x in group.items() if may_count(name, x)})
            for group in optimizer.param_groups
        ]

    def restore(self) -> None:
        """Restore all of it. Gradients become zero: they were taken at the weights that this replaces."""
        for restore in self._restores:
            restore()
        for group, counters in self._counters:
            group.update({name: restore() for name, restore in counters.items()})
        for p in self._params:
            if p.grad is not None:
                p.grad.zero_()
