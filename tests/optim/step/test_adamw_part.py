"""Muon's AdamW groups, set by themselves."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Muon
from tests.cases import each
from tests.optim.makers import EVERY, drawn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10)


def test_its_rate_and_decay_are_set_by_themselves_where_asked() -> None:
    adamw = {"adamw_betas": (0.7, 0.9), "adamw_eps": 1e-3, "adamw_weight_decay": 0.25}
    shared, opt = Muon.from_model(Net(), lr=0.5), Muon.from_model(Net(), lr=0.5, adamw_lr=0.125, **adamw)
    wanted = [
        {"matrices": (0.5, 0.1), "output heads": (0.5, 0.1), "embeddings and vectors": (0.5, 0.0)},
        {"matrices": (0.5, 0.1), "output heads": (0.125, 0.25), "embeddings": (0.125, 0.25), "vectors": (0.125, 0.0)},
    ]
    assert [{g["role"]: (g["lr"], g["weight_decay"]) for g in one.param_groups} for one in (shared, opt)] == wanted
    assert "output heads (1; 80 parameters): algorithm=adamw, lr=0.125" in repr(opt)
    assert "adamw_betas=(0.7, 0.9), adamw_eps=0.001" in repr(opt)
    sched = AdaptiveWarmup(opt, 10)
    assert len({group["lr"] / group["initial_lr"] for group in opt.param_groups}) == 1
    assert sched.phase == "warmup"
    opt = Muon.from_model(Net(), lr=torch.tensor(0.5), adamw_lr=0.125, capturable=True)
    assert [group["lr"].item() for group in opt.param_groups] == [0.5, 0.125, 0.125]


@each("maximize", [False, True])
def test_a_gradient_that_lies_otherwise_in_memory_steps_as_any(maximize: bool) -> None:
    """The fused kernel would take its numbers in the order of the memory, and mix them up."""
    moved = []
    for layouts in ([torch.contiguous_format], [torch.channels_last], [torch.contiguous_format, torch.channels_last]):
        p = nn.Parameter(torch.arange(96.0).reshape(4, 3, 4, 2))
        opt = EVERY["adamw part"]([p], maximize=maximize)
        for seed in range(4):
            p.grad = drawn([p.shape], seed)[0].to(memory_format=layouts[seed % len(layouts)])
            opt.step()
        moved.append(p.detach())
    torch.testing.assert_close(moved[0], moved[1])
    torch.testing.assert_close(moved[0], moved[2])


HALF = [torch.float16, torch.bfloat16]


def lone(dtype: torch.dtype, **options: Any) -> tuple[nn.Parameter, Muon]:
    p = nn.Parameter(torch.zeros(64, dtype=dtype))
    return p, EVERY["adamw part"]([p], 1e-3, adamw_betas=(0.9, 0.999), **options)


def lengths(p: nn.Parameter, opt: Muon, size: float, steps: int) -> list[float]:
    """Of steps under gradients of about this size."""
    norms = []
    for seed in range(steps):
        before = p.detach().clone()
        grad = torch.rand(64, generator=torch.Generator().manual_seed(seed)).add(0.5) * size
        p.grad = grad.to(p.dtype)
        opt.step()
        norms.append((p.detach() - before).float().norm().item())
    return norms


@each("dtype", HALF)
@each("size", [1e-2, 1e-3, 1e-5])
def test_half_precision_steps_as_long_as_single_precision(dtype: torch.dtype, size: float) -> None:
    """In float16 the second moment of a gradient of 1e-3 was 0, and steps were up to 372 times too long."""
    ours, single = (lengths(*lone(one, adamw_eps=1e-12), size, 8) for one in (dtype, torch.float32))
    assert ours == pytest.approx(single, rel=0.1)


@each("dtype", HALF)
def test_in_half_precision_the_second_moment_can_fall(dtype: torch.dtype) -> None:
    """In bfloat16 0.999·v rounds to v, so that one large gradient shortened all steps after it."""
    p, opt = lone(dtype)
    lengths(p, opt, 1.0, 2)
    v = opt.state[p]["exp_avg_sq"].clone()
    lengths(p, opt, 1e-3, 50)
    torch.testing.assert_close(opt.state[p]["exp_avg_sq"], v * 0.999**50, rtol=1e-3, atol=0)


@each("dtype", HALF)
@each("name", ["adamw part", "muon"])
def test_a_large_finite_gradient_leaves_a_state_that_loads_bit_for_bit(dtype: torch.dtype, name: str) -> None:
    p = nn.Parameter(torch.ones(4, 4, dtype=dtype))
    opt = EVERY[name]([p])
    p.grad = torch.full((4, 4), 6e4, dtype=dtype)
    opt.step()
    assert opt.skipped_updates == 0
    other = EVERY[name]([nn.Parameter(p.detach().clone())])
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    (loaded,) = other.state.values()
    assert all(torch.equal(x, loaded[name]) and x.dtype == loaded[name].dtype for name, x in opt.state[p].items())
