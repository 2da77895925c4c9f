import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, distribute_tensor

from autowarm.lab.training.sharpness import lanczos, sharpness


def symmetric(values, seed=0):
    draw = torch.manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64, generator=draw))
    return (Q * torch.tensor(values, dtype=torch.float64)) @ Q.T


def uniform(size, *first):
    """Values in [0, 1), after these."""
    values = torch.rand(size, dtype=torch.float64, generator=torch.manual_seed(0))
    values[: len(first)] = torch.tensor(first)
    return values


SPECTRA = [[3.0, 1.0, 0.0, -50.0], [2.0] * 5, [-1.0, -2.0, -3.0], [0.0, 0.0], [1e6, 1.0, 1e-6], list(range(60))]
SPREAD = torch.cat([torch.tensor([100.0, 90.0, 60.0]), torch.linspace(-20, 20, 997)]).double()


@pytest.mark.parametrize(
    ("A", "largest", "options", "error", "most"),  # a matrix or its diagonal, and most of the residual
    [
        *((symmetric(v), max(v), {"tolerance": 1e-9}, *[1e-7 * max(1.0, *map(abs, v))] * 2) for v in SPECTRA),
        # The tolerance is a share of the largest: a far larger negative one converges first, and must not end it.
        *((uniform(400, low, 1.5), 1.5, {"iterations": 300, "tolerance": 1e-3}, 1.5e-3, 1.5e-3) for low in (-10, -1e4)),
        # A restarted basis.
        *((SPREAD, 100.0, {"iterations": 60, "tolerance": 1e-8, "vectors": n}, 1e-7, 1e-6) for n in (4, 8, 12)),
    ],
)
def test_lanczos_finds_the_largest_eigenvalue_not_the_largest_in_size(A, largest, options, error, most):
    start = torch.randn(len(A), dtype=torch.float64, generator=torch.manual_seed(1))
    actual, residual = lanczos(lambda v: A @ v if A.ndim == 2 else A * v, start, **options)
    assert actual == pytest.approx(largest, abs=error)
    assert residual <= most


def test_reorthogonalisation_keeps_copies_out():
    """Without it Lanczos in float32 loses its basis long before 80 products."""
    values = torch.cat([torch.tensor([100.0]), torch.linspace(0, 1, 199)])
    products = []

    def product(v):
        products.append(v.clone())
        return values * v

    actual, _ = lanczos(product, torch.ones(200), iterations=80, tolerance=0.0, vectors=80)
    V = torch.stack(products)
    assert (V @ V.T - torch.eye(len(V))).abs().amax() < 1e-4
    assert actual == pytest.approx(100.0, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_hessian_of_a_small_network(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    x, y = torch.randn(10, 3, dtype=dtype), torch.randn(10, 2, dtype=dtype)
    names = [name for name, _ in model.named_parameters()]
    params = list(model.parameters())

    def at(flat):
        split = zip(names, flat.split([p.numel() for p in params]), params, strict=True)
        parts = {name: t.view_as(p) for name, t, p in split}
        return nn.functional.mse_loss(torch.func.functional_call(model, parts, (x,)), y)

    flat = torch.cat([p.detach().flatten() for p in params])
    expected = torch.linalg.eigvalsh(torch.func.hessian(at)(flat).double())[-1].item()
    actual = sharpness(lambda: nn.functional.mse_loss(model(x), y), params, tolerance=1e-5)
    assert actual == pytest.approx(expected, rel=1e-4)
    assert all(p.grad is None for p in params)


def test_attention_has_a_second_derivative():
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 8)
    w = nn.Parameter(torch.eye(8))

    def loss():
        return nn.functional.scaled_dot_product_attention(x @ w, x, x, is_causal=True).square().mean()

    actual = sharpness(loss, [w], tolerance=1e-4)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        H = torch.autograd.functional.hessian(
            lambda v: nn.functional.scaled_dot_product_attention(x @ v, x, x, is_causal=True).square().mean(),
            w.detach(),
        )
    assert actual == pytest.approx(torch.linalg.eigvalsh(H.reshape(64, 64))[-1].item(), rel=1e-3)


@pytest.mark.parametrize(
    ("start", "options", "message"), [(1.0, {"iterations": 0}, "iterations"), (0.0, {}, "finite and not zero")]
)
def test_bad_input(start, options, message):
    with pytest.raises(ValueError, match=message):
        lanczos(lambda v: v, torch.full((3,), start), **options)


def test_a_loss_that_is_linear_in_some_parameters():
    x, y = (nn.Parameter(torch.ones((), dtype=torch.float64)) for _ in range(2))
    assert sharpness(lambda: 3 * x**2 + y, [x, y]) == pytest.approx(6)
    assert sharpness(lambda: 2 * x + y, [x, y]) == 0
    with torch.device("meta"):  # the default device may be another
        assert sharpness(lambda: (3 * x**2).sum(), [x]) == pytest.approx(6)


def test_a_distributed_tensor_is_refused_by_name(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = nn.Parameter(distribute_tensor(torch.ones(4), DeviceMesh("cpu", [0]), [Replicate()]))
        with pytest.raises(ValueError, match="sharpness needs plain tensors, but one of shape \\(4,\\) is a DTensor"):
            sharpness(lambda: (x**2).sum(), [x])
    finally:
        dist.destroy_process_group()
