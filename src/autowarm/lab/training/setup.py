"""Everything an update needs, for training and for a range test: network, optimizer, forward and backward pass."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from autowarm.orthogonalize import working_dtype

from ..tasks import Batch, Task
from .optimizers import make_optimizer
from .parallel import Ranks, spread, unreduced

_WIDE = 256  # from this width on, bfloat16 is faster on a CPU


def precision_of(task: Task, device: torch.device) -> str:
    """Return the precision that `engine.precision` of a task's run selects on a device."""
    config = task.config
    if config.engine.precision != "auto":
        return config.engine.precision
    small = config.model.name in ("llama", "swin") and config.model.width < _WIDE
    gains = working_dtype(device) is torch.bfloat16 and not (small and device.type == "cpu")
    return "bfloat16" if gains else "float32"


class Setup:
    """A run before its first update: its network, as `model` and as the `net` to call, and its optimizer."""

    def __init__(self, task: Task, ranks: Ranks) -> None:
        config = task.config
        self._task, self._device = task, ranks.device
        # This rank's rows of a global batch; a task's own batches are of any size.
        self.rows = slice(None) if config.task else ranks.rows(config.batch_size, config.engine.accumulate)
        self.precision = precision_of(task, ranks.device)
        torch.manual_seed(config.seed)
        model = task.model().to(ranks.device)  # with a dtype, `to` would also make complex numbers real
        self.model = model.double() if self.precision == "float64" else model.float()
        # Compiled, or distributed over the ranks, if the config says so.
        self.net = spread(self.model, config.engine, ranks)
        if config.optimizer.name in task.optimizers:
            self.optimizer = task.make_optimizer(config.optimizer.name, self.model, config.optimizer.lr)
        else:
            shared = ranks.group if config.engine.parallel == "ddp" else None
            self.optimizer = make_optimizer(self.model, config.optimizer, shared)

    def pieces(self, batch: Batch) -> list[Batch]:
        """Move the batch to this rank's device and split it into micro-batches of one size."""
        dtype = torch.float64 if self.precision == "float64" else None
        return self._task.pieces(batch, self._device, self._task.config.engine.accumulate, dtype)

    def forward_backward(self, pieces: Sequence[Batch]) -> Tensor:
        """Accumulate the gradients of these micro-batches and return their mean loss over the examples."""
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
        return torch.autocast(self._device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()
