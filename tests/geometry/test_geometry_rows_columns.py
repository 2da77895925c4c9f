"""Row and column norms: the oracle attains the dual norm, the dual is the supremum, and so is κ."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autowarm.geometry import Columns, Rows, Spectral, resolve

GEOMETRIES = [Rows(), Columns(), Rows(radius=0.3), Columns(radius="spectral_unclamped")]
shapes = st.one_of(
    st.tuples(st.integers(1, 6)),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
)


def draw(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
@settings(max_examples=40, deadline=None)
@given(shape=shapes, seed=st.integers(0, 999))
def test_the_oracle_attains_the_dual_norm_on_the_unit_ball(geometry, shape, seed):
    g = draw(shape, seed)
    step = geometry.lmo(g)
    torch.testing.assert_close(geometry.norm(step), torch.ones((), dtype=g.dtype))
    torch.testing.assert_close((g * step).sum(), -geometry.dual(g))
    # And nothing on the ball goes beyond.
    other = draw(shape, seed + 1000)
    other = other / geometry.norm(other)
    assert (g * other).sum().abs() <= geometry.dual(g) * (1 + 1e-12)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
@settings(max_examples=40, deadline=None)
@given(shape=shapes, seed=st.integers(0, 999))
def test_kappa_is_the_largest_square_on_the_unit_ball(geometry, shape, seed):
    u = draw(shape, seed)
    kappa = geometry.kappa(shape)
    torch.testing.assert_close(geometry.lmo(u).square().sum(), torch.tensor(kappa, dtype=u.dtype))
    assert (u / geometry.norm(u)).square().sum() <= kappa * (1 + 1e-12)


def test_kappa_counts_rows_and_columns():
    assert Rows().kappa((5, 3)) == 5
    assert Columns().kappa((5, 3)) == 3
    assert Rows().kappa((5, 3, 2, 2)) == 5
    assert Columns().kappa((5, 3, 2, 2)) == 12
    assert Rows().kappa((7,)) == 7
    assert Columns().kappa((7,)) == 1
    assert Rows().kappa((0, 3)) == 0


@pytest.mark.parametrize("geometry", [Rows(), Columns()], ids=repr)
def test_zero_rows_stay_and_nothing_is_nan(geometry):
    g = torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    assert geometry.lmo(g).tolist() == [[-1.0, 0.0], [0.0, 0.0]]
    assert geometry.norm(torch.zeros(0, 3)).item() == 0


def test_by_name():
    assert resolve("rows") == Rows()
    assert resolve("columns") == Columns()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_blocks_are_matrices_of_their_own(blocks, rows, columns, seed):
    g = draw((blocks * rows, columns), seed)
    fused = Spectral("match_rms_adamw", blocks=blocks)
    parts, single = g.split(rows), Spectral("match_rms_adamw")
    torch.testing.assert_close(fused.lmo(g), torch.cat([single.lmo(part) for part in parts]))
    torch.testing.assert_close(fused.dual(g), sum(single.dual(part) for part in parts))
    torch.testing.assert_close(fused.norm(g), max(single.norm(part) for part in parts))
    assert fused.kappa(g.shape) == pytest.approx(sum(single.kappa(part.shape) for part in parts))


def test_rows_that_do_not_divide():
    with pytest.raises(ValueError, match=r"7 rows .* do not divide into 3 equal blocks"):
        Spectral(blocks=3).lmo(torch.ones(7, 2))
