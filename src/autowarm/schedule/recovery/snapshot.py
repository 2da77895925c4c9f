"""Everything that an update changes, as it was at some update, to go back to any number of times."""

from itertools import chain

from torch import Tensor, nn
from torch.optim import Optimizer

from ...optim.wrapped import inside
from ...rate.restore import Keeper, Restore, may_count
from ...undisturbed import put_back
from ..hooks.groups import first_tensor


class Snapshot:
    """The weights, the optimizer's state and its groups' counters, as they are now; and a model's buffers.

    An accelerator's tensors are copied to pinned host memory without waiting for them, and DTensors by their local
    shards. Everything but the rates is restored, in place: compiled steps and wrappers hold the tensors themselves.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module | None = None) -> None:
        self._keep = Keeper(offload=True)
        self._parameters = [] if model is None else [self._keep(p) for p in model.parameters()]
        self._buffers = [
            (module, name, self._keep(buffer))
            for module in (() if model is None else model.modules())
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._weights: dict[Tensor, Restore] = {}
        self._counters: dict[Tensor | None, dict[str, Restore]] = {}  # by the group's first tensor
        self._states = {one: {key: self._keep(x) for key, x in one.state.items()} for one in inside(optimizer)}
        # Moments that an optimizer keeps as attributes; a number there may be an option, which a loop sets.
        attributes = chain.from_iterable(vars(one).values() for one in self._states)
        self._moments = [self._keep(x) for x in attributes if isinstance(x, Tensor)]
        self.keep_added(optimizer)

    def keep_added(self, optimizer: Optimizer) -> None:
        """Keep the groups that are not kept yet. Call it before their first update: they have no state yet."""
        if self._weights and sum(len(group["params"]) for group in optimizer.param_groups) == len(self._weights):
            return
        for group in optimizer.param_groups:
            self._weights |= {p: self._keep(p) for p in group["params"] if p not in self._weights}
            if (first := first_tensor(group)) not in self._counters:
                self._counters[first] = {name: self._keep(x) for name, x in group.items() if may_count(name, x)}

    def restore(self, optimizer: Optimizer) -> None:
        """Restore all of it. Gradients become zero: they were taken at the weights that this replaces."""
        for restore in chain(self._parameters, self._weights.values(), self._moments):
            restore()
        for module, name, restore in self._buffers:
            put_back(module, name, restore())
        for one, kept in self._states.items():
            # A state that the optimizer has loaded since is in other dictionaries.
            content = {key: restore() for key, restore in kept.items()}
            one.state.clear()
            one.state.update(content)
        for group in optimizer.param_groups:
            group.update({name: restore() for name, restore in self._counters.get(first_tensor(group), {}).items()})
        for p in self._weights:
            if p.grad is not None:
                p.grad.zero_()
