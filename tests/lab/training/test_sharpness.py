import math

import pytest
import torch
from torch import Tensor, nn

from autowarm.lab.training.sharpness import sharpness

SPECTRA = {
    "a large negative one": [3.0, 1.0, 0.0, -50.0],
    "all equal": [2.0] * 5,
    "all negative": [-1.0, -2.0, -3.0],
    "of many sizes": [1e6, 1.0, 1e-6],
    "close together": list(range(60)),
    "a far larger negative one": [-1e4, 1.5, *torch.rand(400, generator=torch.manual_seed(0)).tolist()],
    "a restarted basis": [100.0, 90.0, 60.0, *torch.linspace(-20, 20, 997).tolist()],
}


@pytest.mark.parametrize("name", SPECTRA)
def test_it_is_the_largest_eigenvalue_and_not_the_largest_in_size(name: str) -> None:
    curvatures = torch.tensor(SPECTRA[name], dtype=torch.float64)
    x = nn.Parameter(torch.ones_like(curvatures))
    actual = sharpness(lambda: (curvatures * x**2).sum() / 2, [x], tolerance=1e-6)
    assert actual == pytest.approx(max(SPECTRA[name]), rel=1e-5)


def test_attention_has_a_second_derivative() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 8)
    w = nn.Parameter(torch.eye(8))

    def loss(v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x @ v, x, x, is_causal=True).square().mean()

    actual = sharpness(lambda: loss(w), [w], tolerance=1e-4)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        H = torch.autograd.functional.hessian(loss, w.detach())
    assert actual == pytest.approx(torch.linalg.eigvalsh(H.reshape(64, 64))[-1].item(), rel=1e-3)


def test_a_loss_that_is_linear_in_some_parameters_and_one_that_is_not_curved() -> None:
    x, y = (nn.Parameter(torch.ones((), dtype=torch.float64)) for _ in range(2))
    assert sharpness(lambda: 3 * x**2 + y, [x, y]) == pytest.approx(6)
    assert sharpness(lambda: 2 * x + y, [x, y]) == 0
    with torch.device("meta"):  # the default device may be another
        assert sharpness(lambda: (3 * x**2).sum(), [x]) == pytest.approx(6)


def test_too_few_products_give_no_number() -> None:
    curvatures = torch.linspace(0, 1, 2000, dtype=torch.float64)
    x = nn.Parameter(torch.ones_like(curvatures))
    assert math.isnan(sharpness(lambda: (curvatures * x**2).sum(), [x], iterations=1, tolerance=1e-12))
