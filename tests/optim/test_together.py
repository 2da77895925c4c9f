"""Two optimizers under one scheduler step as they would alone."""

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import SGD, AdamW

from autowarm import AdaptiveWarmup
from autowarm.optim import Together


def parts() -> tuple[nn.Sequential, Together, AdaptiveWarmup]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    (_, first), (_, bias), (_, second), (_, other) = model.named_parameters()
    opt = Together(torch.optim.Muon([first, second], lr=0.02), AdamW([bias, other], lr=0.002))
    return model, opt, AdaptiveWarmup(opt, 20)


def loss_of(model: nn.Module, t: int) -> torch.Tensor:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(t))
    return model(x).square().mean() + 1


def train(model: nn.Module, opt: Together, sched: AdaptiveWarmup, steps: Iterable[int]) -> list[list[float]]:
    rates = []
    for t in steps:
        rates.append([group["lr"] for group in opt.param_groups])
        loss = loss_of(model, t)
        loss.backward()
        opt.step()
        sched.step(loss)
        opt.zero_grad()
    return rates


def test_it_steps_as_the_two_would_alone() -> None:
    straight, (twin, pair, _) = parts(), parts()
    rates = train(*straight, range(20))
    assert straight[2].phase == "decay"
    assert all(muon == pytest.approx(10 * adamw) for muon, adamw in rates)
    for t in range(20):
        loss_of(twin, t).backward()
        for one, rate in zip(pair.optimizers, rates[t], strict=True):
            one.param_groups[0]["lr"] = rate
            one.step()
            one.zero_grad()
    assert all(map(torch.equal, twin.parameters(), straight[0].parameters()))


def test_checkpointing_tools_that_read_groups_and_state_can() -> None:
    model, opt, _ = parts()
    weight = model[0].weight
    assert opt.state.get(weight) is None  # which does not make one
    assert not opt.state
    loss_of(model, 0).backward()
    opt.step()
    assert set(opt.state) == set(model.parameters())
    assert opt.state[weight] is opt.optimizers[0].state[weight]
    saved = copy.deepcopy(get_optimizer_state_dict(model, opt))
    before = opt.state[weight]["momentum_buffer"].clone()
    loss_of(model, 1).backward()
    opt.step()
    assert not torch.equal(opt.state[weight]["momentum_buffer"], before)
    set_optimizer_state_dict(model, opt, saved)
    assert torch.equal(opt.state[weight]["momentum_buffer"], before)


def test_a_closure_is_called_once_and_a_scaler_can_skip() -> None:
    (model, opt, _), calls = parts(), []

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = loss_of(model, len(calls))
        loss.backward()
        calls.append(loss)
        return loss

    assert opt.step(closure) is calls[0]
    assert len(calls) == 1
    sched, scaler = AdaptiveWarmup(opt, 20), torch.amp.GradScaler("cpu", init_scale=2.0)
    for t in range(3):
        loss = loss_of(model, t)
        scaler.scale(loss * (float("inf") if t == 1 else 1)).backward()
        scaler.step(opt)
        scaler.update()
        sched.step(loss)
        opt.zero_grad()
    assert sched.last_epoch == 2


def test_misuse() -> None:
    model, opt, _ = parts()
    for do, error, message in (
        (Together, ValueError, "at least one"),
        (lambda: Together([opt]), TypeError, r"as in Together\(muon, adamw\), got a list"),
        (lambda: Together(SGD(model.parameters()), AdamW([model[0].weight])), ValueError,
         r"shape \(8, 6\) is in two optimizers, SGD and AdamW"),
        (lambda: opt.add_param_group({"params": []}), TypeError, "one of Together's optimizers"),
        (lambda: opt.load_state_dict(Together(AdamW(model.parameters())).state_dict()), ValueError,
         r"saved \[4\], here \[2, 2\]"),
        (lambda: setattr(opt, "param_groups", []), AttributeError, "no setter"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            do()
