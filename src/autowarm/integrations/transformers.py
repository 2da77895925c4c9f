"""The adapter for transformers' `Trainer`, which steps its scheduler without a loss and shows callbacks none."""

import ast
import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._torch.frames import frames_of_ours
from .._torch.habits import check_names, plain_words
from .._version import install
from ..optim import Lion, Muon, NormSGD, SignSGD
from ..schedule import AdaptiveWarmup
from .metrics import EndOfWarmup, loggable_metrics, warn_at_start

_OLDEST = 5  # of transformers

try:
    import transformers

    if int(transformers.__version__.partition(".")[0]) < _OLDEST:
        raise ImportError(f"transformers {transformers.__version__} is installed")
    from tqdm.auto import tqdm  # type: ignore[import-untyped]
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )
except ImportError as missing:
    raise ImportError(
        f"this plug-in needs transformers {_OLDEST} or later: {install('transformers')} ({missing})"
    ) from missing

__all__ = ["AdaptiveWarmupMixin", "WarmupCallback", "WarmupTrainer"]

_SHOWN = ("autowarm/phase", "autowarm/share", "autowarm/warmup_end")  # where a trainer prints its logs
_OPTIMIZERS = {"muon": Muon, "lion": Lion, "signsgd": SignSGD, "normsgd": NormSGD}
# Settings of `TrainingArguments` that an `AdaptiveWarmup` replaces, and its corresponding option.
_REPLACED = {
    "warmup_steps": "the warm-up sets its own length",
    "lr_scheduler_type": 'the decay is "cosine" unless AdaptiveWarmup has another: warmup={"decay": "wsd"}',
    "lr_scheduler_kwargs": "AdaptiveWarmup has its own options, as in warmup={...}",
}


class WarmupCallback(TrainerCallback):
    """Passes a trainer's losses to its `AdaptiveWarmup` and adds the schedule's metrics to the trainer's logs.

    An update's loss is the sum of the losses that its micro-batches back-propagate. This is `Trainer`'s own weighting:
    by tokens if the model takes ``num_items_in_batch``, evenly otherwise. The scheduler averages over ranks. Losses of
    an update that mixed precision skips are dropped, but one that is not finite counts for ``max_nonfinite``.

    Each training log entry, and so every tracker in ``report_to``, also gets `AdaptiveWarmup.metrics` under
    ``autowarm/``; what is printed gains three of them, and a line when the warm-up ends. Before the first update it
    warns if the trainer's run is not as long as the schedule.

    Args:
        trainer: the trainer that you add this to, built with ``optimizers=(optimizer, AdaptiveWarmup(optimizer,
            steps))``. `WarmupTrainer` does both for you.

    Raises:
        ValueError: at the start of training, if the trainer's scheduler is not an `AdaptiveWarmup`.

    Example:
        >>> import torch
        >>> from transformers import Trainer, TrainingArguments
        >>> from autowarm import AdaptiveWarmup, Muon
        >>> from autowarm.integrations.transformers import WarmupCallback
        >>> model = torch.nn.Linear(4, 4)
        >>> opt = Muon.from_model(model, lr=1e-2)
        >>> args = TrainingArguments("/tmp/out", max_steps=100, report_to="none", use_cpu=True)
        >>> trainer = Trainer(model, args, optimizers=(opt, AdaptiveWarmup(opt, 100)))
        >>> trainer.add_callback(WarmupCallback(trainer))
    """

    @plain_words
    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer
        self._wrapped = False
        self._begins = False
        self._losses: list[Tensor] = []
        self._ended = EndOfWarmup()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wrap the trainer's ``training_step`` and ``log``."""
        scheduler = self._trainer.lr_scheduler
        if not isinstance(scheduler, AdaptiveWarmup):
            raise ValueError(_foreign(scheduler))
        if scheduler.load_warning is not None:
            warnings.warn(scheduler.load_warning, stacklevel=2)  # Trainer has suppressed it
            scheduler.load_warning = None
        if not self._wrapped:
            self._wrapped = True
            self._wrap(self._trainer)
        self._begins = True

    def _wrap(self, trainer: Any) -> None:
        training_step, log = trainer.training_step, trainer.log

        def training_step_with_loss_recorded(*args: Any, **kwargs: Any) -> Tensor:
            loss: Tensor = training_step(*args, **kwargs)
            self._losses.append(loss.detach())
            return loss

        def log_with_metrics(logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            if "learning_rate" in logs:  # entries of evaluations and the final summary lack this key
                logs = logs | loggable_metrics(trainer.lr_scheduler)
            log(logs, *args, **kwargs)

        trainer.training_step, trainer.log = training_step_with_loss_recorded, log_with_metrics
        for one in trainer.callback_handler.callbacks:
            if isinstance(one, PrinterCallback | ProgressCallback):
                vars(one)["on_log"] = _brief(one.on_log)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Drop the losses of an update that was skipped; before the first, compare the run's length."""
        self._losses.clear()
        if self._begins:  # every callback has had its say by now
            self._begins = False
            warn_at_start(self._trainer.lr_scheduler, state.max_steps - state.global_step)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass on the update's losses before the trainer steps the scheduler."""
        scheduler, skipped = self._trainer.lr_scheduler, self._trainer.accelerator.optimizer_step_was_skipped
        for loss in self._losses:
            # Each is already the micro-batch's share of the update's loss, but the scheduler takes a mean.
            wide = torch.promote_types(loss.dtype, torch.float32)
            scheduler.observe(loss.to(wide) * len(self._losses))
        if skipped:
            scheduler.step()  # the trainer will not, but losses that are not finite count

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say when the warm-up has ended."""
        if (line := self._ended(self._trainer.lr_scheduler)) and state.is_world_process_zero:
            tqdm.write(line)


def _brief(on_log: Callable[..., None]) -> Callable[..., None]:
    """What prints a trainer's logs, with three of the schedule's values."""

    def shown(args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        few = {name: x for name, x in (logs or {}).items() if name in _SHOWN or not name.startswith("autowarm/")}
        on_log(args, state, control, logs=few, **kwargs)

    return shown


def _foreign(scheduler: Any) -> str:
    return (
        f"the trainer's scheduler is a {type(scheduler).__name__}: use WarmupTrainer(..., "
        "optimizers=(optimizer, None)), which makes its own, or give "
        "optimizers=(optimizer, AdaptiveWarmup(optimizer, steps))"
    )


class AdaptiveWarmupMixin:
    """Adds the adaptive warm-up to any `Trainer`: ``class MyTrainer(AdaptiveWarmupMixin, SFTTrainer): pass``.

    For transformers' causal and masked language models with their own loss, ``chance_loss`` is ln(vocabulary) unless
    you set it.

    ``learning_rate`` is the peak rate. ``warmup_steps``, ``lr_scheduler_type`` and ``lr_scheduler_kwargs`` are ignored,
    with a warning for each that you set. Each new optimizer is built from the trainer's ``args`` as they are then, so
    that the trials of ``hyperparameter_search`` train with the rates that they try.

    Args:
        optim: "muon" (matrices; AdamW for the rest), "lion", "signsgd" or "normsgd", with the ``learning_rate`` and
            ``weight_decay`` of ``args``, and further options in its ``optim_args``, written as in a call:
            ``"momentum=0.9, method='newton-schulz'"``. None to use ``args.optim`` or ``optimizers``.
        warmup: options of `AdaptiveWarmup`, such as ``{"target_loss": 3.0, "decay": "wsd"}``.

    Raises:
        ValueError: ``optim`` is unknown, it or ``warmup`` is given together with ``optimizers``, or ``optim_args`` is
            no list of ``name=value``.
        TypeError: ``warmup`` is no mapping.
    """

    @plain_words
    def __init__(
        self, *args: Any, optim: str | None = None, warmup: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if warmup is not None and not isinstance(warmup, Mapping):
            raise TypeError(f'warmup= takes options of AdaptiveWarmup, such as {{"max_warmup": 0.1}}, got {warmup!r}')
        check_names("AdaptiveWarmup", [*inspect.signature(AdaptiveWarmup).parameters][2:], warmup or {})
        trainer: Any = self
        if not isinstance(trainer.lr_scheduler, AdaptiveWarmup | None):
            raise ValueError(_foreign(trainer.lr_scheduler))
        if warmup and trainer.lr_scheduler is not None:
            raise ValueError("warmup= and a scheduler were given: pass the options to AdaptiveWarmup itself")
        self._warmup = dict(warmup or {})
        if optim is not None:
            if trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is not None:
                raise ValueError(f"optim={optim!r} and an optimizer were given: give one of them")
            trainer.optimizer_cls_and_kwargs = _optimizer_by_name(optim, trainer.args)
        self._optim = optim
        self._warned: set[str] = set()
        _warn_of_replaced_settings(trainer.args, self._warned)
        trainer.add_callback(WarmupCallback(trainer))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """Build the optimizer from ``args`` as they are now: a search for hyper-parameters changes them."""
        trainer: Any = self
        if self._optim is not None and trainer.optimizer is None:
            trainer.optimizer_cls_and_kwargs = _optimizer_by_name(self._optim, trainer.args)
        return super().create_optimizer(*args, **kwargs)  # type: ignore[misc]

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        """Create an `AdaptiveWarmup` over the whole run, unless a scheduler was given."""
        trainer: Any = self
        if trainer.lr_scheduler is None:
            _warn_of_replaced_settings(trainer.args, self._warned)  # of a search over one of them
            options = dict(self._warmup)
            usual_loss = type(trainer).compute_loss is Trainer.compute_loss and trainer.compute_loss_func is None
            if "chance_loss" not in options and usual_loss:
                options["chance_loss"] = _chance_loss(trainer.accelerator.unwrap_model(trainer.model))
            trainer.lr_scheduler = AdaptiveWarmup(optimizer or trainer.optimizer, num_training_steps, **options)
            trainer._created_lr_scheduler = True
        return trainer.lr_scheduler


class WarmupTrainer(AdaptiveWarmupMixin, Trainer):
    """transformers' `Trainer` with a warm-up that sets itself.

    Args:
        optim, warmup: see `AdaptiveWarmupMixin`; everything else as for `Trainer`.

    Example:
        >>> import torch
        >>> from transformers import TrainingArguments
        >>> from autowarm.integrations.transformers import WarmupTrainer
        >>> args = TrainingArguments("/tmp/out", max_steps=100, learning_rate=1e-2, report_to="none", use_cpu=True)
        >>> trainer = WarmupTrainer(torch.nn.Linear(4, 4), args, optim="muon", warmup={"decay": "wsd"})
        >>> type(trainer.create_optimizer()).__name__
        'Muon'
    """


def _chance_loss(model: Any) -> float | None:
    """ln(vocabulary), the loss of a language model that knows nothing; None for other models."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # of peft
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if type(model).__name__ not in {*known.values()}:
        return None
    return math.log(model.config.get_text_config().vocab_size)


def _warn_of_replaced_settings(args: Any, warned: set[str]) -> None:
    for field in dataclasses.fields(args):
        name, value = field.name, getattr(args, field.name)
        # A setting at its default looks the same as one not given, so Trainer's own "linear" causes no warning.
        if name in _REPLACED and name not in warned and value and value != field.default:
            warned.add(name)
            shown = getattr(value, "value", value)  # an enumeration's member, by its command-line name
            warnings.warn(f"{name}={shown!r} is not used: {_REPLACED[name]}", stacklevel=frames_of_ours())


def _optimizer_by_name(name: str, args: Any) -> tuple[Callable[[], Callable[..., Optimizer]], dict[str, Any]]:
    """One of our optimizers as Trainer's ``optimizer_cls_and_kwargs``, from its rate, decay and ``optim_args``."""
    key = str(name).lower()
    if isinstance(name, Optimizer):
        raise TypeError(f"optim is a name, got a {type(name).__name__}: pass optimizers=(optimizer, None)")
    if key not in _OPTIMIZERS:
        raise ValueError(
            f"no optimizer is called {name!r}: use one of {sorted(_OPTIMIZERS)}, or leave optim out and set args.optim"
        )
    options = {"lr": args.learning_rate, "weight_decay": args.weight_decay, **_options_in(args.optim_args)}
    # Trainer calls a factory first without arguments, then with the model.
    factory: Any = _OPTIMIZERS[key]  # each from_model has a different signature
    return lambda: factory.from_model, options


def _options_in(text: str | None) -> dict[str, Any]:
    try:
        call: Any = ast.parse(f"f({text or ''})", mode="eval").body
        if call.args:
            raise ValueError
        given = {str(one.arg): one.value for one in call.keywords}
        return {name: x.id if isinstance(x, ast.Name) else ast.literal_eval(x) for name, x in given.items()}
    except (AttributeError, SyntaxError, ValueError):
        raise ValueError(
            f"optim_args={text!r} must read like the arguments of a call: \"momentum=0.9, method='svd'\""
        ) from None
