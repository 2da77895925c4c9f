"""The adapter for Lightning, which steps a scheduler with no loss, or with the last micro-batch's as a metric."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .._torch.habits import plain_words
from ..geometry import Columns, Frobenius, Rows, Sign, Spectral
from ..others.wrapped import unwrapped
from ..schedule import AdaptiveWarmup
from .lengths import warn_at_end, warn_at_start
from .metrics import EndOfWarmup, loggable_metrics

try:
    import lightning.pytorch as pl
except ImportError:
    try:
        import pytorch_lightning as pl  # type: ignore[no-redef]
    except ImportError as missing:
        raise ImportError("this plug-in needs lightning: pip install 'autowarm[lightning]'") from missing

_utilities = f"{pl.__name__}.utilities"  # the same in both packages
_exceptions = import_module(f"{_utilities}.exceptions")
extract_batch_size = import_module(f"{_utilities}.data").extract_batch_size
rank_zero_info = import_module(f"{_utilities}.rank_zero").rank_zero_info

__all__ = ["WarmupCallback", "scheduler_config"]

# BackboneFinetuning writes whole parameter groups, with their geometries, into checkpoints that are read with
# weights_only=True. Our geometries are frozen dataclasses of numbers and names, so they are safe.
torch.serialization.add_safe_globals([Spectral, Sign, Frobenius, Rows, Columns])


def scheduler_config(scheduler: AdaptiveWarmup, monitor: str | None = None) -> dict[str, Any]:
    """Return the ``"lr_scheduler"`` entry for ``configure_optimizers``.

    Args:
        scheduler: a scheduler over ``self.trainer.estimated_stepping_batches`` steps.
        monitor: None if the trainer has a `WarmupCallback`. Otherwise the name under which ``training_step`` logs its
            loss; Lightning then passes its last value to the scheduler. With gradient accumulation, only the last
            micro-batch's loss counts then. And Lightning steps such schedulers after it writes a mid-epoch checkpoint,
            so a run resumed from one misses a step; checkpoints at the end of an epoch are complete.

    Example:
        >>> import torch
        >>> from autowarm import AdaptiveWarmup, Lion
        >>> from autowarm.integrations.lightning import scheduler_config
        >>> opt = Lion(torch.nn.Linear(4, 4).parameters())
        >>> sorted(scheduler_config(AdaptiveWarmup(opt, 10), monitor="train_loss").items())[:3]
        [('frequency', 1), ('interval', 'step'), ('monitor', 'train_loss')]
    """
    config: dict[str, Any] = {"scheduler": scheduler, "interval": "step", "frequency": 1}
    if monitor is not None:
        config |= {"reduce_on_plateau": True, "monitor": monitor, "strict": True}
    return config


class WarmupCallback(pl.Callback):
    """Passes every micro-batch's loss to the `AdaptiveWarmup` from ``configure_optimizers``, and logs the schedule.

    It works with gradient accumulation, mixed precision and manual optimization. With several optimizers, each schedule
    gets the losses of the last backward passes before its own optimizer's step; optimizers that step one after the
    other share them. A run resumed at the end of an epoch is bit-identical to an uninterrupted one; within an epoch,
    Lightning starts the data over.

    With manual optimization, a loss that you divide for gradient accumulation counts as divided, so divide
    ``target_loss`` and ``chance_loss`` too; or leave out the callback and call ``self.lr_schedulers().observe(loss)``
    with the undivided loss of each micro-batch.

    Every ``log_every_n_steps`` steps it logs `AdaptiveWarmup.metrics` to the trainer's loggers under ``autowarm/``, and
    a second scheduler's under ``autowarm-1/``.

    It warns if the trainer's run is shorter or longer than the schedule: before the first update, and at the end unless
    another callback stopped the run. With manual optimization nobody knows how many updates a batch brings, so at the
    start only ``max_steps`` counts, which Lightning counts over all optimizers.

    Args:
        weight: function that returns a batch's weight, such as ``lambda batch: batch["labels"].numel()``; None for the
            number of samples, as Lightning counts them.

    Raises:
        ValueError: at the start of training, if there is no `AdaptiveWarmup`, or if Lightning would not step it exactly
            once per update, or would pass it losses too.

    Example:
        >>> from autowarm.integrations.lightning import WarmupCallback, pl
        >>> trainer = pl.Trainer(max_steps=100, callbacks=[WarmupCallback()], logger=False, accelerator="cpu",
        ...                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    """

    @plain_words
    def __init__(self, weight: Callable[[Any], float] | None = None) -> None:
        if not callable(weight := weight or extract_batch_size):
            raise TypeError(f"weight= is a function of a batch, got a {type(weight).__name__}: the callback finds the "
                            "schedulers by itself")  # fmt: skip
        self._weight_of = weight
        self._weight = 1.0
        self._steps_before = 0
        self._begins = False
        self._pending: list[tuple[Tensor, float]] = []  # losses whose optimizers are not known yet
        self._stepped = False  # whether an optimizer has stepped on them
        self._ended = EndOfWarmup()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the peak rate from a LearningRateFinder, and check that Lightning steps the schedulers as they need."""
        for finder in (one for one in trainer.callbacks if getattr(one, "optimal_lr", None) is not None):
            for config in _adaptive_configs(trainer):
                if config.scheduler.last_epoch == 0 and (peak := finder.optimal_lr.suggestion()) is not None:
                    ratio = peak / max(config.scheduler.base_lrs)
                    config.scheduler.base_lrs = [ratio * lr for lr in config.scheduler.base_lrs]
                    config.scheduler._update_lr(0)  # as PyTorch starts a scheduler
        configs = _adaptive_configs(trainer)
        averaging = [one for one in trainer.callbacks if isinstance(one, pl.callbacks.StochasticWeightAveraging)]
        # A run that resumes in its averaging has only that callback's schedule, as it would have without the break.
        if not configs and not any(one._scheduler_state for one in averaging):
            raise ValueError("WarmupCallback found no AdaptiveWarmup: return one from configure_optimizers")
        for c in configs:
            if pl_module.automatic_optimization and (c.reduce_on_plateau or c.interval != "step" or c.frequency != 1):
                raise ValueError(
                    "beside WarmupCallback the scheduler is stepped at each update and without a metric, got "
                    f"interval={c.interval!r}, frequency={c.frequency}, reduce_on_plateau={c.reduce_on_plateau}: "
                    "return autowarm.integrations.lightning.scheduler_config(scheduler)"
                )
        self._begins = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Determine the batch's weight, and at the first batch compare the run's length with the schedule's."""
        if self._begins:  # every callback has had its say by now
            self._begins = False
            _compare_lengths(trainer, pl_module, batch_idx)
        self._steps_before = trainer.global_step
        try:
            self._weight = float(self._weight_of(batch))
        except _exceptions.MisconfigurationException:
            raise ValueError(
                "the number of samples in a batch is unknown: give WarmupCallback(weight=...), a function of the batch"
            ) from None

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Pass on the loss that ``training_step`` returned."""
        loss = loss.detach().float()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            loss = loss / scaler.get_scale()
        if pl_module.automatic_optimization:
            loss = loss * trainer.accumulate_grad_batches  # Lightning has divided by it
        if len(trainer.optimizers) > 1:
            if self._stepped:
                self._pending, self._stepped = [], False
            self._pending.append((loss, self._weight))
            return
        for config in _adaptive_configs(trainer):
            config.scheduler.observe(loss, self._weight)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Pass on the losses held for one of several optimizers."""
        for config in _adaptive_configs(trainer):
            if unwrapped(config.scheduler.optimizer) is unwrapped(optimizer):
                for loss, weight in self._pending:
                    config.scheduler.observe(loss, weight)
        self._stepped = True  # another optimizer may step on the same losses

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Say when a warm-up has ended, and log the schedule at the trainer's logging steps."""
        logs = trainer.global_step != self._steps_before and trainer._logger_connector.should_update_logs
        for i, config in enumerate(_adaptive_configs(trainer)):
            if line := self._ended(config.scheduler):
                rank_zero_info(line)
            if logs:  # metrics() may wait for the device
                metrics = loggable_metrics(config.scheduler, f"autowarm-{i}" if i else "autowarm")
                pl_module.log_dict(metrics, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Warn if the schedule is not at its end, unless a callback stopped the run."""
        if trainer.should_stop or trainer.fast_dev_run:
            return
        for config in _adaptive_configs(trainer):
            warn_at_end(config.scheduler)


def _compare_lengths(trainer: Any, pl_module: Any, batch_idx: int) -> None:
    schedulers = [config.scheduler for config in _adaptive_configs(trainer)]
    steps = math.inf if trainer.max_steps == -1 else trainer.max_steps - trainer.global_step
    if trainer.fast_dev_run or not schedulers:  # StochasticWeightAveraging has put its own in their place
        return
    if pl_module.automatic_optimization:
        warn_at_start(schedulers[0], min(steps, _updates_by_epochs(trainer, batch_idx)))
        return
    planned = sum(one.total_steps - one.last_epoch for one in schedulers if one.total_steps is not None)
    if planned > steps:
        count = len(trainer.optimizers)
        why = f" (max_steps={trainer.max_steps} counts the steps of all {count} optimizers)" if count > 1 else ""
        for one in schedulers:
            if one.total_steps is not None:  # each gets its share of the steps
                warn_at_start(one, steps * (one.total_steps - one.last_epoch) // planned, why)


def _updates_by_epochs(trainer: Any, batch_idx: int) -> float:
    """The number of updates left until ``max_epochs``, from this batch on."""
    batches, epoch = trainer.num_training_batches, trainer.current_epoch
    if trainer.max_epochs == -1 or math.isinf(batches):
        return math.inf
    first, left = int(trainer.accumulate_grad_batches), range(epoch, trainer.max_epochs)
    for one in trainer.callbacks:
        if isinstance(one, pl.callbacks.GradientAccumulationScheduler):  # which changes it from epoch to epoch
            sizes = [int(one.get_accumulate_grad_batches(later)) for later in left]
            return sum(math.ceil(batches / size) for size in sizes) - batch_idx // sizes[0]
    return math.ceil(batches / first) * len(left) - batch_idx // first


def _adaptive_configs(trainer: Any) -> list[Any]:
    return [config for config in trainer.lr_scheduler_configs if isinstance(config.scheduler, AdaptiveWarmup)]
