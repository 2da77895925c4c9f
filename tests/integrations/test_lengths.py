"""A run that is shorter or longer than its schedule: each plug-in says so when it starts and when it ends."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback

from autowarm import AdaptiveWarmup
from autowarm.integrations.lightning import WarmupCallback, pl

from . import test_lightning as for_lightning
from . import test_transformers as for_transformers
from .test_lightning import Module

# Planned in updates, by a run of 12: shorter and longer, by a little and by much, and as long.
RUN, PLANS = 12, [10, 12, 13, 24]


START, END = "the trainer will make ", "the run ended at "


@pytest.fixture
def warned(recwarn: pytest.WarningsRecorder) -> Callable[[str], list[str]]:
    """The warnings so far that begin with these words."""
    warnings.simplefilter("always")
    return lambda words: [text for one in recwarn if (text := str(one.message)).startswith(words)]


def check(warned: Any, sched: AdaptiveWarmup, plan: int, run: int = RUN) -> None:
    """That a mismatch, and only a mismatch, was said at both ends, with the numbers of each."""
    assert sched.last_epoch == run
    wrong = abs(plan - run) > 1
    assert (len(warned(START)), len(warned(END))) == (wrong, wrong)
    for text in warned(START):
        assert f"will make {run} more updates, but {plan} are left" in text
        assert ("stop before the rate has decayed" if run < plan else f"last {run - plan} updates will be made") in text
        assert f"its extend({run})" in text
    for text in warned(END):
        assert f"after {run} of total_steps={plan} updates" in text
        assert ("of them at this rate" in text) == (run > plan)
        assert f"at {100 * sched.get_last_lr()[0] / sched.base_lrs[0]:.0f} % of the peak" in text


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
def test_a_run_of_another_length_is_said_when_it_starts_and_when_it_ends(
    run: str, plan: int, warned: Any, tmp_path: Path
) -> None:
    check(warned, RUNS[run][0](tmp_path, plan), plan)


class Stop(pl.Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= 5


def stopping_at(event: str) -> TrainerCallback:
    def stop(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step >= 3

    return type("Stop", (TrainerCallback,), {event: stop})()


FOR_EPOCHS = {"max_epochs": 6, "limit_train_batches": 4}
STOPPED: dict[str, Callable[..., AdaptiveWarmup]] = {
    "Lightning, own": lambda folder: by_lightning(folder, 24, Stop(), **FOR_EPOCHS),
    "Lightning, theirs": lambda folder: by_lightning(
        folder, 24, EarlyStopping("train_loss", mode="max", patience=1, min_delta=1e9), **FOR_EPOCHS
    ),
    **{
        f"transformers, {event}": lambda folder, event=event: by_transformers(
            folder, 36, stopping_at(event), max_steps=-1, num_train_epochs=3
        )
        for event in ("on_step_end", "on_epoch_end", "on_log")
    },
}


@pytest.mark.parametrize("run", STOPPED)
def test_a_callback_that_stops_a_run_is_no_fault(run: str, warned: Any, tmp_path: Path) -> None:
    sched = STOPPED[run](tmp_path)
    assert 0 < sched.last_epoch < sched.total_steps
    assert not warned(START)
    assert not warned(END)


# Lightning


@pytest.mark.parametrize(("plan", "cured"), [(3, False), (24, False), (12, False), (24, True)])
def test_lightning_with_an_accumulation_that_changes(plan: int, cured: bool, warned: Any, tmp_path: Path) -> None:
    class Cured(Module):
        def on_train_start(self) -> None:
            self.sched.extend(RUN)

    module = (Cured if cured else Module)(plan)
    changing = GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})
    make_lightning(tmp_path, changing, max_epochs=3, limit_train_batches=7).fit(module, LOADER)  # 7 + 4 + 2
    assert module.sched.last_epoch == 13
    assert bool(warned(START)) == bool(warned(END)) == (plan != RUN and not cured)
    assert all("its extend(13)" in text for text in warned(START))


def test_nothing_is_said_of_a_try_and_of_an_open_or_flat_end(warned: Any, tmp_path: Path) -> None:
    make_lightning(tmp_path, fast_dev_run=True).fit(Module(1000), LOADER)
    for max_warmup in (4, 30):  # in the flat part, and still in warm-up
        make_lightning(tmp_path, max_steps=RUN).fit(Module(40, decay="wso", max_warmup=max_warmup), LOADER)
        assert (len(warned(START)), len(warned(END))) == ((1, 0) if max_warmup == 4 else (2, 1))


# transformers


@pytest.mark.parametrize(("kind", "at"), [(for_transformers.Mixed, 2), (for_transformers.CalledBack, 8)])
def test_a_checkpoint_of_the_model_only(kind: type, at: int, warned: Any, tmp_path: Path) -> None:
    def make() -> Any:
        args = for_transformers.make_args(tmp_path, save_only_model=True)
        data = for_transformers.make_data(RUN * for_transformers.BATCH)
        return kind(for_transformers.make_model(), args, optim="muon", train_dataset=data)

    make().train()
    assert not warned(START)
    trainer = make()
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert "no scheduler was loaded: save_only_model leaves it out" in warned(START)[0]
    check(warned, trainer.lr_scheduler, RUN, RUN - at)


class Stream(IterableDataset):
    def __init__(self) -> None:
        self._rest = iter(for_transformers.make_data(5 * for_transformers.BATCH))

    def __iter__(self) -> Iterator[Any]:
        return self._rest


def test_a_trainer_that_runs_out_of_data(warned: Any, tmp_path: Path) -> None:
    whole = {"dispatch_batches": False}
    assert by_transformers(tmp_path, RUN, data=Stream(), accelerator_config=whole).last_epoch == 5
    assert not warned(START)
    (text,) = warned(END)
    assert "after 5 of total_steps=12" in text
