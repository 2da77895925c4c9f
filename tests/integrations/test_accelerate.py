"""Accelerate: updates are counted once, whatever the number of processes and of micro-batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from autowarm import AdaptiveWarmup, Lion, Muon
from autowarm.integrations.accelerate import WarmupScheduler

from .plain import accelerated
from .plain import train as plain_loop

STEPS, LR = 12, 0.02


@pytest.fixture(autouse=True)
def _fresh(fresh_accelerate: None) -> None: ...


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def micro_loss(model: nn.Module, i: int) -> torch.Tensor:
    x = torch.randn(8 + i % 3, 6, generator=torch.Generator().manual_seed(i))
    return model(x).square().mean() + 1


def test_the_rates_and_weights_are_a_plain_loops(tmp_path: Path) -> None:
    plain = make_model()
    expected = plain_loop(plain, Muon.from_model(plain, lr=LR), micro_loss, 2, lambda i: 8 + i % 3)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

    def prepared() -> tuple[nn.Module, Any, WarmupScheduler]:
        model = make_model()
        model, opt = accelerator.prepare(model, Muon.from_model(model, lr=LR))
        return model, opt, WarmupScheduler(accelerator, opt, STEPS)

    # Saved and loaded in warm-up and in decay.
    parts, at = prepared(), 0
    rates = [parts[2].get_last_lr()[0]]
    for until in (1, 7, STEPS):
        rates += accelerated(accelerator, *parts, micro_loss, range(2 * at, 2 * until), lambda i: 8 + i % 3)
        accelerator.save_state(str(tmp_path / f"{until}"))
        accelerator.free_memory()
        if until < STEPS:
            parts, at = prepared(), until
            accelerator.load_state(str(tmp_path / f"{until}"))
    assert rates[:-1] == expected
    assert all(torch.equal(a, b) for a, b in zip(parts[0].parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("prepared", [False, True])
def test_a_plain_scheduler_needs_no_plug_in_and_is_left_alone_by_prepare(prepared: bool, tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model()
    raw = Lion(model.parameters(), lr=LR)
    model, opt = accelerator.prepare(model, raw)
    sched = AdaptiveWarmup(opt if prepared else raw, STEPS)
    assert accelerator.prepare(sched) is sched
    for i in range(2 * STEPS):
        with accelerator.accumulate(model):
            loss = micro_loss(model, i)
            accelerator.backward(loss)
            opt.step()
            sched.observe(loss)
            if accelerator.sync_gradients:
                sched.step()
            opt.zero_grad()
        if i == STEPS - 1:
            accelerator.save_state(str(tmp_path / "half"))
            at_half = sched.get_last_lr()
    assert sched.last_epoch == STEPS
    accelerator.load_state(str(tmp_path / "half"))
    assert sched.last_epoch == STEPS // 2
    assert sched.get_last_lr() == at_half
