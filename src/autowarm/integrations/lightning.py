"""The adapter for Lightning, which steps a scheduler with no loss, or with the last micro-batch's as a metric."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .. import rate
from ..geometry import Columns, Frobenius, Rows, Sign, Spectral
from ..habits import plain_words
from ..optim.wrapped import unwrapped
from ..rate import RateSearch
from ..schedule import AdaptiveWarmup
from ..undisturbed import generators, set_generators
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
is_param_in_hook_signature = import_module(f"{_utilities}.signature_utils").is_param_in_hook_signature
rank_zero_info = import_module(f"{_utilities}.rank_zero").rank_zero_info
Metric = import_module("torchmetrics").Metric  # which Lightning needs

__all__ = ["WarmupCallback", "find_rate", "scheduler_config"]

_MOST_SKIPPED = 1000  # batches in a row without a loss, before the search gives up

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
        self._held: list[tuple[Tensor, float]] = []  # losses whose optimizers are not known yet
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
                self._held, self._stepped = [], False
            self._held.append((loss, self._weight))
            return
        for config in _adaptive_configs(trainer):
            config.scheduler.observe(loss, self._weight)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Pass on the losses held for one of several optimizers."""
        for config in _adaptive_configs(trainer):
            if unwrapped(config.scheduler.optimizer) is unwrapped(optimizer):
                for loss, weight in self._held:
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
    first, left = _accumulation(trainer, epoch), range(epoch, trainer.max_epochs)
    if any(isinstance(one, pl.callbacks.GradientAccumulationScheduler) for one in trainer.callbacks):
        updates = sum(math.ceil(batches / _accumulation(trainer, later)) for later in left)
    else:
        updates = math.ceil(batches / first) * len(left)
    return updates - batch_idx // first


def _accumulation(trainer: Any, epoch: int) -> int:
    """How many micro-batches an update takes in this epoch."""
    for one in trainer.callbacks:
        if isinstance(one, pl.callbacks.GradientAccumulationScheduler):
            return int(one.get_accumulate_grad_batches(epoch))
    return int(trainer.accumulate_grad_batches)


def _adaptive_configs(trainer: Any) -> list[Any]:
    return [config for config in trainer.lr_scheduler_configs if isinstance(config.scheduler, AdaptiveWarmup)]


def find_rate(
    trainer: Any, module: Any, train_dataloaders: Any = None, datamodule: Any = None, **options: Any
) -> RateSearch:
    """`autowarm.find_rate` for a `LightningModule` with automatic optimization and one optimizer.

    The module's ``training_step`` runs as in training, with the trainer's precision, accumulation, clipping and
    strategy, but its logs are dropped, and callbacks see only the start of the run. Afterwards the module and the
    random states are as before, except that metrics of torchmetrics are reset, and that a trainer with a precision such
    as "bf16-true" converts the module, as it does for training. Set the suggested rate yourself, in the optimizer that
    ``configure_optimizers`` makes next.

    Args:
        trainer: a new trainer, for the search only, as long as the training will be (``max_steps`` or ``max_epochs``);
            use another one to train.
        module, train_dataloaders, datamodule: as for ``trainer.fit``.
        options: of `autowarm.find_rate`; ``total_steps`` is the trainer's own if not given.

    Raises:
        ValueError: the module uses manual optimization or several optimizers; also as for `autowarm.find_rate`.

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
        >>> trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
        ...                      enable_progress_bar=False, enable_model_summary=False)
        >>> module.lr = find_rate(trainer, module, loader).suggestion
    """
    if [isinstance(trainer, pl.Trainer), isinstance(module, pl.LightningModule)] != [True, True]:
        got = f"{type(trainer).__name__}, {type(module).__name__}"
        raise TypeError(f"the order is find_rate(trainer, module, train_dataloaders), got ({got}, ...)")
    if not module.automatic_optimization:
        raise ValueError("find_rate needs automatic optimization: call autowarm.find_rate with a closure of your own")
    finder = _Finder(options)
    trainer.callbacks.insert(0, finder)
    before, trained = generators(), {p: p.requires_grad for p in module.parameters()}
    checks, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, 0
    try:
        trainer.fit(module, train_dataloaders=train_dataloaders, datamodule=datamodule)
    finally:
        set_generators(before)
        trainer.num_sanity_val_steps = checks
        for p, needed in trained.items():  # a callback may have frozen some
            p.requires_grad_(needed)
        for part in module.modules():
            if isinstance(part, Metric):
                part.reset()
    if finder.found is None:
        raise ValueError("the trainer stopped before its first update: give it max_steps or max_epochs, and data")
    return finder.found


class _Finder(pl.Callback):
    """Searches at the point where training would start, then ends the trainer's run as Lightning's own tuners do."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.found: RateSearch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise ValueError(f"find_rate needs one optimizer, and configure_optimizers made {len(trainer.optimizers)}")
        steps = min(math.inf if trainer.max_steps == -1 else trainer.max_steps, _updates_by_epochs(trainer, 0))
        closure = _Closure(trainer, pl_module, _accumulation(trainer, trainer.current_epoch))
        callbacks, trainer.callbacks = trainer.callbacks, []  # such as a WarmupCallback, which would count the losses
        vars(pl_module)["log"] = lambda *args, **options: None
        try:
            options = ({} if math.isinf(steps) else {"total_steps": int(steps)}) | self._options
            self.found = rate.find_rate(
                trainer.strategy.model, trainer.optimizers[0], closure, scaler=closure.scaler, **options
            )
        finally:
            del vars(pl_module)["log"]
            trainer.callbacks = callbacks
        raise _exceptions._TunerExitException


class _Closure:
    """One update's forward and backward passes, as Lightning makes them."""

    def __init__(self, trainer: Any, pl_module: Any, accumulation: int) -> None:
        self._trainer, self._module, self._count = trainer, pl_module, accumulation
        self._loader = trainer.fit_loop._combined_loader  # of one or several loaders
        self._batches = iter(self._loader)
        self.scaler = getattr(trainer.precision_plugin, "scaler", None)

    def __call__(self) -> Tensor:
        trainer, module, count = self._trainer, self._module, self._count
        total = torch.zeros(())
        for index in range(count):
            loss = self._loss(index)
            trainer.strategy.backward(loss / count, None)
            total = total + loss.detach().float().cpu() / count
        optimizer = trainer.optimizers[0]
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        clip, how = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        module.configure_gradient_clipping(optimizer, gradient_clip_val=clip, gradient_clip_algorithm=how)
        return total

    def _loss(self, index: int) -> Tensor:
        """The loss of the next batch that the module does not skip by returning None."""
        trainer, module = self._trainer, self._module
        numbered = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        for _ in range(_MOST_SKIPPED):
            batch, *_ = self._next()
            batch = trainer.precision_plugin.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
            output = trainer.strategy.training_step(*((batch, index) if numbered else (batch,)))
            loss: Tensor | None = output.get("loss") if isinstance(output, dict) else output
            if loss is not None:
                return loss
        raise RuntimeError(f"training_step returned None for {_MOST_SKIPPED} batches in a row")

    def _next(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            return next(self._batches)
