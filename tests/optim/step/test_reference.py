"""Whole steps of every optimizer against the plain code that says what they compute."""

import math
import warnings

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
