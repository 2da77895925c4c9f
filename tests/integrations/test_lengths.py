"""A run that is shorter or longer than its schedule: each plug-in says so when it starts."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.utils.data import DataLoader

from autowarm import AdaptiveWarmup
from autowarm.integrations.lightning import WarmupCallback, pl

from . import test_lightning as for_lightning
from . import test_transformers as for_transformers
from .test_lightning import Module

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
    module = Module(plan)
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
    class Cured(Module):
        def on_train_start(self) -> None:
            self.sched.extend(RUN)

    module = (Cured if cured else Module)(24)
    make_lightning(tmp_path, max_steps=RUN).fit(module, LOADER)
    assert len(warned()) == (not cured)


def test_nothing_is_said_of_a_try_or_of_an_accumulation_that_changes(warned: Any, tmp_path: Path) -> None:
    make_lightning(tmp_path, fast_dev_run=True).fit(Module(1000), LOADER)
    changing = GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})
    make_lightning(tmp_path, changing, max_epochs=3, limit_train_batches=7).fit(Module(24), LOADER)  # 7 + 4 + 2
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
