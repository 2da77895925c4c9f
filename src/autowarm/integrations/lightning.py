"""Lightning, which steps a scheduler without a loss, or with the last micro-batch's as a monitored metric."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..geometry import Columns, Frobenius, Rows, Sign, Spectral
from ..schedule import AdaptiveWarmup
from .metrics import loggable_metrics

try:
    import lightning.pytorch as pl
    from lightning.pytorch.utilities.data import extract_batch_size
except ImportError:
    try:
        import pytorch_lightning as pl  # type: ignore[no-redef]
        from pytorch_lightning.utilities.data import extract_batch_size
    except ImportError as missing:
        raise ImportError("this plug-in needs lightning: pip install 'autowarm[lightning]'") from missing

__all__ = ["WarmupCallback", "scheduler_config"]

# BackboneFinetuning writes whole parameter groups, geometries and all, into its checkpoints, and they are read with
# weights_only=True. Ours are frozen dataclasses of numbers and names.
torch.serialization.add_safe_globals([Spectral, Sign, Frobenius, Rows, Columns])


def scheduler_config(scheduler: AdaptiveWarmup, monitor: str | None = None) -> dict[str, Any]:
    """The value of ``"lr_scheduler"`` in what ``configure_optimizers`` returns.

    Args:
        scheduler: over ``self.trainer.estimated_stepping_batches`` steps.
        monitor: None if the trainer has a `WarmupCallback`. Otherwise the name that ``training_step`` logs its loss
            under: Lightning then hands its last value to the scheduler. With gradient accumulation that is the last
            micro-batch's; and Lightning steps such schedulers only after it has written a checkpoint in the middle of
            an epoch, so that a run resumed from one lacks a step. Checkpoints at the end of an epoch are whole.

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
    """Hands every micro-batch's loss to the `AdaptiveWarmup` that ``configure_optimizers`` returned, and logs it.

    Right under gradient accumulation, mixed precision and manual optimization, and to the bit on resuming from any
    checkpoint.

    Every ``log_every_n_steps`` the trainer's loggers get `AdaptiveWarmup.metrics` under ``autowarm/``; a second
    scheduler's are under ``autowarm-1/``.

    Args:
        weight: what a batch weighs, such as ``lambda batch: batch["labels"].numel()``; None for its number of samples,
            as Lightning counts them.

    Raises:
        ValueError: at the start of training, if there is no `AdaptiveWarmup`, or if Lightning would not step it once
            per update, or would hand it losses too.

    Example:
        >>> from autowarm.integrations.lightning import WarmupCallback, pl
        >>> trainer = pl.Trainer(max_steps=100, callbacks=[WarmupCallback()], logger=False, accelerator="cpu",
        ...                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    """

    def __init__(self, weight: Callable[[Any], float] | None = None) -> None:
        self._weight_of = weight or extract_batch_size
        self._weight = 1.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that the schedulers are stepped as they need to be."""
        configs = _adaptive_configs(trainer)
        if not configs:
            raise ValueError("WarmupCallback found no AdaptiveWarmup: return one from configure_optimizers")
        for c in configs:
            if pl_module.automatic_optimization and (c.reduce_on_plateau or c.interval != "step" or c.frequency != 1):
                raise ValueError(
                    "beside WarmupCallback the scheduler is stepped at each update and without a metric, got "
                    f"interval={c.interval!r}, frequency={c.frequency}, reduce_on_plateau={c.reduce_on_plateau}: "
                    "return autowarm.integrations.lightning.scheduler_config(scheduler)"
                )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Weigh the batch."""
        self._weight = float(self._weight_of(batch))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Hand over the loss, as ``training_step`` returned it."""
        loss = loss.detach().float()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            loss = loss / scaler.get_scale()
        if pl_module.automatic_optimization:
            loss = loss * trainer.accumulate_grad_batches  # Lightning has divided by it
        for config in _adaptive_configs(trainer):
            config.scheduler.observe(loss, self._weight)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the schedule, where the trainer logs anything."""
        every = trainer.log_every_n_steps
        if every == 0 or trainer.global_step % every:
            return  # metrics() may wait for the device
        for i, config in enumerate(_adaptive_configs(trainer)):
            metrics = loggable_metrics(config.scheduler, f"autowarm-{i}" if i else "autowarm")
            pl_module.log_dict(metrics, on_step=True, on_epoch=False)


def _adaptive_configs(trainer: Any) -> list[Any]:
    return [config for config in trainer.lr_scheduler_configs if isinstance(config.scheduler, AdaptiveWarmup)]
