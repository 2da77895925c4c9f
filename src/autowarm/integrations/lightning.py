"""The adapter for Lightning, which steps a scheduler with no loss, or with the last micro-batch's as a metric."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .._torch.habits import plain_words
from .._version import install
from ..geometry import Columns, Frobenius, Rows, Sign, Spectral
from ..schedule import AdaptiveWarmup
from .metrics import EndOfWarmup, loggable_metrics, warn_at_start

try:
    import lightning.pytorch as pl
except ImportError:
    try:
        import pytorch_lightning as pl  # type: ignore[no-redef]
    except ImportError as missing:
        raise ImportError(f"this plug-in needs lightning: {install('lightning')}") from missing

_utilities = f"{pl.__name__}.utilities"  # the same in both packages
_exceptions = import_module(f"{_utilities}.exceptions")
extract_batch_size = import_module(f"{_utilities}.data").extract_batch_size
rank_zero_info = import_module(f"{_utilities}.rank_zero").rank_zero_info

__all__ = ["WarmupCallback", "scheduler_config"]

# BackboneFinetuning writes whole parameter groups, with their geometries, into checkpoints that are read with
# weights_only=True. Our geometries are frozen dataclasses of numbers and names, so they are safe.
torch.serialization.add_safe_globals([Spectral, Sign, Frobenius, Rows, Columns])


def scheduler_config(scheduler: AdaptiveWarmup) -> dict[str, Any]:
    """Return the ``"lr_scheduler"`` entry for ``configure_optimizers``, for a trainer with a `WarmupCallback`.

    Args:
        scheduler: a scheduler over ``self.trainer.estimated_stepping_batches`` steps.

    Example:
        >>> import torch
        >>> from autowarm import AdaptiveWarmup, Lion
        >>> from autowarm.integrations.lightning import scheduler_config
        >>> opt = Lion(torch.nn.Linear(4, 4).parameters())
        >>> scheduler_config(AdaptiveWarmup(opt, 10))["interval"]
        'step'
    """
    return {"scheduler": scheduler, "interval": "step", "frequency": 1}


class WarmupCallback(pl.Callback):
    """Passes every micro-batch's loss to the `AdaptiveWarmup` from ``configure_optimizers``, and logs the schedule.

    It works with gradient accumulation and mixed precision. A run resumed at the end of an epoch is bit-identical to an
    uninterrupted one; within an epoch, Lightning starts the data over. With manual optimization, leave it out and call
    ``observe(loss)`` and ``step()`` of ``self.lr_schedulers()``.

    Every ``log_every_n_steps`` steps it logs `AdaptiveWarmup.metrics` to the trainer's loggers under ``autowarm/``.
    Before the first update it warns if the trainer's run is shorter or longer than the schedule.

    Args:
        weight: function that returns a batch's weight, such as ``lambda batch: batch["labels"].numel()``; None for the
            number of samples, as Lightning counts them.

    Raises:
        ValueError: at the start of training, if there is no `AdaptiveWarmup`, if Lightning would not step it exactly
            once per update, or would pass it losses too, or if the module optimizes manually.

    Example:
        >>> from autowarm.integrations.lightning import WarmupCallback, pl
        >>> trainer = pl.Trainer(max_steps=100, callbacks=[WarmupCallback()], logger=False, accelerator="cpu",
        ...                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    """

    @plain_words
    def __init__(self, weight: Callable[[Any], float] | None = None) -> None:
        if not callable(weight := weight or extract_batch_size):
            raise TypeError(f"weight= is a function of a batch, got a {type(weight).__name__}: the callback finds the "
                            "scheduler by itself")  # fmt: skip
        self._weight_of = weight
        self._weight = 1.0
        self._steps_before = 0
        self._begins = False
        self._ended = EndOfWarmup()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the peak rate from a LearningRateFinder, and check that Lightning steps the scheduler as it needs."""
        if not pl_module.automatic_optimization:
            raise ValueError(
                "with manual optimization leave out WarmupCallback: call observe(loss) and step() of "
                "self.lr_schedulers(), and log autowarm.integrations.metrics.loggable_metrics(scheduler)"
            )
        if (config := _config(trainer)) is None:
            raise ValueError(
                "WarmupCallback found no AdaptiveWarmup: return one from configure_optimizers, and resume a run before "
                "its weight averaging has begun"
            )
        scheduler = config.scheduler
        for finder in (one for one in trainer.callbacks if getattr(one, "optimal_lr", None) is not None):
            if scheduler.last_epoch == 0 and (peak := finder.optimal_lr.suggestion()) is not None:
                ratio = peak / max(scheduler.base_lrs)
                scheduler.base_lrs = [ratio * lr for lr in scheduler.base_lrs]
                scheduler._update_lr(0)  # as PyTorch starts a scheduler
        if config.reduce_on_plateau or config.interval != "step" or config.frequency != 1:
            raise ValueError(
                "beside WarmupCallback the scheduler is stepped at each update and without a metric, got "
                f"interval={config.interval!r}, frequency={config.frequency}, "
                f"reduce_on_plateau={config.reduce_on_plateau}: "
                "return autowarm.integrations.lightning.scheduler_config(scheduler)"
            )
        self._begins = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Determine the batch's weight, and at the first batch compare the run's length with the schedule's."""
        if self._begins and (config := _config(trainer)) is not None and not trainer.fast_dev_run:
            # Every callback has had its say by now.
            steps = math.inf if trainer.max_steps == -1 else trainer.max_steps - trainer.global_step
            warn_at_start(config.scheduler, min(steps, _updates_by_epochs(trainer, batch_idx)))
        self._begins, self._steps_before = False, trainer.global_step
        try:
            self._weight = float(self._weight_of(batch))
        except _exceptions.MisconfigurationException:
            raise ValueError(
                "the number of samples in a batch is unknown: give WarmupCallback(weight=...), a function of the batch"
            ) from None

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Pass on the loss that ``training_step`` returned."""
        if (config := _config(trainer)) is not None:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            loss = loss.detach().float() / (1.0 if scaler is None else scaler.get_scale())
            config.scheduler.observe(loss * trainer.accumulate_grad_batches, self._weight)  # by which Lightning divides

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Say when the warm-up has ended, and log the schedule at the trainer's logging steps."""
        if (config := _config(trainer)) is None:
            return
        if line := self._ended(config.scheduler):
            rank_zero_info(line)
        if trainer.global_step != self._steps_before and trainer._logger_connector.should_update_logs:
            # Only where they are logged: the metrics may wait for a device.
            pl_module.log_dict(loggable_metrics(config.scheduler), on_step=True, on_epoch=False)


def _updates_by_epochs(trainer: Any, batch_idx: int) -> float:
    """The number of updates left until ``max_epochs``, from this batch on; infinity if it is not known."""
    batches, each = trainer.num_training_batches, trainer.accumulate_grad_batches
    changes = any(isinstance(one, pl.callbacks.GradientAccumulationScheduler) for one in trainer.callbacks)
    if trainer.max_epochs == -1 or math.isinf(batches) or changes:
        return math.inf
    return math.ceil(batches / each) * (trainer.max_epochs - trainer.current_epoch) - batch_idx // each


def _config(trainer: Any) -> Any:
    """Lightning's entry for the schedule; None while weights are averaged, when another has its place."""
    adaptive = (config for config in trainer.lr_scheduler_configs if isinstance(config.scheduler, AdaptiveWarmup))
    return next(adaptive, None)
