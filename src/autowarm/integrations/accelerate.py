"""Accelerate, whose ``prepare`` steps a scheduler once for every process and stops it at its ``total_steps``."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..schedule import AdaptiveWarmup
from .metrics import loggable_metrics

try:
    from accelerate import Accelerator
    from accelerate.scheduler import AcceleratedScheduler
except ImportError as missing:
    raise ImportError("this plug-in needs accelerate: pip install 'autowarm[accelerate]'") from missing

__all__ = ["WarmupScheduler", "check"]


class WarmupScheduler(AdaptiveWarmup):
    """`AdaptiveWarmup` for a loop with an `Accelerator`. ``step(loss)`` is called at every micro-batch.

    It acts where ``accelerator.sync_gradients`` says that an update was made, on the mean over micro-batches and
    processes, and once whatever the number of processes: ``total_steps`` counts updates. ``accelerator.save_state`` and
    ``load_state`` include it. Handing it to ``accelerator.prepare`` is not needed and changes nothing.

    Args:
        accelerator: the run's.
        optimizer: before or after ``prepare``.
        total_steps, options: see `AdaptiveWarmup`.
        log_every: updates between two calls of ``accelerator.log`` with `AdaptiveWarmup.metrics` under ``autowarm/``;
            their ``step`` is the number of updates. None logs nothing: a loop of one's own decides what a step is, and
            some trackers (W&B) drop what comes with a smaller step than they have seen.

    Raises:
        ValueError: ``log_every`` is less than 1, and as for `AdaptiveWarmup`.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from autowarm import Muon
        >>> from autowarm.integrations.accelerate import WarmupScheduler
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
        >>> sched.last_epoch
        10
    """

    # Accelerate leaves alone, and saves, what says that it has been prepared.
    _is_accelerate_prepared = True

    def __init__(
        self,
        accelerator: Accelerator,
        optimizer: Optimizer,
        total_steps: int | None,
        *,
        log_every: int | None = None,
        **options: Any,
    ) -> None:
        if log_every is not None and log_every < 1:
            raise ValueError(f"log_every counts updates and must be at least 1, or None, got {log_every}")
        super().__init__(optimizer, total_steps, **options)
        self._accelerator, self._log_every = accelerator, log_every
        accelerator.prepare(self)

    def step(self, loss: Tensor | float | None = None, weight: float = 1.0) -> None:
        """Take a micro-batch's loss; where it ended an update, set the rates for the next.

        Args:
            loss: as for `AdaptiveWarmup.observe`; what ``accelerator.backward`` was given.
            weight: tokens or samples behind it.
        """
        if loss is not None:
            self.observe(loss, weight)
        if not self._accelerator.sync_gradients:
            return
        made = self.last_epoch
        super().step()
        # A skipped update was not counted, and is not logged a second time.
        if self._log_every is not None and self.last_epoch > made and self.last_epoch % self._log_every == 0:
            self._accelerator.log(loggable_metrics(self), step=self.last_epoch)


def check(accelerator: Accelerator) -> None:
    """Notice an `AdaptiveWarmup` that ``accelerator.prepare`` has wrapped. Call it after ``prepare``.

    The wrapper steps it once for every process and drops the losses of micro-batches. Having counted ``total_steps`` of
    those, it leaves the rate where it is, without a word.

    Raises:
        RuntimeError: there is one; the message says what to do.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from autowarm import AdaptiveWarmup, Lion
        >>> from autowarm.integrations.accelerate import check
        >>> accelerator = Accelerator(cpu=True)
        >>> opt = Lion(torch.nn.Linear(4, 4).parameters())
        >>> _ = accelerator.prepare(opt, AdaptiveWarmup(opt, 10))
        >>> check(accelerator)
        Traceback (most recent call last):
        RuntimeError: accelerator.prepare has wrapped an AdaptiveWarmup...
        >>> accelerator.free_memory()
        []
    """
    for prepared in accelerator._schedulers:
        if isinstance(prepared, AcceleratedScheduler) and isinstance(prepared.scheduler, AdaptiveWarmup):
            raise RuntimeError(
                "accelerator.prepare has wrapped an AdaptiveWarmup, and steps it once for each of the "
                f"{accelerator.num_processes} processes: leave it out of prepare, and make it with "
                "autowarm.integrations.accelerate.WarmupScheduler(accelerator, optimizer, total_steps)"
            )
