"""The adapter for Accelerate, whose own scheduler wrapper steps once per process and stops at ``total_steps``."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .._version import install
from ..schedule import AdaptiveWarmup
from .metrics import EndOfWarmup, loggable_metrics

try:
    from accelerate import Accelerator
except ImportError as missing:
    raise ImportError(f"this plug-in needs accelerate: {install('accelerate')}") from missing

__all__ = ["WarmupScheduler"]


class WarmupScheduler(AdaptiveWarmup):
    """`AdaptiveWarmup` for a loop with an `Accelerator`. ``step(loss)`` is called at every micro-batch.

    It sets the rates whenever ``accelerator.sync_gradients`` reports an update, from the mean loss over micro-batches
    and processes, and counts one update however many processes there are. ``accelerator.save_state`` and ``load_state``
    include it; passing it to ``accelerator.prepare`` changes nothing.

    Args:
        accelerator: the run's Accelerator.
        optimizer: the optimizer, before or after ``prepare``.
        total_steps, options: see `AdaptiveWarmup`.
        log_every: call ``accelerator.log`` with `AdaptiveWarmup.metrics` under ``autowarm/`` every this many updates,
            which are its ``step``. None does not log: your loop may count steps differently, and some trackers (W&B)
            drop entries whose step is smaller than one that they have seen.

    Raises:
        ValueError: ``log_every`` is less than 1, and as for `AdaptiveWarmup`.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from autowarm import Muon
        >>> from autowarm.integrations.accelerate import WarmupScheduler
        >>> _ = torch.manual_seed(0)
        >>> accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        >>> model = torch.nn.Linear(4, 4)
        >>> model, opt = accelerator.prepare(model, Muon.from_model(model, lr=1e-2))
        >>> sched = WarmupScheduler(accelerator, opt, total_steps=10)
        >>> for _ in range(20):
        ...     with accelerator.accumulate(model):
        ...         loss = (model(torch.ones(8, 4)) - 1).square().mean()
        ...         accelerator.backward(loss)
        ...         opt.step()
        ...         sched.step(loss)
        ...         opt.zero_grad()
        warm-up ended at update 5 of 10 by the time limit: the averaged loss was at 98% of its start (53% ends it)
        >>> sched.last_epoch
        10
    """

    def __init__(
        self,
        accelerator: Accelerator,
        optimizer: Optimizer,
        total_steps: int | None,
        *,
        log_every: int | None = None,
        **options: Any,
    ) -> None:
        if log_every is not None and not (isinstance(log_every, int) and log_every >= 1):
            raise ValueError(f"log_every counts updates and must be at least 1, or None, got {log_every!r}")
        super().__init__(optimizer, total_steps, **options)
        self._accelerator, self._log_every = accelerator, log_every
        self._end_of_warmup = EndOfWarmup()
        accelerator.prepare(self)

    def step(
        self, loss: Tensor | float | None = None, weight: float = 1.0, *, metrics: Tensor | float | None = None
    ) -> None:
        """Observe a micro-batch's loss; after an update, set the rates of the next one.

        Args:
            loss: the loss that ``accelerator.backward`` was given, see `AdaptiveWarmup.observe`.
            weight: the number of tokens or samples in it.
            metrics: another name for ``loss``.
        """
        if (loss := metrics if loss is None else loss) is not None:
            self.observe(loss, weight)
        if not self._accelerator.sync_gradients:
            return
        updates = self.last_epoch
        super().step()
        if line := self._end_of_warmup(self):
            self._accelerator.print(line)
        # A skipped update does not count, so the previous one would be logged twice.
        if self._log_every is not None and self.last_epoch > updates and self.last_epoch % self._log_every == 0:
            self._accelerator.log(loggable_metrics(self), step=self.last_epoch)
