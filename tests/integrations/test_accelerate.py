"""Accelerate: updates are counted once, whatever the number of processes and of micro-batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn

from autowarm import AdaptiveWarmup, Lion, Muon, find_rate
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


# The rate search: Lightning and transformers give it their model, an optimizer and a closure, as a plain loop does


def batches_of(model: nn.Module, backward: Callable[[torch.Tensor], Any]) -> Callable[[], torch.Tensor]:
    """A closure that goes on to the next batch."""
    numbers = iter(range(100))

    def closure() -> torch.Tensor:
        loss = micro_loss(model, next(numbers))
        backward(loss)
        return loss

    return closure


def test_find_rate_with_accelerates_optimizer_and_backward_is_a_plain_loops() -> None:
    plain = make_model()
    expected = find_rate(plain, Muon.from_model(plain, lr=LR), batches_of(plain, torch.Tensor.backward), steps=60)
    accelerator, bare = Accelerator(cpu=True), make_model()
    model, opt = accelerator.prepare(bare, Muon.from_model(bare, lr=LR))
    before = [tensor.clone() for tensor in bare.state_dict().values()]
    found = find_rate(bare, opt, batches_of(model, accelerator.backward), steps=60)
    # As far as rates are small: at high ones rounding in another order grows.
    np.testing.assert_allclose(found.losses[:25], expected.losses[:25], rtol=1e-3)
    assert all(map(torch.equal, bare.state_dict().values(), before))
