"""Symmetric products: the Triton kernel against plain products, on a GPU or, where there is none, interpreted.

Triton decides at its import whether to interpret, so the interpreter lives in a process of its own.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from autowarm.orthogonalize import orthogonalize, orthogonalize_reference, symmetric
from autowarm.orthogonalize.symmetric import LEAST_SIDE, by_kernel, symmetric_product

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="PyTorch brings Triton for Linux only")
GPU = torch.cuda.is_available()
# In single precision a tile is larger than some GPUs' shared memory; the interpreter has no such bound.
DTYPES = [torch.bfloat16, torch.float16] if GPU else [torch.float32, torch.bfloat16, torch.float16]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = DTYPES[0]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def send_all_to_the_kernel() -> None:
    torch.set_num_threads(1)
    symmetric.by_kernel = lambda left: True


def on_the_gpu(function: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetric, "by_kernel", lambda left: True)
        return function(*(x.cuda() if isinstance(x, Tensor) else x for x in args), **options).cpu()


@pytest.fixture(scope="module", params=["cuda" if GPU else "interpreted"])
def by_the_kernel(request: pytest.FixtureRequest) -> Iterator[Callable[..., Tensor]]:
    """Calls a function of tensors where all symmetric products go to the kernel."""
    if request.param == "cuda":
        yield on_the_gpu
        return
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            process.submit(send_all_to_the_kernel).result(timeout=300)
        yield lambda function, *args, **options: process.submit(function, *args, **options).result(timeout=300)


def check(out: Tensor, exact: Tensor) -> None:
    """Equal to the exact result up to one rounding of the products and one of the sum, and symmetric to the bit."""
    assert torch.equal(out, out.mT)
    assert out.is_contiguous()
    rounding = 4 * torch.finfo(out.dtype).eps
    torch.testing.assert_close(out.double(), exact, rtol=rounding, atol=rounding * exact.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 128, 64), (3, 130, 70), (1, 400, 9)])
def test_a_gram_matrix(by_the_kernel: Callable, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    left = draw(*shape, dtype=dtype)
    check(by_the_kernel(symmetric_product, left, left.mT), left.double() @ left.double().mT)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [128, 200])
def test_a_product_of_matrices_that_commute_with_a_summand(by_the_kernel: Callable, n: int, dtype: torch.dtype) -> None:
    X = draw(2, n, n, dtype=torch.float32) / n**0.5
    R = (X @ X.mT).to(dtype)
    D = draw(2, n, n, seed=1, dtype=torch.float32)
    D = (D + D.mT).to(dtype)
    exact = -0.5 * R.double() @ R.double() + 3 * D.double()
    check(by_the_kernel(symmetric_product, R, R, D, alpha=-0.5, beta=3.0), exact)
    # Half precision rounds R² away from what commutes with R to the bit; the lower triangle stands for both.
    square = by_the_kernel(symmetric_product, R, R)
    lower = (R.double() @ square.double()).tril()
    check(by_the_kernel(symmetric_product, R, square), lower + lower.tril(-1).mT)


def test_strides_of_every_kind(by_the_kernel: Callable) -> None:
    tall = draw(2, 50, 130).mT
    check(by_the_kernel(symmetric_product, tall, tall.mT), tall.double() @ tall.double().mT)
    left = draw(4, 300, 200)[::2, ::2, 50:]  # neither rows nor columns lie side by side
    D = torch.eye(150, dtype=left.dtype).expand(2, 150, 150)  # the same memory for each matrix
    exact = left.double() @ left.double().mT + 0.25 * D.double()
    check(by_the_kernel(symmetric_product, left, left.mT, D, beta=0.25), exact)


@pytest.mark.parametrize("shape", [(2, 70, 130), (1, 130, 80)])
@pytest.mark.parametrize("method", ["polar-express", "newton-schulz"])
def test_the_iteration_by_the_kernel_is_the_iteration(
    by_the_kernel: Callable, shape: tuple[int, int, int], method: str
) -> None:
    G = draw(*shape, dtype=torch.float32)
    exact = torch.stack([orthogonalize_reference(g.double(), method=method) for g in G])
    for dtype in DTYPES:
        out = by_the_kernel(orthogonalize, G, method=method, dtype=dtype)
        assert (out - exact).norm() / exact.norm() < (1e-4 if dtype == torch.float32 else 0.1)


def compiled(left: Tensor, D: Tensor) -> Tensor:
    def pair(left: Tensor, D: Tensor) -> Tensor:
        return symmetric.symmetric_product(left, left.mT, D, beta=2.0) + symmetric._runs_triton(0)

    return torch.compile(pair, backend="eager", fullgraph=True)(left, D)


def test_a_compiled_graph_holds_the_kernel_whole(by_the_kernel: Callable) -> None:
    left = draw(1, 70, 30)
    D = torch.eye(70, dtype=left.dtype)[None]
    out = by_the_kernel(compiled, left, D) - float(GPU)  # `_runs_triton` is asked at compile time
    check(out, left.double() @ left.double().mT + 2 * D.double())


def test_the_plain_fallback() -> None:
    left, D = draw(2, 5, 7, dtype=torch.float32), torch.eye(5).expand(2, 5, 5)
    assert not by_kernel(left)
    torch.testing.assert_close(symmetric_product(left, left.mT, alpha=3.0), 3 * left @ left.mT)
    torch.testing.assert_close(symmetric_product(left, left.mT, D, alpha=3.0, beta=2.0), 3 * left @ left.mT + 2 * D)


def test_the_kernel_serves_large_matrices_in_half_precision_on_a_gpu_with_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serves(n: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> bool:
        with FakeTensorMode():
            return by_kernel(torch.empty(2, n, 64, dtype=dtype, device=device))

    monkeypatch.setattr(symmetric, "_runs_triton", lambda index: True)
    assert serves(LEAST_SIDE)
    assert serves(LEAST_SIDE, torch.float16)
    assert not serves(LEAST_SIDE - 1)
    assert not serves(LEAST_SIDE, torch.float32)
    assert not serves(LEAST_SIDE, device="cpu")
    monkeypatch.setattr(symmetric, "_runs_triton", lambda index: False)
    assert not serves(LEAST_SIDE)


@pytest.mark.parametrize(
    ("missing", "serves"),
    [({}, True), ({"cuda": None}, False), ({"available": False}, False), ({"capability": (7, 5)}, False)],
    ids=["nothing", "nvidia", "gpu", "tensor cores"],
)
def test_what_the_kernel_needs(monkeypatch: pytest.MonkeyPatch, missing: dict[str, Any], serves: bool) -> None:
    has = {"cuda": "13.0", "available": True, "capability": (9, 0)} | missing
    monkeypatch.setattr(torch.version, "cuda", has["cuda"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has["available"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: has["capability"])
    assert symmetric._runs_triton.__wrapped__(0) == serves


def test_without_triton_the_kernel_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(symmetric, "find_spec", lambda name: None)
    assert not symmetric._runs_triton.__wrapped__(0)


def test_nobody_needs_triton_who_does_not_use_the_kernel() -> None:
    code = """
import sys; sys.modules["triton"] = None
import torch; from autowarm.orthogonalize import orthogonalize
print(orthogonalize(torch.eye(100))[0, 0].item() > 0.5, "autowarm.orthogonalize.symmetric_kernel" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_fake_gpu_tensors_pass_the_kernels_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "_runs_triton", lambda index: True)
    with FakeTensorMode():
        out = orthogonalize(torch.empty(2, LEAST_SIDE, 3 * LEAST_SIDE, device="cuda"), dtype=torch.bfloat16)
    assert out.shape == (2, LEAST_SIDE, 3 * LEAST_SIDE)


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90])
def test_it_compiles_for_gpus_that_are_not_here(
    capability: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To machine code, in the shared memory that every GPU from 8.0 on has."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from autowarm.orthogonalize import symmetric_kernel as kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    names = kernel._lower_tile.arg_names
    fixed = {"ADD": True, "WHOLE": True, "WIDEN": False, "ROWS": kernel._ROWS, "INNER": kernel._INNER,
             "left_inner": 1, "right_inner": 1, "plus_column": 1}  # fmt: skip
    kinds = dict.fromkeys(names, "i32") | dict.fromkeys(["left", "right", "plus", "out"], "*bf16")
    kinds |= dict.fromkeys(["alpha", "beta"], "fp32") | dict.fromkeys(fixed, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if kinds[name] in ("i32", "*bf16")}
    source = ASTSource(kernel._lower_tile, kinds, {(names.index(name),): x for name, x in fixed.items()}, aligned)
    options = {"num_warps": kernel._WARPS, "num_stages": kernel._STAGES}
    done = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert done.metadata.shared <= 99 * 1024
    assert done.asm["cubin"]
