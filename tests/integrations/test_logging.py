"""Every plug-in logs the schedule's metrics through its trainer's own loggers: plain numbers, under ``autowarm/``.

It says in one line when the warm-up ends; and it gives each loss late enough for a schedule that restores weights.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from autowarm import AdaptiveWarmup, Lion
from autowarm.integrations.accelerate import WarmupScheduler
from autowarm.integrations.lightning import WarmupCallback
from autowarm.integrations.metrics import EndOfWarmup, loggable_metrics

from . import test_lightning as for_lightning
from . import test_transformers as for_transformers
from .plain import accelerated

STEPS, LR = 12, 0.02


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: step and value, by name."""
    events = EventAccumulator(str(next(folder.rglob("events.out.tfevents.*")).parent)).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def own(logged: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in logged.items() if "autowarm" in name}


LINE = re.compile(
    r"warm-up ended at update (\d+) of (\d+) by the (loss|time limit): the averaged loss was at (\d+)% of its start "
    r"\(\d+% ends it\)\n"
)


def test_the_end_is_said_once_with_what_ended_it_and_where_the_loss_was() -> None:
    for loss, ended_by, at in ((1.0, "time limit", 100), (0.7, "loss", None)):
        sched, said = AdaptiveWarmup(Lion([nn.Parameter(torch.ones(2, 2))], lr=LR), 40), EndOfWarmup()
        lines = []
        for t in range(40):
            lines.append(said(sched))
            sched.optimizer.step()
            sched.step(2.0 * loss ** max(0, t - 10))  # after the ten losses that give f(x0)
        [line] = [line for line in lines if line]
        update, total, why, share = LINE.fullmatch(line + "\n").groups()  # type: ignore[union-attr]
        assert (int(update), int(total), why) == (sched.warmup_steps, 40, ended_by)
        assert int(share) == (at or int(share)) <= 100
        assert EndOfWarmup()(sched) is None  # it ended in an earlier process


@pytest.mark.parametrize("kind", [for_transformers.Mixed, for_transformers.CalledBack])
def test_trainer(kind: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = for_transformers.make_data(STEPS * for_transformers.BATCH)
    args = for_transformers.make_args(tmp_path, eval_strategy="steps", eval_steps=5)
    args.save_strategy = "no"
    recovers = {"warmup": {"recover": True}} if kind is for_transformers.Mixed else {}
    model = for_transformers.make_model()
    trainer = kind(model, args, optim="muon", train_dataset=data, eval_dataset=data[:4], **recovers)
    trainer.train()
    printed = capsys.readouterr().out
    assert len(LINE.findall(printed)) == 1
    assert max(line.count("autowarm/") for line in printed.splitlines()) == 3  # trackers get all
    logged = trainer.state.log_history
    updates = [logs for logs in logged if "learning_rate" in logs]
    assert len(updates) == STEPS
    assert not any(own(logs) for logs in logged if "learning_rate" not in logs)  # of evaluations, and the last
    assert own(updates[-1]) == loggable_metrics(trainer.lr_scheduler)
    assert not recovers or updates[-1]["autowarm/recoveries"] == 0
    # An update's entry has the rate it was made at, and the schedule after it: the rate for the next.
    assert [logs["autowarm/lr"] for logs in updates[:-1]] == [logs["learning_rate"] for logs in updates[1:]]


def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(scheduler: AdaptiveWarmup) -> dict[str, float]:
        asked.append(scheduler.last_epoch)
        return loggable_metrics(scheduler)

    monkeypatch.setattr("autowarm.integrations.lightning.loggable_metrics", counted)
    module = for_lightning.Module(recover=True)
    options = {"logger": TensorBoardLogger(tmp_path, "", ""), "log_every_n_steps": 3}
    for_lightning.fit(module, tmp_path, WarmupCallback(), accumulate_grad_batches=2, **options)
    shown = own(scalars(tmp_path))
    by_step = {step: {name: dict(shown[name]).get(step) for name in shown} for step, _ in shown["autowarm/lr"]}
    assert list(by_step) == [2, 5, 8, 11]  # updates 3, 6, … as Lightning counts them
    # Reading them can wait for a device: only where they are logged.
    assert set(asked) - {0} == {3, 6, 9, 12}
    assert by_step[11]["autowarm/recoveries"] == 0
    assert by_step[11] == pytest.approx(loggable_metrics(module.sched), rel=1e-6)
    for step in (2, 5, 8):
        assert by_step[step]["autowarm/lr"] == pytest.approx(module.rates[step + 1], rel=1e-6)


def test_accelerate(fresh_accelerate: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("run")
    model = nn.Linear(4, 4)
    model, opt = accelerator.prepare(model, Lion(model.parameters(), lr=LR))
    sched = WarmupScheduler(accelerator, opt, STEPS, log_every=4, recover=True)
    micro_loss = lambda net, i: net(torch.ones(2, 4)).square().mean()  # noqa: E731
    rates = accelerated(accelerator, model, opt, sched, micro_loss, range(2 * STEPS))
    sched.step(torch.tensor(1.0))  # of an update that was skipped: nothing is logged again
    accelerator.end_training()
    assert LINE.fullmatch(capsys.readouterr().out)
    shown = scalars(tmp_path)["autowarm/lr"]
    assert shown == [(step, pytest.approx(rates[step - 1], rel=1e-6)) for step in (4, 8, 12)]
