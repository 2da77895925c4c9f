"""Lightning, which steps a scheduler without a loss, or with the last micro-batch's as a monitored metric."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import rate
from ..geometry import Columns, Frobenius, Rows, Sign, Spectral
from ..rate import RateSearch
from ..schedule import AdaptiveWarmup
from ..undisturbed import generators, set_generators
from .metrics import loggable_metrics

try:
    import lightning.pytorch as pl
    from lightning.pytorch.utilities.data import extract_batch_size
    from lightning.pytorch.utilities.exceptions import _TunerExitException
except ImportError:
    try:
        import pytorch_lightning as pl  # type: ignore[no-redef]
        from pytorch_lightning.utilities.data import extract_batch_size
        from pytorch_lightning.utilities.exceptions import _TunerExitException  # type: ignore[assignment]
    except ImportError as missing:
        raise ImportError("this plug-in needs lightning: pip install 'autowarm[lightning]'") from missing

__all__ = ["WarmupCallback", "find_rate", "scheduler_config"]

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


def find_rate(
    trainer: Any, module: Any, train_dataloaders: Any = None, datamodule: Any = None, **options: Any
) -> RateSearch:
    """`autowarm.find_rate` for a `LightningModule` with automatic optimization and one optimizer.

    The module's ``training_step`` runs as in training (precision, accumulation, clipping, strategy), but what it logs
    is dropped and no callback hears of it. The module and the random states are then as before; the rates of the
    optimizer that ``configure_optimizers`` makes next are yours to set by the suggestion.

    Args:
        trainer: made for this; it has not trained, and training needs another one.
        module, train_dataloaders, datamodule: as for ``trainer.fit``.
        options: of `autowarm.find_rate`.

    Raises:
        ValueError: the module optimizes by itself or has several optimizers; and as for `autowarm.find_rate`.

    Example:
        >>> import torch
        >>> from autowarm import Muon
        >>> from autowarm.integrations.lightning import find_rate, pl
        >>> class Module(pl.LightningModule):
        ...     def __init__(self, lr=1e-3):
        ...         super().__init__()
        ...         self.net, self.lr = torch.nn.Linear(8, 8), lr
        ...     def training_step(self, x, batch_idx):
        ...         return (self.net(x) - x).square().mean()
        ...     def configure_optimizers(self):
        ...         return Muon.from_model(self.net, lr=self.lr)
        >>> _ = torch.manual_seed(0)
        >>> module, loader = Module(), torch.utils.data.DataLoader(torch.randn(2048, 8), batch_size=16)
        >>> trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False,
        ...                      enable_progress_bar=False, enable_model_summary=False)
        >>> module.lr = find_rate(trainer, module, loader).suggestion
    """
    if not module.automatic_optimization:
        raise ValueError("find_rate needs automatic optimization: call autowarm.find_rate with a closure of your own")
    finder = _Finder(options)
    trainer.callbacks.insert(0, finder)
    before = generators()
    try:
        trainer.fit(module, train_dataloaders=train_dataloaders, datamodule=datamodule)
    finally:
        set_generators(before)
    assert finder.found is not None
    return finder.found


class _Finder(pl.Callback):
    """Searches where training would start, and ends the trainer's run there as Lightning's own tuners do."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.found: RateSearch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise ValueError(f"find_rate needs one optimizer, and configure_optimizers made {len(trainer.optimizers)}")
        callbacks, trainer.callbacks = trainer.callbacks, []  # such as a WarmupCallback, which would count the losses
        vars(pl_module)["log"] = lambda *args, **options: None
        try:
            closure = _Closure(trainer, pl_module)
            self.found = rate.find_rate(
                trainer.strategy.model, trainer.optimizers[0], closure, scaler=closure.scaler, **self._options
            )
        finally:
            del vars(pl_module)["log"]
            trainer.callbacks = callbacks
        raise _TunerExitException


class _Closure:
    """One update's forward and backward passes, as Lightning makes them."""

    def __init__(self, trainer: Any, pl_module: Any) -> None:
        self._trainer, self._module = trainer, pl_module
        self._loader, self._batches = trainer.train_dataloader, iter(trainer.train_dataloader)
        self.scaler = getattr(trainer.precision_plugin, "scaler", None)

    def __call__(self) -> Tensor:
        trainer, module = self._trainer, self._module
        count = trainer.accumulate_grad_batches
        total = torch.zeros(())
        for index in range(count):
            batch = trainer.precision_plugin.convert_input(self._next())
            batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
            output = trainer.strategy.training_step(batch, index)
            loss = output["loss"] if isinstance(output, dict) else output
            trainer.strategy.backward(loss / count, None)
            total = total + loss.detach().float().cpu() / count
        optimizer = trainer.optimizers[0]
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        clip, how = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        module.configure_gradient_clipping(optimizer, gradient_clip_val=clip, gradient_clip_algorithm=how)
        return total

    def _next(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            return next(self._batches)
