"""Every optimizer on every kind of tensor.

What is checked needs no second implementation: a step keeps to its unit ball, does not depend on how a tensor lies in
memory or beside which others it is stepped, leaves gradients as they are, and nothing that is not finite stays.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autowarm import LMO, Muon
from autowarm.geometry import Frobenius, Geometry, Sign, Spectral
from tests.cases import each
from tests.optim.makers import CLASSES, EVERY, Made, drawn, set_gradient, unmoved

LR, DECAY = 0.1, 0.5
STACKED: dict[str, Any] = {"radius": "original", "stacked": True, "method": "polar-express"}
MAKERS = EVERY | {
    "sign by shape": Made(LMO, {"geometry": Sign("match_rms_adamw")}),
    "svd": Made(LMO, {"geometry": Spectral("original")}),
    "muon, in float32": Made(Muon, {"radius": 1.0, "dtype": torch.float32}),
    "muon, transposed": Made(LMO, {"geometry": Spectral(**STACKED, transposed=True)}),
    "muon, stacked": Made(LMO, {"geometry": Spectral(**STACKED)}),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": torch.Tensor.contiguous,
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim >= 2 else x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last) if x.ndim == 4 else x,
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
}
SHAPES = [(), (1,), (7,), (0, 4), (1, 5), (5, 1), (4, 6), (6, 4), (5, 5), (3, 2, 2, 6), (4, 3, 2, 2), (70, 90)]
every_optimizer = pytest.mark.parametrize("name", MAKERS)


def slack(name: str) -> float:
    """How far above its unit ball a step may end, for an iteration that is not exact."""
    return 1.3 if "muon" in name else 6.4 if "adamw" in name else 1.0


def shapes_of(name: str) -> list[tuple[int, ...]]:
    return [shape for shape in SHAPES if len(shape) >= 2 or "muon" not in name]


def parameters(name: str, dtype: torch.dtype = torch.float32, layout: str = "contiguous") -> list[nn.Parameter]:
    return [nn.Parameter(LAYOUTS[layout](x.to(dtype))) for x in drawn(shapes_of(name), 0, torch.float64)]


def give(params: list[nn.Parameter], seed: int, layout: str = "contiguous") -> list[Tensor]:
    for p, g in zip(params, drawn([p.shape for p in params], seed, torch.float64), strict=True):
        p.grad = LAYOUTS[layout](g.to(p.dtype))
    return [p.grad.clone() for p in params]


def is_on_the_ball(name: str, opt: LMO, p: Tensor, was: Tensor) -> bool:
    """Whether a step of rate LR ends in the unit ball around where weight decay leaves its tensor."""
    geometry = opt.param_groups[0]["geometry"]
    step = (p.double() - was.double() * (1 - LR * DECAY)) / LR
    rounding = 4 * torch.finfo(p.dtype).eps * max(1.0, p.double().norm().item()) / LR
    return bool(geometry.norm(step) <= slack(name) + 1e-3 + rounding / geometry.radius_of(p.shape))


@every_optimizer
@each("dtype", DTYPES)
@each("tensor_lr", [False, True])
def test_a_step_keeps_to_its_ball_and_to_no_layout(name: str, dtype: torch.dtype, tensor_lr: bool) -> None:
    moved = {}
    for layout in LAYOUTS:
        params = parameters(name, dtype, layout)
        opt = MAKERS[name](params, torch.tensor(LR) if tensor_lr else LR, weight_decay=DECAY)
        for seed in (1, 2):
            grads = give(params, seed, layout)
            before = [p.detach().clone() for p in params]
            opt.step()
            assert all(torch.equal(p.grad, g) for p, g in zip(params, grads, strict=True))
            for p, was in zip(params, before, strict=True):
                assert is_on_the_ball(name, opt, p.detach(), was), (layout, tuple(p.shape))
                assert p.numel() == 0 or not torch.equal(p, was), (layout, tuple(p.shape))
        moved[layout] = [p.detach().double() for p in params]
    # What an iteration in bfloat16 sees of another order of sums is as large as its own rounding.
    tolerance = max(0.05 if slack(name) > 1 else 0.0, 50 * torch.finfo(dtype).eps)
    for layout, tensors in moved.items():
        torch.testing.assert_close(tensors, moved["contiguous"], rtol=tolerance, atol=tolerance, msg=layout)


@every_optimizer
def test_neither_the_dtypes_beside_a_tensor_nor_the_default_change_its_step(name: str) -> None:
    moved = []
    for default, dtypes in ((torch.float32, [torch.float32]), (torch.bfloat16, [torch.float16, torch.float32])):
        torch.set_default_dtype(default)
        try:
            params = [p for dtype in dtypes for p in parameters(name, dtype)]
            opt = MAKERS[name](params, lr=1e-3, weight_decay=DECAY)
            for seed in range(3):
                grads = [x for dtype in dtypes for x in give([p for p in params if p.dtype == dtype], seed)]
                opt.step()
                assert all(torch.equal(p.grad, g) for p, g in zip(params, grads, strict=True))
        finally:
            torch.set_default_dtype(torch.float32)
        moved.append([p.detach() for p in params if p.dtype == torch.float32])
    torch.testing.assert_close(*moved)  # half precision takes another way beside


@every_optimizer
def test_what_has_no_step_is_refused_by_name_before_anything_moves(name: str) -> None:
    make = MAKERS[name]
    with pytest.raises(ValueError, match=r"'?w'? is complex \(torch.complex64\).*Together"):
        make([("w", nn.Parameter(torch.zeros(3, 3, dtype=torch.complex64)))])
    with pytest.raises(ValueError, match=r"a parameter of shape \(3, 3\) is sparse"):
        make([nn.Parameter(torch.zeros(3, 3).to_sparse())])
    for bad, words in (
        (torch.ones(3, 3).to_sparse(), r"that of a parameter of shape \(3, 3\) is sparse .*SparseAdam"),
        (torch.ones(3, 3) + 1j, r"that of a parameter of shape \(3, 3\) is complex"),
        (torch.ones(3, 3, dtype=torch.int32), r"is of whole numbers \(torch.int32\): convert it"),
    ):
        for place in (0, 1):
            params = [nn.Parameter(torch.ones(3, 3)) for _ in range(2)]
            opt = make(params)
            params[1 - place].grad = torch.ones(3, 3)
            set_gradient(params[place], bad)
            with unmoved(params), pytest.raises(ValueError, match=words):
                opt.step()
            assert not opt.state[params[0]]


@every_optimizer
@each("rows", [4, 9])
def test_a_resized_tensor_is_refused_until_its_state_is_deleted(name: str, rows: int) -> None:
    """As transformers resizes an embedding: fused kernels would read beyond a smaller state, and write there."""
    params = [nn.Parameter(x) for x in drawn([(6, 5)] * 2, 0)]
    opt = MAKERS[name](params)
    give(params, 1)
    opt.step()
    resized, other = params
    resized.data, resized.grad = drawn([(rows, 5)], 0)[0], None
    give(params, 2)
    if opt.state[resized]:
        before = other.detach().clone()
        with pytest.raises(ValueError, match=rf"a parameter of shape \({rows}, 5\) has a \w+ of shape \(6, 5\)"):
            opt.step()
        assert torch.equal(other, before)
        opt.state.pop(resized)
    opt.step()
    assert all(entry.shape in ((), (rows, 5)) for entry in opt.state[resized].values())


@each(
    ("geometry", "shape", "message"),
    [
        (Spectral(transposed=True, method="polar-express"), (4,), "a transposed matrix needs at least 2 dimensions"),
        (Spectral(blocks=3), (10, 4), "10 rows .* do not divide into 3"),
        (Spectral(stacked=True), (5,), "a stack of matrices needs at least 2 dimensions"),
        (Spectral(), (3, 4, 6), r"\(3, 4, 6\) may be a stack .* group geometry=Spectral\(stacked=True\)"),
        (Frobenius(0.5), (3, 1, 6), r"may be a stack .* geometry=Frobenius\(stacked=True\), or False for a kernel"),
    ],
)
def test_a_shape_that_the_geometry_cannot_read_is_refused_at_once(
    geometry: Geometry, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LMO([nn.Parameter(torch.zeros(shape))], lr=0.1, geometry=geometry)


@each("stacked", [True, False])
@each("geometry", [Frobenius(), Spectral()])
def test_three_dimensions_are_read_as_the_geometry_says(geometry: Any, stacked: bool) -> None:
    p = nn.Parameter(torch.zeros(3, 4, 6))
    (p.grad,) = drawn([p.shape], 0)
    LMO([p], lr=1.0, geometry=geometry.reading(stacked=stacked), momentum=0.0).step()
    steps = [type(geometry)().lmo(g) for g in (p.grad if stacked else [p.grad.flatten(1)])]
    torch.testing.assert_close(p.detach(), torch.stack(steps).reshape(p.shape))
    model = nn.ParameterDict({"experts": p, "pos_embed": nn.Parameter(torch.ones(1, 4, 6))})
    opt = LMO.from_model(model, geometry=geometry)  # which knows what they are
    assert [group["geometry"].stacked for group in opt.param_groups] == [True, False]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_model_without_memory_can_be_stepped(cls: type[LMO]) -> None:
    """As programs do that estimate what a run needs."""
    p = nn.Parameter(torch.empty(4, 4, device="meta"))
    p.grad = torch.empty_like(p)
    opt = cls([p], lr=0.1)
    opt.step()
    opt.step()
    assert opt.state[p]["momentum_buffer"].device.type == "meta"
    opt.load_state_dict(opt.state_dict())
    assert copy.deepcopy(opt).skipped_updates == 0
