"""Whole steps of every optimizer against the plain code that says what they compute, and peers they are known from."""

import math
import warnings
from collections.abc import Callable

import lion_pytorch
import pytest
import torch
from torch import nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from tests.reference import adamw_step_, lmo_step_

SHAPES = [(6, 4), (4, 6), (6, 4), (3, 2, 2, 2), (5, 5)]
MAKERS = {
    "muon": lambda ps, **o: Muon(ps, dtype=torch.float64, **o),
    "newton-schulz": lambda ps, **o: Muon(ps, dtype=torch.float64, method="newton-schulz", nesterov=False, **o),
    "adamw": lambda ps, **o: Muon([{"params": ps, "algorithm": "adamw"}], **o),
    "adamw, eps hat": lambda ps, **o: Muon(
        [{"params": ps, "algorithm": "adamw"}], adamw_eps=0.1, adamw_eps_hat=True, **o
    ),
    "lion": Lion,
    "signsgd": SignSGD,
    "normsgd": NormSGD,
    "normsgd, from weights": lambda ps, **o: NormSGD(ps, momentum_init="weights", **o),
    "normsgd, as the authors": lambda ps, **o: NormSGD(ps, momentum_init="weights", nesterov=True, **o),
    "signsgd, nesterov": lambda ps, **o: SignSGD(ps, nesterov=True, **o),
    "rows": lambda ps, **o: LMO(ps, geometry="rows", nesterov=True, **o),
    "columns": lambda ps, **o: LMO(ps, geometry="columns", momentum=0.0, **o),
    "svd": lambda ps, **o: LMO(ps, geometry="spectral", **o),
}


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_four_steps_with_a_gradient_that_is_not_finite(name, tensor_lr):
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64)) for s in SHAPES]
    plain = [p.detach().clone() for p in params]
    states = [{} for _ in plain]
    lr = torch.tensor(0.05, dtype=torch.float64) if tensor_lr else 0.05
    opt = MAKERS[name](params, lr=lr, weight_decay=0.1)
    (group,) = opt.param_groups
    for step in range(4):
        grads = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
        if step == 2:
            grads[2][-1] = math.nan
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opt.step()
        for x, g, state in zip(plain, grads, states, strict=True):
            if step != 2:
                (adamw_step_ if name.startswith("adamw") else lmo_step_)(group, x, g, state)
        torch.testing.assert_close([p.detach() for p in params], plain)
        for p, state in zip(params, states, strict=True):
            for entry, value in state.items():
                torch.testing.assert_close(opt.state[p][entry], value, check_dtype=False)


def drawn(shapes: list[tuple[int, ...]], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        *(
            (
                lambda ps, **o: Muon(ps, method="newton-schulz", lr=0.02, momentum=0.9, weight_decay=0.1, **o),
                lambda ps, radius, **o: torch.optim.Muon(
                    ps, adjust_lr_fn=radius, lr=0.02, momentum=0.9, weight_decay=0.1, **o
                ),
                {"radius": radius, "nesterov": nesterov},
            )
            for radius in ("original", "match_rms_adamw")
            for nesterov in (True, False)
        ),
        (
            lambda ps: Muon([{"params": ps, "algorithm": "adamw"}], lr=1e-3, weight_decay=0.1, adamw_betas=(0.8, 0.99)),
            lambda ps: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.1, betas=(0.8, 0.99)),
            {},
        ),
        (lambda ps: Lion(ps, weight_decay=0.1), lambda ps: lion_pytorch.Lion(ps, weight_decay=0.1), {}),
    ],
)
def test_steps_are_those_of_the_peers(ours: Callable, theirs: Callable, options: dict[str, object]) -> None:
    """Those of Muon within 5%: single products and batches of them round differently in bfloat16."""
    shapes = [(32, 32), (16, 48), (48, 16), (16, 48)]
    params, others = ([nn.Parameter(x) for x in drawn(shapes, 0)] for _ in range(2))
    a, b = ours(params, **options), theirs(others, **options)
    for seed in range(1, 4):
        for p, q, g in zip(params, others, drawn(shapes, seed), strict=True):
            p.grad, q.grad = g, g.clone()
        before = [q.detach().clone() for q in others]
        a.step()
        b.step()
        for p, q, was in zip(params, others, before, strict=True):
            assert (p - q).norm() <= (0.05 if options else 1e-4) * (q - was).norm()
            p.data.copy_(q.data)


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: Muon(ps, lr=0.1, momentum=0.8, radius=1.0),
        lambda ps: Muon(ps, lr=0.1, momentum=0.8, radius=1.0, method="newton-schulz"),
        lambda ps: NormSGD(ps, lr=0.1, momentum=0.8),
        lambda ps: LMO(ps, lr=0.1, momentum=0.8, geometry="rows"),
    ],
    ids=["muon", "newton-schulz", "normsgd", "rows"],
)
def test_a_layer_that_gets_no_gradients_any_more_comes_to_rest(make: Callable) -> None:
    """An idle expert's: its momentum decays through every magnitude, where squares of it underflow, too."""
    params = [nn.Parameter(x) for x in drawn([(12, 30), (80, 80), (70, 200)], 0)]
    opt = make(params)
    for step in range(500):  # 0.8^500 is 1e-48
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.randn_like(p) if step < 3 else torch.zeros_like(p)
        opt.step()
        for p, was in zip(params, before, strict=True):
            longest = 1.0 if isinstance(opt, NormSGD) else 1.3 * min(p.shape) ** 0.5
            assert (p - was).norm() <= 0.1 * longest + 1e-3, step
    assert all(map(torch.equal, params, before))


@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float32), (torch.bfloat16, torch.float16)])
def test_zero_gradients_of_several_dtypes_move_nothing(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    params = [nn.Parameter(torch.ones(3, 4, dtype=dtype)) for dtype in dtypes]
    for p in params:
        p.grad = torch.zeros_like(p)
    NormSGD(params, lr=0.1).step()
    assert all(torch.equal(p, torch.ones_like(p)) for p in params)
