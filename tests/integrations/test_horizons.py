"""Runs that go on for longer than planned, stop early, go back to their best checkpoint, or are of another length."""

import pickle
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from autowarm import AdaptiveWarmup, Lion
from autowarm.integrations.lightning import WarmupCallback, pl, scheduler_config

from . import test_lightning as for_lightning
from . import test_transformers as for_transformers
from .test_docs import block

STEPS, LR = 12, 0.02
# transformers stops early, at a loss that grows.
STOPS_EARLY: dict[str, Any] = {
    "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss",
    "greater_is_better": True,
}  # fmt: skip


# transformers


def make_trainer(kind: type, folder: Path, steps: int = STEPS, *, callbacks: Any = (), **options: Any) -> Any:
    args = for_transformers.make_args(folder, **options)
    args.max_steps = steps
    data = for_transformers.make_data(STEPS * for_transformers.BATCH)
    # Both kinds take their optimizer and schedule from args, over args.max_steps.
    return kind(
        for_transformers.make_model(), args, optim="muon", train_dataset=data, eval_dataset=data, callbacks=[*callbacks]
    )


rates_of = for_transformers.logged


@pytest.mark.parametrize(
    ("kind", "at"),
    [(for_transformers.Mixed, STEPS), (for_transformers.CalledBack, 2)],
    ids=["finished", "in warm-up"],
)
def test_a_trainer_goes_on_for_longer_with_one_warning(kind: type, at: int, tmp_path: Path) -> None:
    make_trainer(kind, tmp_path).train()
    longer = make_trainer(kind, tmp_path, 2 * STEPS)
    with pytest.warns(UserWarning, match=f"total_steps={STEPS} .*total_steps={2 * STEPS}") as said:
        longer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert sum("total_steps" in str(one.message) for one in said) == 1
    sched, rates = longer.lr_scheduler, rates_of(longer, "learning_rate")
    assert (sched.total_steps, sched.last_epoch, longer.state.global_step) == (2 * STEPS,) * 3
    assert rates[-1] < 0.1 * max(rates[at:])
    # Nothing of the trainer's is left in it.
    assert pickle.loads(pickle.dumps(sched)).state_dict() == sched.state_dict()


def patient() -> Any:
    """The recipe, which after four updates would stop, and decays for five first."""
    return block("DecayThenStop", "transformers")["DecayThenStop"](5, early_stopping_patience=1)


def test_a_trainer_that_would_stop_decays_first(tmp_path: Path) -> None:
    class Open(for_transformers.Mixed):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = self.lr_scheduler or AdaptiveWarmup(self.optimizer, None, decay="wso", max_warmup=6)
            return self.lr_scheduler

    def train(resume: str | None = None) -> tuple[int, list[float]]:
        trainer = make_trainer(Open, tmp_path, callbacks=[patient()], **STOPS_EARLY)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.state.global_step, rates_of(trainer, "learning_rate")

    made, rates = train()
    assert made == 4 + 5
    assert rates[3] < rates[4]  # the warm-up, as far as it got
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] < 0.2 * rates[4]
    assert train(str(tmp_path / "checkpoint-6")) == (made, rates)


# Lightning


def fit(
    folder: Path, *callbacks: Any, epochs: int, resume: Path | None = None, module: Any = None, **options: Any
) -> Any:
    """Epochs of four updates."""
    module, callbacks = module or for_lightning.Module(), (WarmupCallback(), *callbacks)
    options |= {"max_steps": -1, "max_epochs": epochs, "limit_train_batches": 4}
    options["enable_checkpointing"] = any(isinstance(one, ModelCheckpoint) for one in callbacks)
    for_lightning.fit(module, folder, *callbacks, resume=resume, **options)
    return module


def keep_all(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)


def would_stop() -> Any:
    """The recipe, which after two epochs would stop, and decays for five updates first."""
    decay_then_stop = block("DecayThenStop", "lightning")["DecayThenStop"]
    return decay_then_stop(5, monitor="train_loss", mode="max", patience=1, min_delta=1e9)


def test_lightning_that_would_stop_decays_first(tmp_path: Path) -> None:
    def rates_from(resume: Path | None = None) -> list[float]:
        module = for_lightning.Module(None, decay="wso", max_warmup=12)  # of 24 updates
        return fit(tmp_path, would_stop(), keep_all(tmp_path), epochs=6, resume=resume, module=module).rates

    rates = rates_from()
    assert len(rates) == 8 + 5
    assert rates[7] < rates[8]
    assert rates[8:] == sorted(rates[8:], reverse=True)
    assert rates[-1] < 0.2 * rates[8]
    assert rates_from(tmp_path / "epoch=2.ckpt") == rates[12:]


class Finetuned(pl.LightningModule):
    """A head, and a backbone whose parameters join the optimizer later."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
        self.rates: list[list[float]] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        x = torch.randn(6, 6, generator=torch.Generator().manual_seed(100 * self.current_epoch + batch_idx))
        return self.head(self.backbone(x)).square().mean() + 1

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.rates.append([group["lr"] for group in optimizer.param_groups])

    def configure_optimizers(self) -> dict[str, Any]:
        opt = Lion(self.head.parameters(), lr=LR)
        return {"optimizer": opt, "lr_scheduler": scheduler_config(AdaptiveWarmup(opt, 16))}


@pytest.mark.parametrize("resume_at", [0, 2], ids=["before it joins", "after it joined"])
def test_a_backbone_joins_the_schedule(resume_at: int, tmp_path: Path) -> None:
    finetuning = block("ResumableFinetuning", "lightning")["ResumableFinetuning"]

    def run(resume: Path | None = None) -> Finetuned:
        joining = finetuning(1, backbone_initial_lr=LR / 4)
        return fit(tmp_path, joining, keep_all(tmp_path), epochs=4, resume=resume, module=Finetuned())

    with warnings.catch_warnings(record=True, action="always") as heard:
        whole = run()
        resumed = run(tmp_path / f"epoch={resume_at}.ckpt")
    assert not [one for one in heard if "from outside" in str(one.message)]  # one change an epoch is no rival
    assert [len(rates) for rates in whole.rates] == [1] * 4 + [2] * 12
    # The rate it joined with is its peak; the two keep their ratio. BackboneFinetuning raises its rate before the first
    # update of an epoch, and the schedule puts it back after that.
    kept = [rates for i, rates in enumerate(whole.rates) if i >= 4 and i % 4]
    assert all(backbone == pytest.approx(head / 4, rel=1e-12) for head, backbone in kept)
    assert resumed.rates == whole.rates[4 * (resume_at + 1) :]
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))


# A run that is shorter or longer than its schedule: each plug-in says so when it starts.

# Planned in updates, by a run of 12: shorter and longer, by a little and by much, and as long.
RUN, PLANS = 12, [10, 12, 13, 24]


@pytest.fixture
def warned(recwarn: pytest.WarningsRecorder) -> Callable[[], list[str]]:
    """The warnings so far of a run's length."""
    warnings.simplefilter("always")
    return lambda: [text for one in recwarn if (text := str(one.message)).startswith("the trainer will make ")]


def check(warned: Any, sched: AdaptiveWarmup, plan: int, run: int = RUN) -> None:
    """That a mismatch, and only a mismatch, was said, with the numbers of each."""
    assert sched.last_epoch == run
    assert len(warned()) == (abs(plan - run) > 1)
    for text in warned():
        assert f"will make {run} more updates, but {plan} are left" in text
        assert ("stop before the rate has decayed" if run < plan else f"last {run - plan} updates will be made") in text
        assert f"its extend({run})" in text


LOADER = DataLoader(torch.ones(48, 4), 2)


def make_lightning(folder: Path, *callbacks: Any, **options: Any) -> pl.Trainer:
    options |= for_lightning.QUIET | {"accelerator": "cpu", "default_root_dir": folder}
    return pl.Trainer(callbacks=[WarmupCallback(), *callbacks], **options)


def by_lightning(folder: Path, plan: int, *callbacks: Any, **options: Any) -> AdaptiveWarmup:
    module = for_lightning.Module(plan)
    make_lightning(folder, *callbacks, **options).fit(module, LOADER)
    return module.sched


def by_transformers(folder: Path, plan: int, *callbacks: Any, data: Any = None, **options: Any) -> AdaptiveWarmup:
    args = for_transformers.make_args(folder, save_strategy="no", **options)
    data = data or for_transformers.make_data(RUN * for_transformers.BATCH)
    trainer = for_transformers.CalledBack(
        for_transformers.make_model(), args, optim="muon", plan=plan, train_dataset=data, callbacks=[*callbacks]
    )
    trainer.train()
    return trainer.lr_scheduler


EPOCHS = {"max_epochs": 3, "limit_train_batches": 7, "accumulate_grad_batches": 2}
RUNS: dict[str, tuple[Callable[..., AdaptiveWarmup], list[int]]] = {
    "Lightning, steps": (partial(by_lightning, max_steps=RUN), PLANS),
    "Lightning, accumulated": (partial(by_lightning, **EPOCHS), [RUN, 24]),
    "Lightning, steps before epochs": (
        partial(by_lightning, **EPOCHS | {"max_epochs": 9, "max_steps": RUN}), [RUN, 24]
    ),
    "transformers": (by_transformers, PLANS),
}  # fmt: skip


@pytest.mark.parametrize(("run", "plan"), [(name, plan) for name, (_, plans) in RUNS.items() for plan in plans])
def test_a_run_of_another_length_is_said_when_it_starts(run: str, plan: int, warned: Any, tmp_path: Path) -> None:
    check(warned, RUNS[run][0](tmp_path, plan), plan)


@pytest.mark.parametrize("cured", [False, True])
def test_what_another_callback_extends_is_as_long_as_the_run(cured: bool, warned: Any, tmp_path: Path) -> None:
    class Cured(for_lightning.Module):
        def on_train_start(self) -> None:
            self.sched.extend(RUN)

    module = (Cured if cured else for_lightning.Module)(24)
    make_lightning(tmp_path, max_steps=RUN).fit(module, LOADER)
    assert len(warned()) == (not cured)


def test_nothing_is_said_of_a_try_or_of_an_accumulation_that_changes(warned: Any, tmp_path: Path) -> None:
    make_lightning(tmp_path, fast_dev_run=True).fit(for_lightning.Module(1000), LOADER)
    changing = GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})
    make_lightning(tmp_path, changing, max_epochs=3, limit_train_batches=7).fit(
        for_lightning.Module(24), LOADER
    )  # 7 + 4 + 2
    assert not warned()


@pytest.mark.parametrize(("kind", "at"), [(for_transformers.Mixed, 2), (for_transformers.CalledBack, 8)])
def test_a_checkpoint_of_the_model_only(kind: type, at: int, warned: Any, tmp_path: Path) -> None:
    def make() -> Any:
        args = for_transformers.make_args(tmp_path, save_only_model=True)
        data = for_transformers.make_data(RUN * for_transformers.BATCH)
        return kind(for_transformers.make_model(), args, optim="muon", train_dataset=data)

    make().train()
    assert not warned()
    trainer = make()
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert "was the schedule saved with the model?" in warned()[0]
    check(warned, trainer.lr_scheduler, RUN, RUN - at)
