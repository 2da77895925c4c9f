"""Ranks with uneven inputs, within `torch.distributed.algorithms.Join([model, optimizer, scheduler])`."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from ..devices import collective_device
from .step.dtensors import is_dtensor


class Joining(Joinable):
    """Lets an optimizer train within `Join`: a rank without further inputs answers the others' messages.

    While a rank has none, the others do not share out their work. Afterwards every rank has the optimizer's state of
    one that made the last update; `DistributedDataParallel` does the same with the weights.
    """

    param_groups: list[dict[str, Any]]
    state: Any
    _process_group: dist.ProcessGroup | None = None

    def _exchanging(self) -> Sequence[Any]:
        """The optimizers whose ranks exchange messages in a step, once for each time, in order."""
        return [self]

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _notify(self) -> None:
        """Tell the ranks that have joined that this one makes a step."""
        if self._join_config.enable:
            Join.notify_join_context(self)

    def check_joining(self) -> None:
        """Raise RuntimeError if `Join` has been given the scheduler and not the optimizer, whose ranks would wait."""
        for one in self._exchanging():
            if one._process_group is not None and not one._agreement.may_join:
                raise RuntimeError(
                    f"{type(one).__name__}(process_group=...) exchanges messages in each step, so Join must know of "
                    "it: train within Join([model, optimizer, scheduler])"
                )

    def join_hook(self, **_: Any) -> JoinHook:
        """What this rank does once it has no more inputs.

        Raises:
            ValueError: the optimizer has DTensors, whose shards all ranks need.
        """
        if any(is_dtensor(p) for p in self._params()):
            raise ValueError(f"{type(self).__name__} has DTensors, and every rank must step them: Join cannot help")
        return _Joined(self)

    @property
    def join_device(self) -> torch.device:
        """The device on which ranks tell each other that they have inputs."""
        return collective_device(self.join_process_group)

    @property
    def join_process_group(self) -> Any:
        """The ranks that train the tensors."""
        groups = [one._process_group for one in self._exchanging() if one._process_group is not None]
        return groups[0] if groups else dist.group.WORLD


class _Joined(JoinHook):
    """Takes a rank without inputs through the steps of the others."""

    def __init__(self, optimizer: Joining) -> None:
        self._optimizer = optimizer
        for one in optimizer._exchanging():
            one._agreement.may_join = True

    def main_hook(self) -> None:
        for one in self._optimizer._exchanging():
            one._agreement.follow(type(one).__name__, one.param_groups)

    def post_hook(self, is_last_joiner: bool) -> None:
        ranks, device = self._optimizer.join_process_group, self._optimizer.join_device
        last = torch.tensor(dist.get_rank() if is_last_joiner else -1, device=device)
        dist.all_reduce(last, op=dist.ReduceOp.MAX, group=ranks)
        params, state = self._optimizer._params(), self._optimizer.state
        held = [{name: x.cpu() if isinstance(x, Tensor) else x for name, x in state.get(p, {}).items()} for p in params]
        box = [held]
        dist.broadcast_object_list(box, src=int(last), group=ranks, device=device)
        if int(last) != dist.get_rank():
            for p, found in zip(params, box[0], strict=True):
                # A step count stays where it is until a kernel needs it elsewhere.
                state[p] = {name: x.to(p.device) if getattr(x, "ndim", 0) else x for name, x in found.items()}
