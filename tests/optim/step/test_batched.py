"""The fast ways to step a group against the plain one, and what they cost in memory."""

import math

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from autowarm import LMO, Muon, NormSGD, SignSGD
from autowarm.geometry import Columns, Frobenius, Rate, Rows, Sign, Spectral
from autowarm.optim.step import plan as planning
from autowarm.optim.step.update import empty_stack
from tests.reference import lmo_step_

SHAPES = [(6, 6), (4, 9), (9, 4), (4, 9), (1, 5), (3, 4, 2, 2), (6, 6), (0, 4), (9, 4)]
GEOMETRIES = [
    Sign(),
    Sign(0.3),
    Sign("match_rms_adamw"),
    Frobenius(),
    Frobenius("original"),
    Spectral("match_rms_adamw", method="polar-express", dtype=torch.float64),
    Spectral("original", method="newton-schulz", dtype=torch.float64),
    Spectral(0.5, method="svd"),
    Rows(),
    Rows("original"),
    Columns(0.3),
]


def draw(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def fast(geometry, xs, gs, lr, decay=0.0):
    """One step of an optimizer without momentum, whose directions are its gradients."""
    params = [nn.Parameter(x.clone()) for x in xs]
    for p, g in zip(params, gs, strict=True):
        p.grad = g.clone()
    LMO(params, lr=lr, geometry=geometry, momentum=0.0, weight_decay=decay).step()
    assert all(torch.equal(p.grad, g) for p, g in zip(params, gs, strict=True))
    return [p.detach() for p in params]


def plain(geometry, xs, gs, lr, decay=0.0):
    xs = [x.clone() for x in xs]
    group = {"geometry": geometry, "momentum": 0.0, "lr": lr, "weight_decay": decay}
    for x, g in zip(xs, gs, strict=True):
        lmo_step_(group, x, g, {})
    return xs


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
def test_fast_ways_equal_the_reference(geometry, decay, tensor_lr, monkeypatch):
    xs, gs = draw(SHAPES, 0), draw(SHAPES, 1)
    gs[3].zero_()
    lr = torch.tensor(0.1, dtype=torch.float64) if tensor_lr else 0.1
    expected = plain(geometry, xs, gs, lr, decay)
    for part_bytes in (1, 300, 1 << 20):
        monkeypatch.setitem(planning._PART_BYTES, "cpu", part_bytes)
        torch.testing.assert_close(fast(geometry, xs, gs, lr, decay), expected)
    rate, radii = (
        Rate.of_group({"lr": lr, "weight_decay": decay}, torch.device("cpu")),
        geometry.radii([x.shape for x in xs]),
    )
    geometry.step_(xs, [g.clone() for g in gs], rate, radii, owned=True)
    torch.testing.assert_close(xs, expected)


def peak_bytes(step):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("shape", [(128, 352), (352, 128), (176, 176)])
@pytest.mark.parametrize("method", ["newton-schulz", "polar-express"])
def test_muon_needs_at_most_three_stacks_above_parameters_and_state(shape, method):
    params = [
        nn.Parameter(x.float()) for x in draw([(100, 300)] * 4 + [shape] * 16 + [shape[::-1]] * 8 + [(150, 150)] * 2, 0)
    ]
    for p in params:
        p.grad = torch.ones_like(p)
    opt = Muon(params, lr=0.1, weight_decay=0.1, method=method, dtype=torch.bfloat16)
    stacks = found(Spectral(dtype=torch.bfloat16), [p.shape for p in params])
    largest = 2 * max(math.prod(stack.size) * len(members) for stack, members in stacks)
    assert largest < (24 if shape[0] == shape[1] else 16) * shape[0] * shape[1] * 2  # for they are cut
    # What products need for themselves, packed copies of blocks, differs by processor, and is less than a stack.
    kept = sum(4 * p.numel() for p in params)  # the momentum, which the first step makes
    assert largest < peak_bytes(opt.step) - kept < 3.5 * largest


@pytest.mark.parametrize("cls", [SignSGD, NormSGD])
def test_elementwise_steps_need_a_part_of_memory_only(cls):
    params = [nn.Parameter(torch.ones(256, 1024)) for _ in range(16)]
    for p in params:
        p.grad = torch.ones_like(p)
    opt = cls(params, lr=0.1)
    opt.step()
    assert peak_bytes(opt.step) < 2 * planning._PART_BYTES["cpu"]


def test_capturable_needs_a_tensor_rate_and_reads_it_at_each_step():
    layer = nn.Linear(4, 4, bias=False)
    with pytest.raises(ValueError, match="capturable needs lr as a tensor"):
        Muon(layer.parameters(), lr=0.1, capturable=True)
    rate = torch.tensor(0.1)
    opt = Muon(layer.parameters(), lr=rate, capturable=True)
    rate.fill_(0.0)
    assert all(group["capturable"] for group in opt.param_groups)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.ones(4, 4)
    opt.step()
    assert torch.equal(layer.weight, before)
    rate.fill_(0.1)
    opt.step()
    assert not torch.equal(layer.weight, before)


MIXED = [(4, 9), (9, 4), (9, 4), (4, 7), (4, 3, 2, 2), (40, 4), (2, 4, 6), (65, 70), (0, 4), (3, 4)]


def found(geometry, shapes):
    """Stacks, and the indices of their tensors."""
    tensors = tuple((torch.device("cpu"), torch.Size(shape), torch.float32) for shape in shapes)
    stacks, order = planning.stacks_of(geometry, tensors)
    return [(stack, tuple(order[stack.some])) for stack in stacks]


def test_a_narrow_side_shares_a_stack_where_little_of_it_is_padding():
    sizes = {stack.size: sorted(members) for stack, members in found(Spectral(), MIXED)}
    assert sizes == {
        (40, 4): [5],
        (12, 4): [0, 1, 2, 4],
        (7, 4): [3],
        (24, 2): [6],
        (65, 70): [7],
        (0, 4): [8],
        (4, 3): [9],
    }


def test_llamas_shapes_make_one_stack_if_fused_and_two_if_split():
    fused = [(192, 64), (64, 64), (192, 64), (192, 64), (64, 192)] * 4
    split = [(64, 64)] * 4 * 4 + [(192, 64), (192, 64), (64, 192)] * 4
    assert [stack.size for stack, _ in found(Spectral(), fused)] == [(192, 64)]
    assert [stack.size for stack, _ in found(Spectral(), split)] == [(192, 64), (64, 64)]


@pytest.mark.parametrize("method", ["newton-schulz", "polar-express"])
@pytest.mark.parametrize("narrow", [64, 0])
@pytest.mark.parametrize("few", [4, 1])
def test_together_is_as_alone(method, narrow, few, monkeypatch):
    xs, gs = draw(MIXED, 0), draw(MIXED, 1)
    geometry = Spectral("original", method=method, dtype=torch.float64)
    expected = plain(geometry, xs, gs, 0.1, 1.0)
    monkeypatch.setattr(planning, "NARROW", narrow)
    monkeypatch.setattr(planning, "_FEW", few)
    monkeypatch.setattr(planning, "_STACK_BYTES", {"cpu": 1})
    torch.testing.assert_close(fast(geometry, xs, gs, 0.1, 1.0), expected)


def test_a_stack_is_cut_evenly_and_no_smaller_than_a_few(monkeypatch):
    shapes = [(30, 70)] * 7 + [(70, 100)] * 3
    monkeypatch.setattr(planning, "_STACK_BYTES", {"cpu": 5 * 30 * 70 * 8})
    cut = found(Spectral(dtype=torch.float64), shapes)
    assert [(stack.size, members) for stack, members in cut] == [
        ((70, 100), (7, 8, 9)),
        ((70, 30), (0, 1, 2, 3)),
        ((70, 30), (4, 5, 6)),
    ]
    monkeypatch.setattr(planning, "_FEW", 1)
    assert [members for _, members in found(Spectral(dtype=torch.float64), shapes)][:3] == [(7,), (8,), (9,)]
    monkeypatch.setattr(planning, "_STACK_BYTES", {})
    assert [len(members) for _, members in found(Spectral(dtype=torch.float64), shapes)] == [3, 7]


def test_a_tensor_of_many_matrices_is_not_cut(monkeypatch):
    monkeypatch.setattr(planning, "_STACK_BYTES", {"cpu": 1})
    experts = found(Spectral(stacked=True), [(9, 70, 80), (2, 70, 80), (2, 70, 80)])
    assert [members for _, members in experts] == [(0,), (1, 2)]


def test_a_stack_of_no_experts_steps_beside_others():
    xs, gs = draw([(0, 70, 80), (2, 70, 80)], 0), draw([(0, 70, 80), (2, 70, 80)], 1)
    geometry = Spectral(stacked=True, method="polar-express", dtype=torch.float64)
    torch.testing.assert_close(fast(geometry, xs, gs, 0.1, 1.0), plain(geometry, xs, gs, 0.1, 1.0))


def test_slots_are_views_and_padding_is_zero():
    shapes = [(12, 3)] * 4 + [(8, 3)]
    ((stack, _),) = found(Spectral(blocks=2, dtype=torch.float32), shapes)
    assert stack.size == (6, 3)
    X, slots = empty_stack(stack)
    assert [tuple(slot.shape) for slot in slots] == [(2, 6, 3)] * 4 + [(2, 4, 3)]
    for slot in slots:
        slot.fill_(1.0)
    assert X.sum() == sum(m * n for m, n in shapes)
