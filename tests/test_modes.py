"""Arithmetic in single precision stays in it, whatever autocast the caller is in; what the caller runs keeps it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from autowarm import Lion
from autowarm.geometry import MaxOverLayers, Spectral, resolve
from autowarm.orthogonalize import nuclear_norm, orthogonalize, spectral_norm
from autowarm.smoothness import Probe
from autowarm.smoothness.measure import measure
from tests.cases import each

METHODS = ("svd", "newton-schulz", "polar-express")
GEOMETRIES = {
    **{name: resolve(name) for name in ("spectral", "sign", "frobenius", "rows", "columns")},
    **{method: Spectral("original", method=method, dtype=torch.float32) for method in METHODS},
    "stacked": Spectral(stacked=True),
    "blocks": Spectral("match_rms_adamw", blocks=2),
}


def iterated(method: str, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda g: orthogonalize(g, method=method, dtype=dtype)


FUNCTIONS: dict[str, Callable[[Tensor], object]] = {
    "nuclear": nuclear_norm,
    "spectral": spectral_norm,
    **{f"{m} in {d}": iterated(m, d) for m in METHODS for d in (torch.float32, torch.bfloat16, torch.float64)},
    **{f"norm, {name}": one.norm for name, one in GEOMETRIES.items()},
    **{f"dual, {name}": one.dual for name, one in GEOMETRIES.items()},
    **{f"lmo, {name}": one.lmo for name, one in GEOMETRIES.items()},
    **{f"lmo of each, {name}": lambda g, one=one: one.lmo_each([g, g.mT]) for name, one in GEOMETRIES.items()},
    "model's norm": lambda g: MaxOverLayers(["spectral", "rows"]).norm([g, g]),
    "model's dual": lambda g: MaxOverLayers(["spectral", "rows"]).dual([g, g]),
    "measure": lambda g: measure([g], [g.mT.reshape(g.shape)], [g.sin()], MaxOverLayers("spectral")),
    "to be differentiated": lambda g: Spectral().dual(g.clone().requires_grad_()).detach(),
}


def flat(found: object) -> list[Tensor]:
    if isinstance(found, dict):
        return list(found.values())
    return [found] if isinstance(found, Tensor) else list(found)  # type: ignore[call-overload]


@each("autocast", [torch.bfloat16, torch.float16])
@each("name", FUNCTIONS)
def test_autocast_changes_no_bit(name: str, autocast: torch.dtype) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        if dtype == torch.bfloat16 and "differentiated" in name:
            continue  # LAPACK has no half precision, and this does not widen
        g = torch.randn(24, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
        outside = flat(FUNCTIONS[name](g))
        with torch.autocast("cpu", autocast):
            inside = flat(FUNCTIONS[name](g))
        for x, y in zip(outside, inside, strict=True):
            assert x.dtype == y.dtype
            assert torch.equal(x, y)


def bowl(seen: list[torch.dtype]) -> tuple[nn.Parameter, Callable[[], Tensor]]:
    """A loss with a product, which notes the dtype that the product has."""
    torch.manual_seed(0)
    x, A = nn.Parameter(torch.randn(24, 1)), torch.randn(24, 24)

    def loss() -> Tensor:
        product = A @ x
        seen.append(product.dtype)
        return product.float().square().sum() / 2

    return x, loss


@each("autocast", [torch.bfloat16, torch.float16])
def test_a_probes_closure_keeps_the_autocast_that_its_arithmetic_leaves(autocast: torch.dtype) -> None:
    seen: list[torch.dtype] = []
    points = []
    for enabled in (False, True):
        x, loss = bowl(seen)
        opt = Lion([x], lr=1e-2)
        probe = Probe(nn.ParameterList([x]), opt, geometry="spectral")

        def closure() -> Tensor:
            value = loss()  # noqa: B023
            with torch.autocast("cpu", enabled=False):
                x.grad = torch.ones_like(x) if x.grad is None else x.grad  # noqa: B023
            return value

        with torch.autocast("cpu", autocast, enabled=enabled), probe(closure):
            opt.step()
        points += probe.points
    assert seen == [torch.float32] * 2 + [autocast] * 2
    # The gradients are the same in both, so all that is measured of them must be, to the bit.
    for name in ("gradient_change", "step_norm", "slope", "slope_after", "step_l2"):
        assert getattr(points[0], name) == getattr(points[1], name)
