"""What every update needs, whatever is made of it: the network on its ranks, its optimizer, forward and backward."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from autowarm.orthogonalize import working_dtype

from ..config import RunConfig
from ..tasks import Batch, Task
from ..tasks.models import attend_plainly
from ..tasks.own import AdaptedTask
from .optimizers import make_optimizer
from .parallel import Ranks, spread, unreduced

__all__ = ["Setup", "precision_of"]

_WIDE = 256  # from this width on a CPU gains by bfloat16


def precision_of(config: RunConfig, device: torch.device) -> str:
    """What `engine.precision` comes to on a device."""
    if config.engine.precision != "auto":
        return config.engine.precision
    small = config.model.name in ("llama", "swin") and config.model.width < _WIDE
    gains = working_dtype(device) is torch.bfloat16 and not (small and device.type == "cpu")
    return "bfloat16" if gains else "float32"


class Setup:
    """A run before its first update.

    Attributes:
        precision: "float32", "bfloat16" or "float64".
        model: the network, with weights that the seed decides.
        net: the same as it is called, compiled or spread over ranks where the config says so.
        optimizer: the task's own of the configured name, or the lab's.
    """

    def __init__(self, config: RunConfig, task: Task, ranks: Ranks) -> None:
        self._config, self._task, self._device = config, task, ranks.device
        self.precision = precision_of(config, ranks.device)
        torch.manual_seed(config.seed)
        self.model = task.model().to(ranks.device, torch.float64 if self.precision == "float64" else torch.float32)
        if self.precision == "bfloat16" and ranks.device.type == "cpu":
            attend_plainly(self.model, config.model.seq_len)
        self.net = spread(self.model, config.engine, ranks)
        if isinstance(task, AdaptedTask) and config.optimizer.name in task.optimizers:
            self.optimizer = task.make_optimizer(config.optimizer.name, self.model, config.optimizer.lr)
        else:
            shared = ranks.group if config.engine.parallel == "ddp" else None
            self.optimizer = make_optimizer(self.model, config.optimizer, shared)

    def pieces(self, batch: Batch) -> Sequence[Batch]:
        """The batch on this rank's device, in micro-batches."""
        return self._task.pieces(batch, self._device, self._config.engine.accumulate)

    def forward_backward(self, pieces: Sequence[Batch]) -> Tensor:
        """The mean loss of these micro-batches, whose gradients are added up."""
        total = None
        for index, piece in enumerate(pieces):
            with unreduced(self.net, last=index + 1 == len(pieces)):
                with self.cast():
                    loss = self._task.loss(self.net, piece) / len(pieces)
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def cast(self) -> AbstractContextManager[Any]:
        """Around a forward pass."""
        return torch.autocast(self._device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()
