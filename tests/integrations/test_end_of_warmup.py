"""The one line that a plug-in says when the warm-up ends, and what a trainer prints of the schedule."""

import re
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from autowarm import AdaptiveWarmup, Lion
from autowarm.integrations.metrics import EndOfWarmup

from .transformers import test_transformers as for_transformers

LINE = re.compile(r"warm-up ended at update (\d+) of (\d+): the (loss|clock); your loss was at (\d+)%")


def schedule(total: int = 40) -> AdaptiveWarmup:
    return AdaptiveWarmup(Lion([torch.nn.Parameter(torch.ones(2, 2))], lr=1e-2), total)


def advance(sched: AdaptiveWarmup, loss: float) -> None:
    sched.optimizer.step()
    sched.step(loss)


def test_the_end_is_said_once_with_what_ended_it_and_where_the_loss_was() -> None:
    sched, said = schedule(), EndOfWarmup()
    lines = []
    for _ in range(40):
        lines.append(said(sched))
        advance(sched, 2.0)
    assert [line for line in lines if line] == ["warm-up ended at update 20 of 40: the clock; your loss was at 100%"]
    assert EndOfWarmup()(sched) is None  # it ended in an earlier process
    falls, said = schedule(), EndOfWarmup()
    found = [said(falls) for i in range(39) if advance(falls, 2.0 * 0.95**i) is None]
    [line] = [line for line in found if line]
    assert LINE.fullmatch(line)[3] == "loss"  # type: ignore[index]


def test_a_trainer_prints_the_line_and_three_values_and_its_trackers_get_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = for_transformers.make_data(64)
    args = for_transformers.make_args(tmp_path)
    trainer = for_transformers.Mixed(for_transformers.make_model(), args, optim="muon", train_dataset=data)
    trainer.train()
    out = capsys.readouterr().out
    assert len(LINE.findall(out)) == 1
    printed = max((line for line in out.splitlines() if "learning_rate" in line), key=len)
    assert printed.count("autowarm/") == 3
    assert max(sum(key.startswith("autowarm/") for key in row) for row in trainer.state.log_history) > 5


def test_accelerates_scheduler_prints_it(fresh_accelerate: None, capsys: pytest.CaptureFixture[str]) -> None:
    from autowarm.integrations.accelerate import WarmupScheduler

    accelerator = Accelerator(cpu=True)
    opt = accelerator.prepare(Lion([torch.nn.Parameter(torch.ones(2, 2))], lr=1e-2))
    sched = WarmupScheduler(accelerator, opt, 40)
    for _ in range(40):
        opt.step()
        sched.step(2.0)
    assert capsys.readouterr().out == "warm-up ended at update 20 of 40: the clock; your loss was at 100%\n"
