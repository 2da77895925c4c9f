"""Every optimizer on every kind of tensor, and on random ones: a new optimizer joins the tables by a line in `MAKERS`.

What is checked needs no second implementation: a step keeps to its unit ball, does not depend on how a tensor lies in
memory or beside which others it is stepped, leaves gradients as they are, and nothing that is not finite stays.
"""

import copy
import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Geometry, Spectral
from tests.cases import each

LR, DECAY = 0.1, 0.5


@dataclass(frozen=True)
class Made:
    """An optimizer to test.

    Attributes:
        make: of the tensors, with a rate and a weight decay.
        least_ndim: of the tensors it takes.
        slack: how far above its unit ball a step may end, for an iteration that is not exact.
    """

    make: Callable[..., LMO]
    least_ndim: int = 0
    slack: float = 1.0


MAKERS = {
    "signsgd": Made(SignSGD),
    "signsgd, no momentum": Made(lambda ps, **kw: SignSGD(ps, momentum=0.0, **kw)),
    "lion": Made(Lion),
    "normsgd": Made(NormSGD),
    "normsgd, from weights": Made(lambda ps, **kw: NormSGD(ps, momentum_init="weights", **kw)),
    "normsgd, nesterov": Made(lambda ps, **kw: LMO(ps, geometry="frobenius", nesterov=True, **kw)),
    "rows": Made(lambda ps, **kw: LMO(ps, geometry="rows", **kw)),
    "columns": Made(lambda ps, **kw: LMO(ps, geometry="columns", **kw)),
    "sign by shape": Made(lambda ps, **kw: LMO(ps, geometry=sign_by_shape(), **kw)),
    "svd": Made(lambda ps, **kw: LMO(ps, geometry=Spectral("original"), **kw)),
    "muon": Made(lambda ps, **kw: Muon(ps, **kw), 2, 1.3),
    "muon, newton-schulz": Made(lambda ps, **kw: Muon(ps, method="newton-schulz", **kw), 2, 1.3),
    "muon, in float32": Made(lambda ps, **kw: Muon(ps, radius=1.0, dtype=torch.float32, **kw), 2, 1.3),
    "muon, transposed": Made(lambda ps, **kw: LMO(ps, geometry=stacked(transposed=True), **kw), 2, 1.3),
    "muon, stacked": Made(lambda ps, **kw: LMO(ps, geometry=stacked(), **kw), 2, 1.3),
    "adamw part": Made(lambda ps, **kw: Muon([{"params": ps, "algorithm": "adamw"}], **kw), 0, 6.4),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": torch.Tensor.contiguous,
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim >= 2 else x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last) if x.ndim == 4 else x,
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
}
SHAPES = [(), (1,), (7,), (0, 4), (1, 5), (5, 1), (4, 6), (6, 4), (5, 5), (3, 4, 6), (4, 3, 2, 2), (70, 90)]
every_optimizer = pytest.mark.parametrize("made", MAKERS.values(), ids=MAKERS)


def sign_by_shape() -> Geometry:
    from autowarm.geometry import Sign

    return Sign("match_rms_adamw")


def stacked(*, transposed: bool = False) -> Geometry:
    return Spectral("original", stacked=True, method="polar-express", transposed=transposed)


def draw(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters(made: Made, dtype: torch.dtype, layout: Callable[[Tensor], Tensor]) -> list[nn.Parameter]:
    shapes = [shape for shape in SHAPES if len(shape) >= made.least_ndim]
    return [nn.Parameter(layout(draw(shape, i).to(dtype))) for i, shape in enumerate(shapes)]


def give(params: list[nn.Parameter], layout: Callable[[Tensor], Tensor], seed: int) -> list[Tensor]:
    for i, p in enumerate(params):
        p.grad = layout(draw(p.shape, 100 * seed + i).to(p.dtype))
    return [p.grad.clone() for p in params]


def is_on_the_ball(made: Made, opt: LMO, p: Tensor, was: Tensor) -> bool:
    """Whether a step of rate LR ends in the unit ball around where weight decay leaves its tensor."""
    geometry = opt.param_groups[0]["geometry"]
    step = (p.double() - was.double() * (1 - LR * DECAY)) / LR
    rounding = 4 * torch.finfo(p.dtype).eps * max(1.0, p.double().norm().item()) / LR
    return bool(geometry.norm(step) <= made.slack + 1e-3 + rounding / geometry.radius_of(p.shape))


@every_optimizer
@each("dtype", DTYPES)
@each("tensor_lr", [False, True])
def test_a_step_keeps_to_its_ball_and_to_no_layout(made: Made, dtype: torch.dtype, tensor_lr: bool) -> None:
    moved = {}
    for name, layout in LAYOUTS.items():
        params = parameters(made, dtype, layout)
        opt = made.make(params, lr=torch.tensor(LR) if tensor_lr else LR, weight_decay=DECAY)
        for seed in range(1, 4):
            grads = give(params, layout, seed)
            before = [p.detach().clone() for p in params]
            opt.step()
            assert all(torch.equal(p.grad, g) for p, g in zip(params, grads, strict=True))
            for p, was in zip(params, before, strict=True):
                assert is_on_the_ball(made, opt, p.detach(), was), (name, tuple(p.shape))
                assert p.numel() == 0 or not torch.equal(p, was), (name, tuple(p.shape))
        moved[name] = [p.detach().double() for p in params]
    # What an iteration in bfloat16 sees of another order of sums is as large as its own rounding.
    tolerance = max(0.05 if made.slack > 1 else 0.0, 50 * torch.finfo(dtype).eps)
    for name, found in moved.items():
        torch.testing.assert_close(found, moved["contiguous"], rtol=tolerance, atol=tolerance, msg=name)


@every_optimizer
def test_a_rate_of_zero_leaves_a_group_where_it_is(made: Made) -> None:
    frozen, moving = (parameters(made, torch.float32, torch.Tensor.contiguous) for _ in range(2))
    opt = made.make(moving, lr=LR, weight_decay=DECAY)
    group = {key: value for key, value in opt.param_groups[0].items() if key not in ("params", "lr")}
    opt.add_param_group({**group, "params": frozen, "lr": 0.0})
    before = [p.detach().clone() for p in frozen]
    give(frozen, torch.Tensor.contiguous, 1)
    give(moving, torch.Tensor.contiguous, 1)
    opt.step()
    assert all(torch.equal(p, was) for p, was in zip(frozen, before, strict=True))
    assert not torch.equal(moving[-1], frozen[-1])
    with pytest.raises(ValueError, match="lr must be positive and finite, got 0.0; 0 is for single groups"):
        made.make(moving, lr=0.0)


@every_optimizer
@each("given", [torch.tensor(DECAY), torch.tensor([DECAY]), torch.tensor([[DECAY]], dtype=torch.float64)])
def test_a_weight_decay_in_a_tensor_is_taken_as_a_number(made: Made, given: Tensor) -> None:
    found = []
    for decay in (DECAY, given):
        params = parameters(made, torch.float32, torch.Tensor.contiguous)
        give(params, torch.Tensor.contiguous, 1)
        made.make(params, lr=LR, weight_decay=decay).step()
        found.append(params)
    assert all(map(torch.equal, *found))


@every_optimizer
def test_complex_and_sparse_tensors_are_refused_by_name(made: Made) -> None:
    with pytest.raises(ValueError, match=r"'?w'? is complex \(torch.complex64\).*Together"):
        made.make([("w", nn.Parameter(torch.zeros(3, 3, dtype=torch.complex64)))], lr=LR)
    if "adamw" not in repr(made.make([nn.Parameter(torch.zeros(3, 3))], lr=LR)):
        with pytest.raises(ValueError, match=r"a parameter of shape \(3, 3\) is sparse"):
            made.make([nn.Parameter(torch.zeros(3, 3).to_sparse())], lr=LR)
    first, second = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    opt = made.make([first, second], lr=LR)
    first.grad, second.grad = torch.ones(3, 3), torch.ones(3, 3).to_sparse()
    with pytest.raises(ValueError, match=r"that of a parameter of shape \(3, 3\) is sparse .*SparseAdam"):
        opt.step()
    assert torch.equal(first, torch.ones(3, 3))
    assert not opt.state[first]


@every_optimizer
@each("rows", [4, 9])
def test_a_resized_tensor_is_refused_until_its_state_is_deleted(made: Made, rows: int) -> None:
    """As transformers resizes an embedding: fused kernels would read beyond a smaller state, and write there."""
    params = [nn.Parameter(draw((6, 5), i).float()) for i in range(2)]
    opt = made.make(params, lr=LR)
    give(params, torch.Tensor.contiguous, 1)
    opt.step()
    resized, other = params
    resized.data, resized.grad = draw((rows, 5), 0).float(), None
    give(params, torch.Tensor.contiguous, 2)
    if opt.state[resized]:
        before = other.detach().clone()
        with pytest.raises(ValueError, match=rf"a parameter of shape \({rows}, 5\) has a \w+ of shape \(6, 5\)"):
            opt.step()
        assert torch.equal(other, before)
        opt.state.pop(resized)
    opt.step()
    assert all(entry.shape in ((), (rows, 5)) for entry in opt.state[resized].values())


# Random cases, always the same: what goes wrong has a number to repeat it by.

CASES = 500


@dataclass(frozen=True)
class Case:
    """What is stepped, once with a gradient that is not finite and then on.

    Attributes:
        name: of the optimizer.
        dtype: of the tensors.
        layout: of the tensors.
        shapes: of the tensors.
        scale: of the gradients.
        tensor_lr: whether the rate is a tensor.
        bad: the place of the tensor whose gradient is spoilt, or None.
        value: what its gradient is spoilt by.
    """

    name: str
    dtype: torch.dtype
    layout: str
    shapes: tuple[tuple[int, ...], ...]
    scale: float
    tensor_lr: bool
    bad: int | None
    value: float


def case(number: int) -> Case:
    pick = random.Random(number)
    name = list(MAKERS)[number % len(MAKERS)]
    shapes = [shape for shape in SHAPES if len(shape) >= MAKERS[name].least_ndim]
    some = tuple(pick.choice(shapes) for _ in range(pick.randint(1, 5)))
    solid = [i for i, shape in enumerate(some) if math.prod(shape)]
    dtype = pick.choice(DTYPES)
    exponent = pick.uniform(-6, 3) if dtype == torch.float16 else pick.uniform(-12, 12)
    return Case(
        name,
        dtype,
        pick.choice(list(LAYOUTS)),
        some,
        10.0**exponent,
        pick.random() < 0.5,
        pick.choice(solid) if solid and pick.random() < 0.8 else None,
        pick.choice([math.nan, math.inf, -math.inf]),
    )


def run(case: Case) -> None:
    made, layout = MAKERS[case.name], LAYOUTS[case.layout]
    params = [nn.Parameter(layout(draw(shape, i).to(case.dtype))) for i, shape in enumerate(case.shapes)]
    opt = made.make(params, lr=torch.tensor(LR) if case.tensor_lr else LR, weight_decay=DECAY)
    for step in range(3):
        for i, p in enumerate(params):
            p.grad = layout(draw(p.shape, 10 * step + i, case.scale).to(case.dtype))
            # A value may come from far beyond the dtype; what is meant is large, not infinite.
            p.grad.clamp_(-torch.finfo(case.dtype).max / 2, torch.finfo(case.dtype).max / 2)
        spoilt = step == 1 and case.bad is not None
        if spoilt:
            bad = params[case.bad]
            bad.grad.select(0, 0).fill_(case.value) if bad.ndim else bad.grad.fill_(case.value)
        before = [p.detach().clone() for p in params]
        states = [[t.clone() for t in opt.state[p].values()] for p in params]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            opt.step()
        assert len(said) == spoilt
        assert opt.skipped_updates == (step >= 1 and case.bad is not None)
        for i, p in enumerate(params):
            now = opt.state[p].values()
            assert all(torch.isfinite(t).all() for t in (p, *now))
            if spoilt:
                assert torch.equal(p, before[i])
                assert all(torch.equal(a, b) for a, b in zip(now, states[i], strict=True))
            else:
                assert is_on_the_ball(made, opt, p.detach(), before[i]), tuple(p.shape)


@pytest.mark.parametrize("start", range(0, CASES, 50))
def test_random_cases(start: int) -> None:
    for number in range(start, start + 50):
        try:
            run(case(number))
        except Exception as error:
            raise AssertionError(f"case {number}: {case(number)}") from error


def test_the_cases_are_of_all_kinds() -> None:
    drawn = [case(number) for number in range(CASES)]
    assert {one.name for one in drawn} == set(MAKERS)
    assert {one.dtype for one in drawn} == set(DTYPES)
    assert {one.layout for one in drawn} == set(LAYOUTS)
    assert {shape for one in drawn for shape in one.shapes} == set(SHAPES)
    assert sum(one.bad is not None for one in drawn) > CASES / 2
    assert {str(one.value) for one in drawn} == {"nan", "inf", "-inf"}


@each(
    ("geometry", "shape", "message"),
    [
        (Spectral(transposed=True, method="polar-express"), (4,), "a transposed matrix needs at least 2 dimensions"),
        (Spectral(blocks=3), (10, 4), "10 rows .* do not divide into 3"),
        (Spectral(stacked=True), (5,), "a stack of matrices needs at least 2 dimensions"),
    ],
)
def test_a_shape_that_the_geometry_cannot_read_is_refused_at_once(
    geometry: Spectral, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LMO([nn.Parameter(torch.zeros(shape))], lr=0.1, geometry=geometry)


@pytest.mark.parametrize("make", [Lion, NormSGD, SignSGD, Muon])
def test_a_model_without_memory_can_be_stepped(make: type[LMO]) -> None:
    """As programs do that estimate what a run needs."""
    p = nn.Parameter(torch.empty(4, 4, device="meta"))
    p.grad = torch.empty_like(p)
    opt = make([p], lr=0.1)
    opt.step()
    opt.step()
    assert opt.state[p]["momentum_buffer"].device.type == "meta"
    opt.load_state_dict(opt.state_dict())
    assert copy.deepcopy(opt).skipped_updates == 0
