"""Quintic iterations on stacks of matrices, with as few and as small products as the shapes allow.

One iteration is X ← aX + (bR + cR²)X with the Gram matrix R = XXᵀ of the short side. For m × n with n = αm it costs
4α + 2 products of m × m matrices (in units of m³ operations). But iterations also compose on the small side: with
Z = aI + bR + cR² the next Gram matrix is RZ², so that L of them need the large matrix twice only, to form the first R
and to apply the product Q of the L factors Z: 4α + 8L − 6. Such a run of L is a *segment*; a plan lists their lengths,
and `plan` picks the cheaper of (1, 1, …) and the longest segments that rounding allows.

Rounding R moves its eigenvalues, the squares of singular values, by about the precision ε: small ones may even turn
negative, and each factor Z enlarges such an error by a². A new segment forms R afresh from X and forgets it. In
bfloat16 that allows two iterations a segment, in single precision four, and one where products of single precision are
made in less (`product_precision`).

All products on the small side are symmetric, which `symmetric_product` makes use of.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..devices import traced_as_constant
from .coefficients import Quintic
from .precision import least_norm
from .symmetric import symmetric_product

__all__ = ["frobenius_scaled_", "iterate", "iterate_reference", "plan"]

_LONGEST_SEGMENT = {torch.float64: 8, torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}


@traced_as_constant
def plan(steps: int, aspect: float, dtype: torch.dtype) -> tuple[int, ...]:
    """Lengths of the segments that take the fewest operations for ``steps`` iterations on matrices of this aspect.

    Args:
        steps: iterations in all.
        aspect: long side over short side, α ≥ 1.
        dtype: what they run in.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize.iterate import plan
        >>> plan(4, 1.0, torch.bfloat16), plan(4, 2.7, torch.bfloat16), plan(4, 2.7, torch.float32)
        ((1, 1, 1, 1), (2, 2), (4,))
    """
    longest = _LONGEST_SEGMENT.get(dtype, 1)
    whole, rest = divmod(steps, longest)
    segmented = (longest,) * whole + ((rest,) if rest else ())
    return min(((1,) * steps, segmented), key=lambda segments: sum(4 * aspect + 8 * length - 6 for length in segments))


def frobenius_scaled_(X: Tensor) -> Tensor:
    """Divide each matrix of the stack by its Frobenius norm, in place; a zero one stays zero."""
    if X.dtype != torch.float16:
        norm = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True)
        return X.div_(norm.clamp_(min=least_norm(X.dtype)))
    # Half precision ends at 65504. What was beyond came in as infinity, and a quotient of two of those is taken as 0.
    norm = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    return X.div_(norm.clamp_(min=least_norm(X.dtype))).nan_to_num_(0.0)


def iterate(X: Tensor, schedule: Sequence[Quintic], segments: Sequence[int], *, tighten: bool) -> Tensor:
    """Apply a schedule to the singular values of each matrix in a stack, which is lost.

    Args:
        X: one stack, of shape (count, m, n), with Frobenius norms of at most 1.
        schedule: the quintics, in order.
        segments: lengths that add up to the schedule's, from `plan`.
        tighten: first divide each matrix by an upper bound of its largest singular value that is sharper than the
            Frobenius norm. It comes for the price of a norm: with R² at hand, ‖R²‖_F^¼ = (Σσ⁸)^⅛ lies between σ₁ and
            r^⅛σ₁ for rank r, where the Frobenius norm may be r^½σ₁.

    Returns:
        The result: X itself, with memory of its own that is contiguous, see `_times_`.
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
                W = _quadratic(R, b, c)
            if left:
                W.diagonal(dim1=-2, dim2=-1).add_(a)  # now Z, of which Q and the next Gram matrix are products
                R = symmetric_product(symmetric_product(R, W), W)
                Q = W if Q is None else symmetric_product(Q, W)
                if scale is not None:
                    Q.mul_(scale)
                continue
            del R
            if Q is not None:
                # Written out, aQ is not rounded to the diagonal of W, which the result would show.
                Q = symmetric_product(Q, W, Q, beta=a)
            else:
                if scale is not None:
                    X.mul_(scale)
                X = _times_(X, W, a)
            del W
        if Q is not None:
            X = _times_(X, Q, 0.0)
    return X


def _gram(X: Tensor) -> Tensor:
    """R = XXᵀ, or XᵀX of tall ones."""
    return symmetric_product(*((X, X.mT) if _wide(X) else (X.mT, X)))


def _quadratic(R: Tensor, b: float, c: float) -> Tensor:
    """bR + cR² of symmetric R."""
    return symmetric_product(R, R, R, beta=b, alpha=c)


def _wide(X: Tensor) -> bool:
    return X.shape[-2] <= X.shape[-1]


def _times_(X: Tensor, F: Tensor, a: float) -> Tensor:
    """(aI + F)X, or X(aI + F) for tall ones, which leaves the result contiguous as no transposed product would.

    The product needs memory of its own. X takes that over and frees what it had, so that a stack is never held twice
    for longer than the product takes, whoever else holds X. A compiler sees by itself when memory is free.
    """
    left, right = (F, X) if _wide(X) else (X, F)
    product = torch.baddbmm(X, left, right, beta=a) if a else torch.bmm(left, right)
    if torch.compiler.is_compiling():
        return product
    X.set_(product)  # type: ignore[call-overload]
    return X


def _tight(R: Tensor, b: float, c: float, *, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """R scaled to a largest eigenvalue of at most 1, bR + cR², and the factor for X that does the same."""
    W = _gram(R)  # R², for R is symmetric
    # One rounded factor multiplies both R and (twice) R²: each element is rounded, but the polynomial keeps its shape.
    norm = torch.linalg.vector_norm(W, dim=(-2, -1), keepdim=True)
    factor = norm.clamp_(min=least_norm(W.dtype)).rsqrt_()
    R.mul_(factor)
    W.mul_(factor)
    linear = R.mul(b) if keep else R.mul_(b)
    W = torch.addcmul(linear, W, factor, value=c, out=W)
    return R, W, factor.sqrt()


def iterate_reference(X: Tensor, schedule: Sequence[Quintic], *, tighten: bool) -> Tensor:
    """What `iterate_` computes, one matrix (m, n) with m ≤ n and one iteration at a time, as the formula reads."""
    if tighten:
        R = X @ X.T
        X = X / torch.linalg.matrix_norm(R @ R).clamp(min=least_norm(R.dtype)) ** 0.25
    for a, b, c in schedule:
        R = X @ X.T
        X = a * X + (b * R + c * (R @ R)) @ X
    return X
