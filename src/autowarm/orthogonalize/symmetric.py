"""Matrix products with symmetric results: half of the entries are computed, the others are mirrored.

All products on the small side of `iterate` are symmetric: a Gram matrix XXᵀ, and products of polynomials in it, which
commute. On a GPU a Triton kernel then does half of the arithmetic; elsewhere `torch.bmm` does all of it.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from ..devices import traced_as_constant

# The kernel multiplies matrices of at least this side. Smaller ones have too few tiles to fill a GPU, so cuBLAS is
# faster. `make gpu` measures both from 768 on.
LEAST_SIDE = 1024


def symmetric_product(
    left: Tensor, right: Tensor, plus: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    """Return αAB, or αAB + βD, for a result that is known to be symmetric, as is D.

    A is a stack (count, n, k) with any strides, and B (count, k, n) is Aᵀ, or a symmetric matrix that commutes with A.
    The kernel's result equals its transpose exactly; otherwise it does up to rounding.
    """
    if by_kernel(left):
        from .symmetric_kernel import multiply

        return multiply(left, right, plus, alpha, beta)
    if plus is None:
        product = torch.bmm(left, right)
        return product if alpha == 1.0 else product.mul_(alpha)
    return torch.baddbmm(plus, left, right, beta=beta, alpha=alpha)


def by_kernel(left: Tensor) -> bool:
    """Whether to use the kernel: for products at least `LEAST_SIDE` wide, in half precision, on a GPU that can run it.

    In single precision cuBLAS rounds as `torch.set_float32_matmul_precision` says, and the kernel would not.
    """
    return (
        left.is_cuda
        and left.shape[-2] >= LEAST_SIDE
        and left.dtype in (torch.bfloat16, torch.float16)
        and _runs_triton(left.device.index)
    )


@cache
@traced_as_constant
def _runs_triton(index: int | None) -> bool:
    """Whether Triton is installed and the device is an NVIDIA GPU of compute capability 8.0 or more."""
    if torch.version.cuda is None or not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(index) >= (8, 0)
