"""Whole steps of every optimizer against the plain code that says what they compute, and peers they are known from."""

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from autowarm import LMO, Lion, Muon
from autowarm.geometry import Columns, Frobenius, Rows, Sign, Spectral
from autowarm.optim.step import plan
from tests.cases import each
from tests.geometry.own import Lines, Steps, Stripes, Whole
from tests.optim.makers import EVERY, Made, drawn, said_by
from tests.reference import adamw_step_, lmo_step_

DOUBLE: dict[str, Any] = {"dtype": torch.float64}
GEOMETRIES = [
    *(Sign(0.3), Sign("match_rms_adamw"), Frobenius("original"), Rows("original"), Columns(0.3)),
    *(Spectral("original", method="newton-schulz", **DOUBLE), Spectral(0.5, method="svd")),
    Spectral("original", stacked=True, method="polar-express", **DOUBLE),
    *(Steps(0.3), Lines("original"), Stripes(), Whole()),  # of one's own
]
MAKERS = {name: Made(one.cls, one.options | (DOUBLE if "muon" in name else {})) for name, one in EVERY.items()}
MAKERS |= {f"{name}, climbing": Made(one.cls, one.options | {"maximize": True}) for name, one in MAKERS.items()}
MAKERS |= {repr(geometry): Made(LMO, {"geometry": geometry, "momentum": 0.0}) for geometry in GEOMETRIES}
SHAPES = [(6, 6), (4, 9), (9, 4), (4, 9), (1, 5), (3, 4, 2, 2), (0, 4), (4, 7), (2, 4, 2, 3), (40, 4), (65, 70),
          (0, 7, 2, 4), (2, 7, 2, 4)]  # fmt: skip
# How many bytes are stepped at a time, and what is stacked with what.
LIMITS: list[dict[str, Any]] = [
    *({"_PART_BYTES": {"cpu": part}, "_STACK_BYTES": {"cpu": part}} for part in (1, 300, 1 << 20)),
    *({"NARROW": narrow, "_FEW": few, "_STACK_BYTES": {"cpu": 1}} for narrow in (64, 0) for few in (4, 1)),
]


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("name", MAKERS)
@each("limits", LIMITS)
def test_steps_are_those_of_the_plain_code_however_tensors_are_stacked(
    name: str, tensor_lr: bool, limits: dict[str, Any]
) -> None:
    """Four of them: in the first a gradient is zero, in the third one is not finite."""
    plain = drawn(SHAPES, 0, torch.float64)
    params, states = [nn.Parameter(x.clone()) for x in plain], [{} for _ in plain]
    lr: Any = torch.tensor([[0.05]], dtype=torch.float64) if tensor_lr else 0.05
    opt = MAKERS[name](params, lr, weight_decay=0.1, capturable=tensor_lr)
    (group,) = opt.param_groups
    for step in range(4):
        rate = 0.05 / (step + 1)  # which a schedule fills in place, if it is a tensor
        lr.fill_(rate) if tensor_lr else group.update(lr=rate)
        grads = drawn(SHAPES, step + 1, torch.float64)
        if step == 0:
            grads[3].zero_()
        elif step == 2:
            grads[2][-1] = math.nan
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        with mock.patch.dict(vars(plan), limits):
            said_by(opt.step)
        for x, g, state in zip(plain, grads, states, strict=True):
            if step != 2:
                (adamw_step_ if "adamw part" in name else lmo_step_)(group, x, -g if group["maximize"] else g, state)
        torch.testing.assert_close([p.detach() for p in params], plain)
        for p, g, state in zip(params, grads, states, strict=True):
            torch.testing.assert_close(p.grad, g, rtol=0, atol=0, equal_nan=True)  # is left as it is
            for entry, value in state.items():
                # A climbing oracle's momentum is of what was given, and the plain code's of its negative.
                sign = -1 if group["maximize"] and entry == "momentum_buffer" else 1
                torch.testing.assert_close(opt.state[p][entry], sign * value, check_dtype=False)


# f(w) = ½Σ aᵢ(wᵢ − cᵢ)², so that a gradient is a(w − c), under a rate that changes.
@pytest.mark.parametrize(
    ("ours", "peer", "options"),
    [
        *((lambda ps, **o: Muon(ps, method="newton-schulz", momentum=0.9, **o),
           lambda ps, radius, **o: torch.optim.Muon(ps, adjust_lr_fn=radius, momentum=0.9, **o),
           {"radius": radius, "nesterov": nesterov})
          for radius, nesterov in (("original", True), ("match_rms_adamw", False))),
        (lambda ps, **o: Muon([{"params": ps, "algorithm": "adamw"}], adamw_betas=(0.8, 0.99), **o),
         lambda ps, **o: torch.optim.AdamW(ps, betas=(0.8, 0.99), **o), {}),
        (lambda ps, **o: Lion(ps, **o), lambda ps, **o: pytest.importorskip("lion_pytorch").Lion(ps, **o), {}),
    ],
)  # fmt: skip
def test_steps_are_those_of_the_peers(ours: Callable, peer: Callable, options: dict[str, Any]) -> None:
    """Those of Muon within 5%: single products and batches of them round differently in bfloat16."""
    shapes = [(32, 32), (16, 48), (48, 16), (16, 48)]
    params, others = ([nn.Parameter(x) for x in drawn(shapes, 0)] for _ in range(2))
    a, b = (make(ps, lr=0.02, weight_decay=0.1, **options) for make, ps in ((ours, params), (peer, others)))
    for seed in range(1, 4):
        for p, q, g in zip(params, others, drawn(shapes, seed), strict=True):
            p.grad, q.grad = g, g.clone()
        before = [q.detach().clone() for q in others]
        a.step()
        b.step()
        for p, q, was in zip(params, others, before, strict=True):
            assert (p - q).norm() <= (0.05 if options else 1e-4) * (q - was).norm()
            p.data.copy_(q.data)
