"""Which tensors are stepped together, and what that costs in memory."""

import math
from unittest import mock

import pytest
import torch
from torch import nn

from autowarm import Muon, NormSGD, SignSGD
from autowarm.geometry import Spectral
from autowarm.optim.step import plan as planning
from tests.cases import each
from tests.optim.makers import drawn, peak_bytes


@pytest.mark.parametrize("shape", [(128, 352), (352, 128), (176, 176)])
@pytest.mark.parametrize("method", ["newton-schulz", "polar-express"])
def test_muon_needs_at_most_three_stacks_above_parameters_and_state(shape, method):
    params = [nn.Parameter(x) for x in drawn([(100, 300)] * 4 + [shape] * 16 + [shape[::-1]] * 8 + [(150, 150)] * 2, 0)]
    for p in params:
        p.grad = torch.ones_like(p)
    opt = Muon(params, lr=0.1, weight_decay=0.1, method=method, dtype=torch.bfloat16)
    stacks = stacks_with_members(Spectral(dtype=torch.bfloat16), [p.shape for p in params])
    largest = 2 * max(math.prod(stack.size) * len(members) for stack, members in stacks)
    assert largest < (24 if shape[0] == shape[1] else 16) * shape[0] * shape[1] * 2  # for they are cut
    # What products need for themselves, packed copies of blocks, differs by processor, and is less than a stack.
    momentum_bytes = sum(4 * p.numel() for p in params)  # the momentum, which the first step makes
    assert largest < peak_bytes(opt.step) - momentum_bytes < 3.5 * largest


@pytest.mark.parametrize("cls", [SignSGD, NormSGD])
def test_elementwise_steps_need_a_part_of_memory_only(cls):
    params = [nn.Parameter(torch.ones(256, 1024)) for _ in range(16)]
    for p in params:
        p.grad = torch.ones_like(p)
    opt = cls(params, lr=0.1)
    opt.step()
    assert peak_bytes(opt.step) < 2 * planning._PART_BYTES["cpu"]


MIXED = [(4, 9), (9, 4), (9, 4), (4, 7), (4, 3, 2, 2), (40, 4), (2, 4, 6), (65, 70), (0, 4), (3, 4)]


def stacks_with_members(geometry, shapes):
    """Stacks, and the indices of their tensors."""
    tensors = tuple((torch.device("cpu"), torch.Size(shape), torch.float32) for shape in shapes)
    stacks, order = planning.stacks_of(geometry, tensors)
    return [(stack, tuple(order[stack.some])) for stack in stacks]


FUSED = [(192, 64), (64, 64), (192, 64), (192, 64), (64, 192)] * 4
SPLIT = [(64, 64)] * 16 + [(192, 64), (192, 64), (64, 192)] * 4
ROOM = {"_STACK_BYTES": {"cpu": 5 * 30 * 70 * 8}}
# A narrow side shares a stack where little of it is padding. LLaMA's shapes make one stack if fused, and two if split.
STACKS = [
    (Spectral(), MIXED, {}, [((65, 70), [7]), ((40, 4), [5]), ((24, 2), [6]), ((12, 4), [0, 1, 2, 4]), ((7, 4), [3]),
                             ((4, 3), [9])]),
    (Spectral(), FUSED, {}, [((192, 64), [*range(20)])]),
    (Spectral(), SPLIT, {}, [((192, 64), [*range(16, 28)]), ((64, 64), [*range(16)])]),
    # A stack is cut evenly, and no smaller than a few.
    (Spectral(dtype=torch.float64), [(30, 70)] * 7 + [(70, 100)] * 3, ROOM,
     [((70, 100), [7, 8, 9]), ((70, 30), [0, 1, 2, 3]), ((70, 30), [4, 5, 6])]),
    # A tensor of many matrices is not.
    (Spectral(stacked=True), [(9, 70, 80), (2, 70, 80), (2, 70, 80)], {"_STACK_BYTES": {"cpu": 1}},
     [((70, 80), [0]), ((70, 80), [1, 2])]),
]  # fmt: skip


@each(("geometry", "shapes", "limits", "stacks"), STACKS)
def test_which_tensors_make_a_stack(geometry, shapes, limits, stacks):
    with mock.patch.dict(vars(planning), limits):
        assert [(stack.size, sorted(members)) for stack, members in stacks_with_members(geometry, shapes)] == stacks
