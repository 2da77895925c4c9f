"""The polar factor, exact and iterated."""

import pytest
import torch

from autowarm.orthogonalize import orthogonalize


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 8), (4, 9), (9, 4), (1, 5), (5, 1), (2, 3, 6, 4)])
def test_svd_is_the_polar_factor(shape: tuple[int, ...]) -> None:
    G = draw(*shape).double()
    Q = orthogonalize(G, method="svd")
    small = min(shape[-2:])
    gram = Q @ Q.mT if shape[-2] <= shape[-1] else Q.mT @ Q
    torch.testing.assert_close(gram, torch.eye(small, dtype=G.dtype).expand(gram.shape))
    # Q is nearest to G among orthogonal matrices exactly when QᵀG is symmetric and positive.
    H = Q.mT @ G if shape[-2] >= shape[-1] else G @ Q.mT
    torch.testing.assert_close(H, H.mT)
    assert torch.linalg.eigvalsh(H).min() > 0


@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (96, 32), (3, 48, 128)])
def test_newton_schulz_brings_singular_values_into_its_band(shape: tuple[int, ...]) -> None:
    G = draw(*shape)
    U, S, Vh = torch.linalg.svd(G, full_matrices=False)
    share = S / S.square().sum(-1, keepdim=True).sqrt()
    out = orthogonalize(G, method="newton-schulz", dtype=torch.float32)
    # Diagonal in G's own singular basis: the iteration is a polynomial of the singular values.
    in_basis = U.mT @ out @ Vh.mT
    values = in_basis.diagonal(dim1=-2, dim2=-1)
    assert (in_basis - torch.diag_embed(values)).abs().max() < 1e-3
    assert ((values > 0.65) & (values < 1.25))[share > 0.002].all()


def test_newton_schulz_in_bfloat16_stays_near() -> None:
    G = draw(64, 128)
    exact, fast = (orthogonalize(G, method="newton-schulz", dtype=d) for d in (torch.float64, None))
    assert fast.dtype == G.dtype
    assert (exact - fast).norm() / exact.norm() < 0.02


@pytest.mark.parametrize("method", ["svd", "newton-schulz"])
def test_batched_equals_looped_and_tall_equals_wide(method: str) -> None:
    stack = draw(5, 16, 24)
    each = [orthogonalize(G, method=method) for G in stack]
    torch.testing.assert_close(orthogonalize(stack, method=method), torch.stack(each), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(orthogonalize(stack.mT, method=method).mT, torch.stack(each), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("method", ["svd", "newton-schulz"])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3, 0, 2)])
def test_empty(method: str, shape: tuple[int, ...]) -> None:
    assert orthogonalize(torch.zeros(shape), method=method).shape == shape


@pytest.mark.parametrize("method", ["svd", "newton-schulz"])
def test_zero_stays_zero_and_scale_does_not_matter(method: str) -> None:
    assert not orthogonalize(torch.zeros(3, 5), method=method).any()
    G = draw(6, 6)
    for scale in (1e-3, 1e4):
        torch.testing.assert_close(
            orthogonalize(G * scale, method=method), orthogonalize(G, method=method), rtol=2e-2, atol=2e-2
        )


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"needs a matrix or a stack of them, got shape \(3,\)"):
        orthogonalize(torch.ones(3))
    with pytest.raises(ValueError, match="unknown method 'qr'"):
        orthogonalize(torch.ones(3, 3), method="qr")
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        orthogonalize(torch.ones(3, 3), steps=0)


@pytest.mark.parametrize("method", ["newton-schulz", "polar-express"])
def test_a_tensor_that_requires_a_gradient_is_orthogonalized_without_one(method: str) -> None:
    G = torch.nn.Parameter(torch.eye(3) + 0.1)
    found = orthogonalize(G, method=method)
    assert not found.requires_grad
    assert torch.equal(found, orthogonalize(G.detach(), method=method))
