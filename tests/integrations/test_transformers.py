"""transformers' Trainer trains as a plain loop with the same losses would, to the bit."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD
from autowarm.integrations.transformers import AdaptiveWarmupMixin, WarmupCallback, WarmupTrainer

from .llama import make_data, make_model
from .plain import train

STEPS, BATCH, LR = 12, 4, 0.02


def make_args(folder: Path, accumulation: int = 1, **options: Any) -> TrainingArguments:
    usual: dict[str, Any] = {
        "max_steps": STEPS, "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": accumulation,
        "learning_rate": LR, "max_grad_norm": 0.0, "logging_steps": 1, "save_strategy": "steps", "save_steps": 2,
        "report_to": "none", "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    return TrainingArguments(str(folder), **usual | options)


class InOrder:
    """The data in its own order, so that a plain loop sees the same."""

    def get_train_dataloader(self: Any) -> DataLoader:
        loader = DataLoader(self.train_dataset, BATCH, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


class Mixed(InOrder, WarmupTrainer):
    pass


class CalledBack(InOrder, Trainer):
    """A plain Trainer with a schedule over the run, or over another number of updates."""

    def __init__(self, model: Any, args: Any, *, optim: str, plan: int | None = None, **kwargs: Any) -> None:
        opt = Muon.from_model(model, lr=args.learning_rate, weight_decay=args.weight_decay)
        super().__init__(model, args, optimizers=(opt, AdaptiveWarmup(opt, plan or args.max_steps)), **kwargs)
        self.add_callback(WarmupCallback(self))


class Plain(InOrder, Trainer):
    pass


class Mixin(AdaptiveWarmupMixin, Plain):
    pass


def logged(trainer: Trainer, what: str) -> list[float]:
    return [entry[what] for entry in trainer.state.log_history if what in entry]


def plain_loop(accumulation: int) -> tuple[LlamaForCausalLM, list[float]]:
    model, data = make_model(), make_data(STEPS * BATCH * accumulation)

    def batch(i: int) -> dict[str, torch.Tensor]:
        return {key: torch.stack([row[key] for row in data[BATCH * i : BATCH * (i + 1)]]) for key in data[0]}

    def micro_loss(model: nn.Module, i: int) -> torch.Tensor:
        of_update = range(i - i % accumulation, i - i % accumulation + accumulation)
        tokens = sum((batch(j)["labels"][:, 1:] != -100).sum() for j in of_update)
        return accumulation * model(**batch(i), num_items_in_batch=tokens / 1).loss

    return model, train(model, Muon.from_model(model, lr=LR, weight_decay=0.0), micro_loss, accumulation)


@pytest.mark.parametrize(("kind", "accumulation"), [(Mixed, 1), (Mixed, 2), (CalledBack, 2), (Mixin, 2)])
def test_the_rates_and_weights_are_a_plain_loops(
    kind: Callable[..., Trainer], accumulation: int, tmp_path: Path
) -> None:
    data = make_data(STEPS * BATCH * accumulation)
    trainer = kind(make_model(), make_args(tmp_path, accumulation), optim="muon", train_dataset=data)
    trainer.train()
    model, rates = plain_loop(accumulation)
    assert logged(trainer, "learning_rate") == rates
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), model.parameters(), strict=True))

    # Resumed in warm-up and in decay, by a new trainer with a new model.
    for at in (2, 8):
        resumed = kind(make_model(), make_args(tmp_path, accumulation), optim="muon", train_dataset=data)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
        assert logged(resumed, "learning_rate") == rates
        assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), model.parameters(), strict=True))


def test_optimizers_by_name(tmp_path: Path) -> None:
    for name, kind in {"muon": Muon, "Lion": Lion, "signsgd": SignSGD, "normsgd": NormSGD}.items():
        args = make_args(tmp_path, optim_args="momentum=0.8" if name != "Lion" else "betas=(0.8, 0.9)")
        opt = WarmupTrainer(make_model(), args, optim=name).create_optimizer()
        assert type(opt) is kind
        assert (opt.param_groups[0]["lr"], opt.param_groups[0]["weight_decay"]) == (LR, 0.0)
    args = make_args(tmp_path, optim_args="method='newton-schulz', steps=3", weight_decay=0.1)
    group = WarmupTrainer(make_model(), args, optim="muon").create_optimizer().param_groups[0]
    assert (group["geometry"].method, group["geometry"].steps, group["weight_decay"]) == ("newton-schulz", 3, 0.1)


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [({"max_warmup": 0.5}, math.log(32)), ({"chance_loss": 7.0}, 7.0), ({"chance_loss": None}, None)],
)
def test_the_chance_loss_is_that_of_the_vocabulary_unless_set_or_not_known(
    warmup: dict[str, Any], expected: float | None, tmp_path: Path
) -> None:
    class Own(WarmupTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return 10 * super().compute_loss(model, inputs, *args, **kwargs)

    def chance(model: Any, kind: type[WarmupTrainer] = WarmupTrainer, **options: Any) -> float | None:
        trainer = kind(model, make_args(tmp_path), optim="muon", warmup=warmup, **options)
        trainer.create_optimizer_and_scheduler(STEPS)
        return trainer.lr_scheduler.state_dict()["settings"]["chance_loss"]

    lora = get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"]))
    assert {chance(model) for model in (make_model(), lora, torch.compile(make_model()))} == {expected}
    unknown = chance(make_model(), Own), chance(make_model(), compute_loss_func=lambda *_: 0.0), chance(nn.Linear(4, 4))
    assert unknown == (warmup.get("chance_loss"),) * 3


def test_each_setting_that_is_not_used_is_named_once(tmp_path: Path) -> None:
    used = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}, "warmup_steps": 5}
    with warnings.catch_warnings(record=True, action="always") as caught:
        trainer = WarmupTrainer(make_model(), make_args(tmp_path, **used), optim="muon")
        for _ in range(2):
            trainer.create_optimizer_and_scheduler(STEPS)
    unused = [one for one in caught if "is not used" in str(one.message)]
    named = {str(one.message).partition(" is not used: ")[0] for one in unused}
    assert named == {f"{name}={value!r}" for name, value in used.items()}
    assert len(unused) == 3
    assert {one.filename for one in unused} == {__file__}  # they point at the line that made the trainer


def test_each_trial_of_a_search_trains_with_the_values_that_it_tries(tmp_path: Path) -> None:
    """A search sets them in args, and has the optimizer and the schedule made anew."""
    trainer = WarmupTrainer(make_model(), make_args(tmp_path), optim="muon")
    for lr, decay in ((3e-3, 0.1), (4e-2, 0.3)):
        trainer.args.learning_rate, trainer.args.weight_decay = lr, decay
        trainer.optimizer = trainer.lr_scheduler = None
        trainer.create_optimizer_and_scheduler(STEPS)
        groups = trainer.optimizer.param_groups
        assert (trainer.lr_scheduler.base_lrs[0], max(group["weight_decay"] for group in groups)) == (lr, decay)
    optimizer = trainer.optimizer
    trainer.args.learning_rate = 1.0
    assert trainer.create_optimizer() is optimizer  # which is there


def test_anothers_scheduler_is_refused(tmp_path: Path) -> None:
    trainer = Trainer(make_model(), make_args(tmp_path), train_dataset=make_data(BATCH))
    trainer.add_callback(WarmupCallback(trainer))
    with pytest.raises(ValueError, match="the trainer's scheduler is a LambdaLR: use WarmupTrainer"):
        trainer.train()


@pytest.mark.filterwarnings("ignore:the loss was NaN or infinite")
def test_of_skipped_updates_only_losses_that_are_not_finite_count() -> None:
    """Trainer does not step a scheduler after an update that its scaler skipped."""
    scheduler = AdaptiveWarmup(Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01), 200, max_nonfinite=2, smoothing=0)
    scheduler.optimizer.step()
    scheduler.step(2.0)
    accelerator = SimpleNamespace(optimizer_step_was_skipped=False)
    callback = WarmupCallback(SimpleNamespace(lr_scheduler=scheduler, accelerator=accelerator))  # type: ignore[arg-type]

    def update(loss: float, *, skipped: bool = True) -> None:
        accelerator.optimizer_step_was_skipped = skipped
        callback.on_step_begin(None, None, None)
        callback._losses.append(torch.tensor(loss))
        callback.on_optimizer_step(None, None, None)

    update(100.0)
    update(1.9, skipped=False)
    scheduler.optimizer.step()
    scheduler.step()  # as the trainer does
    assert scheduler.metrics()["loss"] == pytest.approx(1.9)
    update(math.inf)
    with pytest.raises(RuntimeError, match="2 times in a row"):
        update(math.inf)
    assert scheduler.last_epoch == 2
