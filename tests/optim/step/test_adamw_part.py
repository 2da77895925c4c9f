"""Muon's AdamW groups, set by themselves."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Muon
from tests.cases import each


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10)


def options(opt: Muon) -> dict[str, tuple[float, float]]:
    return {group["role"]: (float(group["lr"]), group["weight_decay"]) for group in opt.param_groups}


def test_it_shares_the_rate_and_decays_where_layers_do() -> None:
    assert options(Muon.from_model(Net(), lr=0.5)) == {
        "matrices": (0.5, 0.1),
        "output heads": (0.5, 0.1),
        "embeddings and vectors": (0.5, 0.0),
    }


def test_it_is_set_by_itself_where_asked() -> None:
    opt = Muon.from_model(
        Net(), lr=0.5, adamw_lr=0.125, adamw_betas=(0.7, 0.9), adamw_eps=1e-3, adamw_weight_decay=0.25
    )
    assert options(opt) == {
        "matrices": (0.5, 0.1),
        "output heads": (0.125, 0.25),
        "embeddings": (0.125, 0.25),
        "vectors": (0.125, 0.0),
    }
    assert "output heads (1; 80 parameters): algorithm=adamw, lr=0.125 (0.25 × the first group's)" in repr(opt)
    assert "adamw_betas=(0.7, 0.9), adamw_eps=0.001" in repr(opt)
    sched = AdaptiveWarmup(opt, 10)
    assert len({group["lr"] / group["initial_lr"] for group in opt.param_groups}) == 1
    assert sched.phase == "warmup"


def test_its_rate_is_a_tensor_where_muons_is() -> None:
    opt = Muon.from_model(Net(), lr=torch.tensor(0.5), adamw_lr=0.125, capturable=True)
    assert [group["lr"].item() for group in opt.param_groups] == [0.5, 0.125, 0.125]


def test_a_gradient_that_lies_otherwise_in_memory_steps_as_any() -> None:
    """The fused kernel would take its numbers in the order of the memory, and mix them up."""
    moved = []
    for layout in (torch.contiguous_format, torch.channels_last):
        p = nn.Parameter(torch.arange(96.0).reshape(4, 3, 4, 2))
        opt = Muon([{"params": [p], "algorithm": "adamw"}], lr=0.1)
        for seed in range(3):
            grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
            p.grad = grad.to(memory_format=layout)
            opt.step()
        moved.append(p.detach())
    torch.testing.assert_close(*moved)


@pytest.mark.parametrize("options", [{}, {"adamw_eps_hat": True}], ids=["strided", "eps hat"])
def test_in_float16_it_steps_as_the_fused_kernel_does(options: dict[str, object]) -> None:
    """Which computes in single precision; ε and small second moments are zero in float16."""
    start, grads = torch.arange(6.0).reshape(3, 2).half(), torch.full((3, 2), 1e-2).half()
    grads[0] = 0.0
    moved = []
    for plain in (True, False):
        p = nn.Parameter(start.clone())
        opt = Muon([{"params": [p], "algorithm": "adamw"}], lr=0.1, **({} if plain else options))
        for _ in range(3):
            p.grad = grads.clone() if plain or options else grads.T.contiguous().T
            opt.step()
        moved.append(p.detach())
    torch.testing.assert_close(*moved)


def test_what_others_keep_in_a_tensors_state_is_not_taken_for_its_own() -> None:
    """Such as an average of the weights, kept before the first gradient."""
    net = Net()
    opt = Muon.from_model(net, lr=0.1)
    for p in net.parameters():
        opt.state[p]["average"] = p.detach().clone()
        p.grad = torch.ones_like(p)
    opt.step()
    assert {"average", "exp_avg", "exp_avg_sq", "step"} == opt.state[net.embed.weight].keys()


HALF = [torch.float16, torch.bfloat16]


def lone(dtype: torch.dtype, **options: object) -> tuple[nn.Parameter, Muon]:
    p = nn.Parameter(torch.zeros(64, dtype=dtype))
    return p, Muon([{"params": [p], "algorithm": "adamw"}], lr=1e-3, adamw_betas=(0.9, 0.999), **options)


def stepped(p: nn.Parameter, opt: Muon, size: float, steps: int) -> list[float]:
    """The lengths of steps under gradients of about this size."""
    found = []
    for seed in range(steps):
        before = p.detach().clone()
        grad = torch.rand(64, generator=torch.Generator().manual_seed(seed)).add(0.5) * size
        p.grad = grad.to(p.dtype)
        opt.step()
        found.append((p.detach() - before).float().norm().item())
    return found


@each("dtype", HALF)
@each("size", [1e-2, 1e-3, 1e-5])
@each("eps_hat", [False, True])
def test_half_precision_steps_as_long_as_single_precision(dtype: torch.dtype, size: float, eps_hat: bool) -> None:
    """In float16 the second moment of a gradient of 1e-3 was 0, and steps were up to 372 times too long."""
    ours, single = (
        stepped(*lone(one, adamw_eps=1e-12, adamw_eps_hat=eps_hat), size, 8) for one in (dtype, torch.float32)
    )
    assert ours == pytest.approx(single, rel=0.1)


@each("dtype", HALF)
def test_in_half_precision_the_second_moment_can_fall(dtype: torch.dtype) -> None:
    """In bfloat16 0.999·v rounds to v, so that one large gradient shortened all steps after it."""
    p, opt = lone(dtype)
    stepped(p, opt, 1.0, 2)
    v = opt.state[p]["exp_avg_sq"].clone()
    stepped(p, opt, 1e-3, 50)
    torch.testing.assert_close(opt.state[p]["exp_avg_sq"], v * 0.999**50, rtol=1e-3, atol=0)


@each("dtype", HALF)
@each("make", [lambda ps: Muon([{"params": ps, "algorithm": "adamw"}], lr=0.1), lambda ps: Muon(ps, lr=0.1)])
def test_a_large_finite_gradient_leaves_a_state_that_loads_bit_for_bit(dtype: torch.dtype, make: Callable) -> None:
    p = nn.Parameter(torch.ones(4, 4, dtype=dtype))
    opt = make([p])
    p.grad = torch.full((4, 4), 6e4, dtype=dtype)
    opt.step()
    assert opt.skipped_updates == 0
    other = make([nn.Parameter(p.detach().clone())])
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    (there,) = other.state.values()
    assert all(torch.equal(x, there[name]) and x.dtype == there[name].dtype for name, x in opt.state[p].items())
