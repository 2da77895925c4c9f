"""Quintic iterations on stacks of matrices, in the order of products that takes the fewest operations.

One iteration is X ← aX + (bR + cR²)X with the Gram matrix R = XXᵀ of the short side. On an m × n matrix with n = αm it
costs 4α + 2, in units of m³ operations. Iterations can also be composed on the small side. With Z = aI + bR + cR², the
next Gram matrix is RZ², so L iterations use the large matrix only twice: to form the first R, and to apply the product
Q of the L factors Z. They cost 4α + 8L − 6. L iterations composed in this way are a *segment*, and a plan is a list of
segment lengths. `plan` picks the cheaper of (1, 1, …) and the longest segments that rounding allows.

Rounding limits a segment's length. Rounding R moves its eigenvalues, the squared singular values, by up to the
precision u times the largest, and each factor Z enlarges the error by a². A new segment computes R from X again,
without that error. The second quintic has its inner peak where an eigenvalue is 1/120 of the largest. In bfloat16, that
eigenvalue may come out wrong by nearly half, so that the next quintic diverges, and even in float16 by 6 %: half
precision allows one iteration per segment, and two in the last, where all singular values are near 1 or small. Single
precision allows four, but only as much as half precision if its products are computed in less (`product_precision`).

Tried, and not taken: two quintics and a polynomial of degree 9 (2 to 16 % less time on a CPU, but small singular values
stay small), and a kernel for the symmetric products (slower than cuBLAS on an H200 for sides below 4096).
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch.devices import traced_as_constant
from .coefficients import Method, Quintic, schedule_of
from .precision import HALVES, least_norm, product_precision

# Up to this short side, an iteration spends its time launching products, not computing them.
NARROW = 64

# Up to this short side, half precision is too coarse for Polar Express. Its first quintics are steep at the ends of
# their intervals, where an error of 1 % grows by powers of five from one iteration to the next. In larger matrices the
# elements' errors average out. Among Gaussian 2 × 2 matrices in bfloat16, two in a thousand ended with singular values
# of up to 8000.
_FEW_ROWS = 16

_LONGEST_SEGMENT = {torch.float64: 8, torch.float32: 4}


def plan(steps: int, aspect: float, precision: torch.dtype) -> tuple[int, ...]:
    """Return the lengths of the segments that take the fewest operations for ``steps`` iterations on an m × αm matrix.

    Products have this precision, see `product_precision`.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize.iterate import plan
        >>> plan(4, 1.0, torch.float32), plan(4, 2.7, torch.float32), plan(4, 2.7, torch.bfloat16)
        ((1, 1, 1, 1), (4,), (1, 1, 2))
    """
    if precision in HALVES:
        segmented = (1,) * (steps - 2) + (2,) if steps >= 4 else (1,) * steps
    else:
        longest = _LONGEST_SEGMENT[precision]
        whole, rest = divmod(steps, longest)
        segmented = (longest,) * whole + ((rest,) if rest else ())
    return min(((1,) * steps, segmented), key=lambda segments: sum(4 * aspect + 8 * length - 6 for length in segments))


class _How(NamedTuple):
    schedule: tuple[Quintic, ...]
    segments: tuple[int, ...]
    tighten: bool  # whether to divide by a sharper bound than the Frobenius norm first
    wide: torch.dtype  # in which to divide by the norm: the stack's own, or a finer one
    dtype: torch.dtype  # of the iterations
    least: float  # the smallest divisor
    least_after: float  # the same, of the iterations


@traced_as_constant
def _how(size: tuple[int, int], given: torch.dtype, device: torch.device, polar: tuple[Any, ...]) -> _How:
    """How to iterate matrices of this size in a stack of this dtype; ``polar`` has method, steps and their dtype."""
    backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    return _chosen(size, given, device, *polar, backend.matmul.fp32_precision)


@lru_cache(maxsize=256)
def _chosen(
    size: tuple[int, int],
    given: torch.dtype,
    device: torch.device,
    method: Method,
    steps: int | None,
    dtype: torch.dtype,
    setting: str,  # the user's, by which `product_precision` decides; it may change
) -> _How:
    schedule, short = schedule_of(method, steps), min(size)
    precision = product_precision(dtype, device)
    if method == "polar-express" and short <= _FEW_ROWS and precision in HALVES:
        precision = product_precision(torch.float32, device)
        given = dtype = torch.float32 if precision == torch.float32 else torch.float64
    if method == "newton-schulz" or _FEW_ROWS < short <= NARROW:
        # Apply the iteration as published, up to rounding. Narrow matrices may lie in a stack with longer ones, on
        # which their iterations must not depend, and for them fewer products are faster than smaller ones. Those of few
        # rows are iterated in single precision, where the order is no matter (4e-4).
        segments: tuple[int, ...] = (1,) * len(schedule)
    else:
        segments = plan(len(schedule), max(size) / short, precision)
    return _How(schedule, segments, method == "polar-express", given, dtype, least_norm(given), least_norm(dtype))


def held_in(dtype: torch.dtype, short: int) -> torch.dtype:
    """The dtype of a stack of matrices with this short side for iterations in a dtype.

    float16 holds neither large gradients nor small ones, so matrices are divided by their norms before they enter it.
    Those of few rows are iterated in single precision in any case.
    """
    return torch.float32 if dtype == torch.float16 or (dtype in HALVES and short <= _FEW_ROWS) else dtype


def orthogonalize_(
    X: Tensor, method: Method = "polar-express", steps: int | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Replace each matrix in a stack (count, m, n) by its polar factor UVᵀ, iteratively; see `orthogonalize`.

    Optimizers use this, because they fill a stack themselves, of the dtype `held_in`. A product cannot be computed in
    place, so X takes over the result's memory and its own is freed. Views of X made before the call do not see the
    result. The caller must have turned autocast off.

    A matrix is first divided by its Frobenius norm. Polar Express then divides by a sharper bound of its largest
    singular value σ₁. The first iteration computes R² anyway, so the bound ‖R²‖_F^¼ = (Σσ⁸)^⅛ costs only a norm. For
    rank r it is at most r^⅛σ₁, while the Frobenius norm may be r^½σ₁.

    Returns:
        The result, which is X itself except under `torch.compile`.
    """
    if not X.numel():
        return X
    how = _how((X.shape[-2], X.shape[-1]), X.dtype, X.device, (method, steps, dtype or X.dtype))
    given, compiling = X, torch.compiler.is_compiling()
    X = X.to(how.wide)
    norm = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True)
    X = X.div_(norm.clamp_(min=how.least)).to(how.dtype)
    tall, tighten = X.shape[-2] > X.shape[-1], how.tighten
    quintics = iter(how.schedule)
    for length in how.segments:
        R = torch.bmm(X.mT, X) if tall else torch.bmm(X, X.mT)
        Q: Tensor | None = None  # the product of the segment's factors so far
        for left in range(length - 1, -1, -1):
            a, b, c = next(quintics)
            if tighten:
                # R ← R·f, whose largest eigenvalue is at most 1, and X ← X·√f. The same rounded factor multiplies R
                # once and R² twice: elements are rounded, but the polynomial keeps its shape.
                W = torch.bmm(R, R)
                f = torch.linalg.vector_norm(W, dim=(-2, -1), keepdim=True).clamp_(min=how.least_after).rsqrt_()
                # bR and cR² nearly cancel where R is large. Adding them before rounding spares the small eigenvalues.
                W = torch.addcmul(R, W, f, value=c / b, out=W).mul_(f).mul_(b)
                if left:
                    R.mul_(f)
            else:
                W = torch.baddbmm(R, R, R, beta=b, alpha=c)  # bR + cR²
            if left:
                W.diagonal(dim1=-2, dim2=-1).add_(a)  # W is now Z; it enters Q and the next Gram matrix
                R = torch.bmm(torch.bmm(R, W), W)
                Q = W if Q is None else torch.bmm(Q, W)
                if tighten:
                    Q.mul_(f.sqrt_())
                tighten = False
                continue
            del R
            if Q is not None:
                # Add aQ here, because adding a to W's diagonal would round the diagonal, which shows in the result.
                W, a = torch.baddbmm(Q, Q, W, beta=a), 0.0
                Q = None  # frees it before the product below
            elif tighten:
                X.mul_(f.sqrt_())
            tighten = False
            # (aI + W)X, or X(aI + W) if X is tall: contiguous, unlike a transposed product.
            one, other = (X, W) if tall else (W, X)
            product = torch.baddbmm(X, one, other, beta=a) if a else torch.bmm(one, other)
            del W, one, other
            if compiling:
                X = product
            else:
                # X takes over the product's memory and frees its own, so the stack exists twice only during the
                # product, even if others hold references to X. A compiler frees memory by itself.
                X.set_(product)  # type: ignore[call-overload]
    return X if X.dtype == given.dtype else given.copy_(X)
