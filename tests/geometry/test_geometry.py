"""Every geometry, on every property that makes it one; the table is the specification."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autowarm import LMO
from autowarm.geometry import (
    RADIUS_RULES,
    Columns,
    Frobenius,
    Geometry,
    MaxOverLayers,
    Rows,
    Sign,
    Spectral,
    resolve,
    total_kappa,
)
from tests.cases import each
from tests.geometry.own import Lines, Steps, Stripes, Taxicab, Whole
from tests.optim.makers import drawn

GEOMETRIES = [
    Spectral(),
    Spectral(radius=0.3),
    Spectral(radius="match_rms_adamw"),
    Spectral(stacked=True, radius="original"),
    Sign(),
    Sign(radius=2.0),
    Frobenius(),
    Frobenius(radius=0.5),
    Rows(),
    Rows(radius=0.3),
    Columns(),
    Columns(radius="spectral_unclamped"),
    Taxicab(radius=2.0),
]
SHAPES = [(4, 6), (6, 4), (5, 5), (1, 7), (7, 1), (3, 4, 5), (2, 3, 2, 2)]
VECTORS = [(7,), (1,), ()]

cases = each(
    ("geometry", "shape"),
    [(g, s) for g in GEOMETRIES for s in SHAPES + VECTORS if not (len(s) < 2 and getattr(g, "stacked", False))],
)


def draw(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return drawn([shape], seed, torch.float64)[0]


@cases
def test_lmo_is_on_the_unit_sphere_and_attains_the_dual_norm(geometry: Geometry, shape: tuple[int, ...]) -> None:
    g = draw(shape)
    q = geometry.lmo(g)
    assert q.shape == g.shape
    assert geometry.norm(q).item() == pytest.approx(1.0)
    assert (g * q).sum().item() == pytest.approx(-geometry.dual(g).item())


@cases
def test_no_magnitude_of_a_gradient_takes_a_step_off_the_ball(geometry: Geometry, shape: tuple[int, ...]) -> None:
    drawn_once = draw(shape)
    for exponent in range(-46, 19, 3):
        g = (drawn_once * 10.0**exponent).float()
        for q in (geometry.lmo(g), *geometry.lmo_each([g])):
            assert geometry.norm(q).item() < 1.001, exponent


@each("geometry", [Frobenius(), Rows(), Columns()])
@each("flushed", [False, True])
def test_many_squares_that_underflow_do_not_either(geometry: Geometry, flushed: bool) -> None:
    g = draw((400, 400)).float()
    torch.set_flush_denormal(flushed)
    try:
        for exponent in range(-24, -14):
            for share in (1.0, 2.0, 5.0):
                q = geometry.lmo(g * share * 10.0**exponent)
                assert geometry.norm(q).item() < 1.01, (exponent, share)
    finally:
        torch.set_flush_denormal(False)


@cases
def test_no_step_of_unit_norm_does_better(geometry: Geometry, shape: tuple[int, ...]) -> None:
    g = draw(shape)
    for seed in range(1, 10):
        u = draw(shape, seed)
        u = u / geometry.norm(u)
        assert (g * u).sum().item() >= -geometry.dual(g).item() - 1e-9


@cases
def test_kappa_bounds_the_unit_ball_and_is_reached(geometry: Geometry, shape: tuple[int, ...]) -> None:
    kappa = geometry.kappa(shape)
    for seed in range(10):
        u = draw(shape, seed)
        assert (u / geometry.norm(u)).square().sum().item() <= kappa * (1 + 1e-9)
    # The oracle's own step is the longest there is, in all geometries.
    assert geometry.lmo(draw(shape)).square().sum().item() == pytest.approx(kappa)


@cases
def test_norm_is_a_norm(geometry: Geometry, shape: tuple[int, ...]) -> None:
    x, y = draw(shape, 1), draw(shape, 2)
    assert geometry.norm(-3 * x).item() == pytest.approx(3 * geometry.norm(x).item())
    assert geometry.norm(x + y).item() <= geometry.norm(x).item() + geometry.norm(y).item() + 1e-9
    zero = torch.zeros_like(x)
    assert geometry.norm(zero).item() == 0 == geometry.dual(zero).item()
    assert torch.equal(geometry.lmo(zero), zero)  # where every step is as good


@cases
def test_radius_scales_as_stated(geometry: Geometry, shape: tuple[int, ...]) -> None:
    unit = type(geometry)(**{**vars(geometry), "radius": 1.0})
    g, radius = draw(shape), geometry.radius_of(shape)
    assert geometry.norm(g).item() == pytest.approx(unit.norm(g).item() / radius)
    assert geometry.dual(g).item() == pytest.approx(unit.dual(g).item() * radius)
    assert torch.allclose(geometry.lmo(g), unit.lmo(g) * radius)
    assert geometry.kappa(shape) == pytest.approx(unit.kappa(shape) * radius**2)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3))
def test_spectral_against_numpy(m: int, n: int, rank: int) -> None:
    g = draw((m, rank), 1) @ draw((rank, n), 2)
    s = np.linalg.svd(g.numpy(), compute_uv=False)
    # Singular values that are zero come out as the root of a rounding error, see autowarm.orthogonalize.singular.
    error = 1.5e-8 * min(m, n) * s.max(initial=0.0)
    assert Spectral().norm(g).item() == pytest.approx(s.max(initial=0.0), rel=1e-12)
    assert Spectral().dual(g).item() == pytest.approx(s.sum(), rel=1e-12, abs=error)
    # A step of a rank-deficient gradient moves nothing where the gradient is zero.
    q = Spectral().lmo(g)
    assert torch.linalg.matrix_rank(q).item() == min(m, n, rank)


@pytest.mark.parametrize("name", RADIUS_RULES)
def test_radius_rules_agree_with_torch(name: str) -> None:
    try:
        torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))], adjust_lr_fn=name)
    except ValueError:
        pytest.skip("this torch does not have the rule")
    adjust = torch.optim._muon._adjust_lr
    for shape in [(4, 9), (9, 4), (5, 5)]:
        assert Spectral(radius=name).radius_of(shape) == pytest.approx(adjust(1.0, name, torch.Size(shape)))


def llama_shapes(fused: bool, width: int = 768, ff: int = 2048, vocab: int = 50304) -> list[tuple[int, int]]:
    attention = [(3 * width, width)] if fused else [(width, width)] * 3
    layer = [*attention, (width, width), (ff, width), (ff, width), (width, ff)]
    return [(vocab, width), *(layer * 12)]


def test_max_over_layers_composes() -> None:
    hybrid = MaxOverLayers([Spectral(), Sign(radius=0.5), "frobenius"])
    xs = [draw((3, 4)), draw((5,), 1), draw((2, 2), 2)]
    each = [Spectral(), Sign(radius=0.5), Frobenius()]
    assert hybrid.norm(xs).item() == pytest.approx(max(g.norm(x).item() for g, x in zip(each, xs, strict=True)))
    assert hybrid.dual(xs).item() == pytest.approx(sum(g.dual(x).item() for g, x in zip(each, xs, strict=True)))
    steps = [g.lmo(x) for g, x in zip(each, xs, strict=True)]
    assert hybrid.norm(steps).item() == pytest.approx(1.0)
    inner = sum((x * q).sum().item() for x, q in zip(xs, steps, strict=True))
    assert inner == pytest.approx(-hybrid.dual(xs).item())
    assert hybrid.kappa([x.shape for x in xs]) == 3 + 0.25 * 5 + 1


@each("dtype", [torch.float16, torch.bfloat16])
@each("name", ["spectral", "sign", "frobenius", "rows", "columns"])
def test_half_precision_measures_and_steps_as_single_precision_does(name: str, dtype: torch.dtype) -> None:
    geometry = resolve(name)
    g = (draw((40, 50)) * 5000).to(dtype)  # its Frobenius norm is 220,000, more than half precision has
    for measured in (geometry.norm, geometry.dual):
        assert measured(g).item() == pytest.approx(measured(g.double()).item(), rel=1e-5)
    exact = geometry.lmo(g.double())
    for step in (geometry.lmo(g), *geometry.lmo_each([g])):
        assert step.dtype == dtype
        assert (step.double() - exact).norm() < 0.02 * exact.norm()


@each("geometry", GEOMETRIES)
def test_many_at_once_equals_one_by_one(geometry: Geometry) -> None:
    gs = [draw(shape, i) for i, shape in enumerate(SHAPES + SHAPES)]
    before = [g.clone() for g in gs]
    for many, g in zip(geometry.lmo_each(gs), gs, strict=True):
        torch.testing.assert_close(many, geometry.lmo(g))
    assert all(map(torch.equal, gs, before))
    assert geometry.lmo_each([]) == []


@each(
    ("geometry", "shapes", "kappa"),
    [
        ("spectral", llama_shapes(fused=True), 46848),
        ("sign", llama_shapes(fused=True), 123568128),
        ("frobenius", llama_shapes(fused=True), 61),
        ("spectral", llama_shapes(fused=False), 65280),
        ("sign", llama_shapes(fused=False), 123568128),
        ("frobenius", llama_shapes(fused=False), 85),
        *(("rows", [shape], kappa) for shape, kappa in (((5, 3), 5), ((5, 3, 2, 2), 5), ((7,), 7), ((0, 3), 0))),
        *(("columns", [shape], kappa) for shape, kappa in (((5, 3), 3), ((5, 3, 2, 2), 12), ((7,), 1))),
        (Spectral(stacked=True), [(3, 4, 5)], 12),
    ],
)
def test_kappa_is_the_number_that_the_paper_counts(geometry: str | Geometry, shapes: list, kappa: float) -> None:
    assert MaxOverLayers(geometry).kappa(shapes) == kappa


def test_a_tied_weight_counts_once() -> None:
    embedding = nn.Embedding(10, 4)
    assert total_kappa([*embedding.parameters(), *embedding.parameters(), nn.Parameter(torch.ones(4))], "sign") == 40


@each(
    ("do", "error", "message"),
    [
        *((lambda r=r: Sign(radius=r), ValueError, "radius must be a positive finite number")
          for r in (0.0, math.inf, None)),
        (lambda: Spectral(radius="moonshot"), ValueError, "unknown radius rule 'moonshot'.*match_rms_adamw"),
        (lambda: resolve("spektral"), ValueError, "unknown geometry 'spektral': use one of .*'spectral'"),
        (lambda: resolve(3), TypeError, "got int"),
        (lambda: Spectral(blocks=3).lmo(torch.ones(7, 2)), ValueError, r"7 rows .* do not divide into 3 equal blocks"),
        (lambda: type("Twice", (Frobenius,), {"lmo": lambda self, g: -2 * g / g.norm()}), TypeError,
         "Twice defines lmo, which optimizers do not ask.*define _lmo"),
        (lambda: MaxOverLayers([Spectral(), Sign()]).norm([draw((3, 4))]), ValueError,
         "2 geometries were given for 1 tensors"),
        (lambda: total_kappa([nn.Parameter(torch.zeros(3))], "sign"), ValueError, "at least one trained tensor"),
    ],
)  # fmt: skip
def test_what_is_no_geometry_is_refused(do: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        do()


# Geometries of one's own step like ours, as fast as what they declare of themselves allows.

OF_ALL_KINDS = [(4, 3), (5, 3), (4, 6), (7,), (4, 3, 2, 2), (2, 3), (), (0, 3)]
OWN = [(Steps, Sign), (Lines, Rows), (Stripes, Columns), (Whole, Frobenius)]  # and what of ours each equals


def given() -> list[nn.Parameter]:
    params = [nn.Parameter(x) for x in drawn(OF_ALL_KINDS, 0, torch.float64)]
    for p, g in zip(params, drawn(OF_ALL_KINDS, 1, torch.float64), strict=True):
        p.grad = g
    return params


def moved(geometry: Geometry, lr: Any, **options: Any) -> list[nn.Parameter]:
    params = given()
    LMO(params, lr, geometry=geometry, **options).step()
    return params


@each(("own", "ours"), OWN)
def test_one_tensor_and_many_are_measured_and_stepped_alike(own: type, ours: type) -> None:
    for p in given():
        if p.numel():
            for measure in ("norm", "dual"):
                torch.testing.assert_close(getattr(own(0.5), measure)(p), getattr(ours(0.5), measure)(p))
    torch.testing.assert_close(own().lmo_each(given()), [ours().lmo(p) for p in given()])


@pytest.mark.parametrize("base", [Sign, Frobenius, Rows, Columns, Spectral])
def test_another_oracle_inherits_no_fact_of_the_old_one(base: type) -> None:
    class Halved(base):
        def _lmo(self, g: torch.Tensor) -> torch.Tensor:
            return super()._lmo(g) / 2

    assert Halved().locality == "tensor"
    assert Halved().polar is None
    assert not Halved().sums
    torch.testing.assert_close(moved(Halved(), 1.0, momentum=0.0), moved(base(), 0.5, momentum=0.0))
