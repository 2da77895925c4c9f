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
precision allows one iteration per segment. Single precision allows four, but only one if its products are computed in
less (`product_precision`).

All products on the small side are symmetric, and a kernel could do half of their arithmetic. One of our own in Triton
was slower than cuBLAS on an H200 for sides below 4096, so there is none.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..devices import traced_as_constant
from .coefficients import Quintic
from .precision import least_norm

_LONGEST_SEGMENT = {torch.float64: 8, torch.float32: 4}


@traced_as_constant
def plan(steps: int, aspect: float, precision: torch.dtype) -> tuple[int, ...]:
    """Return the lengths of the segments that take the fewest operations for ``steps`` iterations on an m × αm matrix.

    Products have this precision, see `product_precision`.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize.iterate import plan
        >>> plan(4, 1.0, torch.float32), plan(4, 2.7, torch.float32), plan(4, 2.7, torch.bfloat16)
        ((1, 1, 1, 1), (4,), (1, 1, 1, 1))
    """
    longest = _LONGEST_SEGMENT.get(precision, 1)
    whole, rest = divmod(steps, longest)
    segmented = (longest,) * whole + ((rest,) if rest else ())
    return min(((1,) * steps, segmented), key=lambda segments: sum(4 * aspect + 8 * length - 6 for length in segments))


def frobenius_scaled_(X: Tensor) -> Tensor:
    """Divide each matrix of the stack by its Frobenius norm, in place. A zero matrix stays zero."""
    coarse = X.dtype == torch.float16
    norm = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True, dtype=torch.float32 if coarse else None)
    X.div_(norm.clamp_(min=least_norm(X.dtype)))
    # float16 ends at 65504. Larger entries arrive as infinity, and infinity over an infinite norm becomes 0.
    return X.nan_to_num_(0.0) if coarse else X


def iterate(X: Tensor, schedule: Sequence[Quintic], segments: Sequence[int], *, tighten: bool) -> Tensor:
    """Apply a schedule to the singular values of each matrix in a stack (count, m, n), and overwrite the stack.

    The matrices' Frobenius norms are at most 1, and `plan` gives the segments. To ``tighten``, first divide each matrix
    by a sharper upper bound of its largest singular value σ₁. The iteration computes R² anyway, so the bound ‖R²‖_F^¼ =
    (Σσ⁸)^⅛ costs only a norm. For rank r it is at most r^⅛σ₁, while the Frobenius norm may be r^½σ₁.
    """
    quintics = iter(schedule)
    for length in segments:
        R = _gram(X)
        Q: Tensor | None = None  # the product of the segment's factors so far
        for left in range(length - 1, -1, -1):
            a, b, c = next(quintics)
            scale = None
            if tighten:
                tighten = False
                R, W, scale = _tight(R, b, c, keep=left > 0)
            else:
                W = torch.baddbmm(R, R, R, beta=b, alpha=c)  # bR + cR²
            if left:
                W.diagonal(dim1=-2, dim2=-1).add_(a)  # W is now Z; it enters Q and the next Gram matrix
                R = torch.bmm(torch.bmm(R, W), W)
                Q = W if Q is None else torch.bmm(Q, W)
                if scale is not None:
                    Q.mul_(scale)
                continue
            del R
            if Q is not None:
                # Add aQ here, because adding a to W's diagonal would round the diagonal, which shows in the result.
                Q = torch.baddbmm(Q, Q, W, beta=a)
            else:
                if scale is not None:
                    X.mul_(scale)
                X = _times_(X, W, a)
            del W
        if Q is not None:
            X = _times_(X, Q, 0.0)
    return X


def _gram(X: Tensor) -> Tensor:
    """Return R = XXᵀ, or XᵀX if X is tall."""
    return torch.bmm(X, X.mT) if X.shape[-2] <= X.shape[-1] else torch.bmm(X.mT, X)


def _times_(X: Tensor, F: Tensor, a: float) -> Tensor:
    """Return (aI + F)X, or X(aI + F) if X is tall. The result is contiguous, unlike a transposed product.

    The product cannot overwrite X's memory. X takes over the product's memory and frees its own, so the stack exists
    twice only during the product, even if others hold references to X. A compiler frees the memory by itself.
    """
    left, right = (F, X) if X.shape[-2] <= X.shape[-1] else (X, F)
    product = torch.baddbmm(X, left, right, beta=a) if a else torch.bmm(left, right)
    if torch.compiler.is_compiling():
        return product
    X.set_(product)  # type: ignore[call-overload]
    return X


def _tight(R: Tensor, b: float, c: float, *, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Scale R to a largest eigenvalue of at most 1; return R, bR + cR², and the factor that scales X accordingly."""
    W = _gram(R)  # R², because R is symmetric
    # The same rounded factor multiplies R once and R² twice. Elements are rounded, but the polynomial keeps its shape.
    norm = torch.linalg.vector_norm(W, dim=(-2, -1), keepdim=True)
    factor = norm.clamp_(min=least_norm(W.dtype)).rsqrt_()
    # bR and cR² nearly cancel where R is large. Adding them before rounding spares the small eigenvalues.
    W = torch.addcmul(R, W, factor, value=c / b, out=W).mul_(factor).mul_(b)
    if keep:
        R.mul_(factor)
    return R, W, factor.sqrt()
