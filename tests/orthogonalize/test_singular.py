"""Nuclear and spectral norms against the singular value decomposition that they avoid."""

import torch

from autowarm.orthogonalize import nuclear_norm, singular, spectral_norm
from tests.cases import each

SHAPES = [(5, 5), (3, 17), (40, 6), (4, 9, 7), (1, 8), (8, 1), (2, 3, 6, 4)]
EXTREMES = [(torch.float64, 1e160, 1e-9), (torch.float64, 1e-170, 1e-9), (torch.float32, 1e30, 1e-6)]


@each(
    ("shape", "dtype", "scale", "tolerance"),
    [
        *((shape, torch.float64, 1e-3, 1e-9) for shape in SHAPES),
        *((shape, *extreme) for shape in ((6, 7), (1, 7)) for extreme in EXTREMES),  # squares overflow or vanish
        *(((30, 20), dtype, 1.0, 2 * torch.finfo(dtype).eps) for dtype in (torch.float32, torch.bfloat16)),
    ],
)
def test_they_agree_with_the_svd_to_the_inputs_own_precision(shape, dtype, scale, tolerance):
    G = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype) * scale
    values = torch.linalg.svdvals(G.double())
    for measured, exact in ((nuclear_norm(G), values.sum(-1)), (spectral_norm(G), values.amax(-1))):
        assert measured.dtype == dtype
        torch.testing.assert_close(measured.double(), exact, rtol=tolerance, atol=0)


def test_six_digits_where_squaring_hurts_most():
    """Singular values over ten decades, half of them zero."""
    random = torch.Generator().manual_seed(1)
    U, V = (torch.linalg.qr(torch.randn(96, 64, generator=random, dtype=torch.float64))[0] for _ in range(2))
    S = torch.cat([torch.logspace(0, -10, 32, dtype=torch.float64), torch.zeros(32, dtype=torch.float64)])
    G = (U * S) @ V.T
    torch.testing.assert_close(nuclear_norm(G), S.sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(spectral_norm(G), S.amax(), rtol=1e-6, atol=0)


def test_tall_matrices_are_taken_in_pieces(monkeypatch):
    G = torch.randn(100, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    whole = singular._gram(G)
    monkeypatch.setattr(singular, "_ROWS", 33)
    torch.testing.assert_close(singular._gram(G), whole, rtol=1e-12, atol=1e-12)


def test_zero_and_non_finite_matrices():
    stack = torch.zeros(3, 4, 4, dtype=torch.float64)
    stack[1, 0, 0] = torch.nan
    stack[2] = torch.eye(4)
    torch.testing.assert_close(nuclear_norm(stack), torch.tensor([0.0, torch.nan, 4.0]).double(), equal_nan=True)
    torch.testing.assert_close(spectral_norm(stack), torch.tensor([0.0, torch.nan, 1.0]).double(), equal_nan=True)


def test_a_gradient_is_that_of_the_svd():
    G = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    (gradient,) = torch.autograd.grad(nuclear_norm(G), G)
    U, _, Vh = torch.linalg.svd(G.detach(), full_matrices=False)
    torch.testing.assert_close(gradient, U @ Vh)
