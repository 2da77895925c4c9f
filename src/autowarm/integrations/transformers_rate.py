"""A search for the rate by the steps of a transformers `Trainer`; `autowarm.integrations.transformers` has it."""

from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.integrations import deactivate_neftune

from .. import rate
from ..rate import RateSearch
from ..rate.restore import Keeper
from ..undisturbed import generators, set_generators

__all__ = ["NO_TRAINER", "find_rate"]

NO_TRAINER = (
    "{0} takes a Trainer alone, as in {0}(Trainer(model, args)), got a {1}; for a loop of your own there are "
    "AdaptiveWarmup(optimizer, total_steps) and autowarm.find_rate(model, optimizer, closure)"
)


def find_rate(trainer: Trainer, *others: Any, **options: Any) -> RateSearch:
    """`autowarm.find_rate` for a `Trainer` that has not trained yet.

    The search runs the trainer's own start of training and its ``training_step``, with its precision, accumulation,
    clipping and processes. Afterwards the model, the random states, the rates of an optimizer that you gave, and what
    `Trainer` itself keeps are as before. What a subclass counts in its steps is not: the first log of TRL's
    ``SFTTrainer`` counts the search's tokens, too. A `WarmupTrainer` with ``optim=`` reads the new rate from its
    ``args`` when it trains; for another trainer, build a new one.

    Args:
        trainer: any `Trainer`.
        options: of `autowarm.find_rate`; ``total_steps`` is the trainer's own if not given.

    Raises:
        ValueError: as for `autowarm.find_rate`.

    Example:
        >>> import torch
        >>> from transformers import TrainingArguments
        >>> from autowarm.integrations.transformers import WarmupTrainer, find_rate
        >>> class Model(torch.nn.Linear):
        ...     def forward(self, x, labels=None):
        ...         y = super().forward(x)
        ...         return {"loss": (y - x).square().mean(), "logits": y}
        >>> _ = torch.manual_seed(0)
        >>> data = [{"x": torch.randn(8)} for _ in range(512)]
        >>> args = TrainingArguments("/tmp/out", max_steps=100, per_device_train_batch_size=16, report_to="none",
        ...                          disable_tqdm=True, use_cpu=True, remove_unused_columns=False)
        >>> trainer = WarmupTrainer(Model(8, 8), args, optim="muon", train_dataset=data)
        >>> args.learning_rate = find_rate(trainer).suggestion
    """
    if others or not isinstance(trainer, Trainer):
        raise TypeError(NO_TRAINER.format("find_rate", type(trainer).__name__))
    finder, model, before = _Finder(trainer, options), trainer.model, generators()
    assert model is not None
    names = ("model", "optimizer", "lr_scheduler", "model_wrapped", "is_in_train", "state", "control")
    kept = {name: getattr(trainer, name) for name in names}
    keep, given = Keeper(offload=False), getattr(trainer.optimizer, "param_groups", [])
    rates = [{name: keep(group[name]) for name in ("lr", "initial_lr") if name in group} for group in given]
    mode = model.training
    trainer.callback_handler.callbacks.insert(0, finder)  # before callbacks that would announce a run
    try:
        trainer.train()
    except _Found as ended:
        found = ended.search
    finally:
        trainer.callback_handler.callbacks.remove(finder)
        if trainer.neftune_noise_alpha is not None and hasattr(trainer, "neftune_hook_handle"):
            # The noise in the embeddings, which the trainer removes only at the end of its run.
            deactivate_neftune(model, trainer.neftune_hook_handle, trainer.accelerator)
        for name, value in kept.items():
            setattr(trainer, name, value)
        trainer._created_lr_scheduler = False
        # The scheduler that the trainer made has written into the groups, and Accelerate may have made them anew.
        for group, restored in zip(getattr(trainer.optimizer, "param_groups", []), rates, strict=True):
            group.pop("initial_lr", None)
            group.update({name: restore() for name, restore in restored.items()})
        model.train(mode)
        set_generators(before)
    return found


class _Found(Exception):
    """Ends the trainer's run at the point where training would start."""

    def __init__(self, search: RateSearch) -> None:
        self.search = search


class _Finder(TrainerCallback):
    """Searches at the point where training would start."""

    def __init__(self, trainer: Trainer, options: dict[str, Any]) -> None:
        self._trainer, self._options = trainer, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer: Any = self._trainer
        model, optimizer, loader = trainer.model_wrapped, trainer.optimizer, kwargs["train_dataloader"]
        batches = iter(loader)

        def next_update() -> tuple[list[Any], Any]:
            nonlocal batches
            found = trainer.get_batch_samples(batches, args.gradient_accumulation_steps, args.device)
            if not found[0]:
                batches = iter(loader)
                found = trainer.get_batch_samples(batches, args.gradient_accumulation_steps, args.device)
            return found

        def closure() -> Tensor:
            samples, count = next_update()
            trainer.current_gradient_accumulation_steps = len(samples)
            # Each loss is the micro-batch's share of the update's loss.
            losses = [trainer.training_step(model, sample, count).float() for sample in samples]
            if args.max_grad_norm:
                trainer.accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            return torch.stack(losses).sum()

        options = {"total_steps": state.max_steps, **self._options}
        raise _Found(rate.find_rate(model, optimizer, closure, **options))
