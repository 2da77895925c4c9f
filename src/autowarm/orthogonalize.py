"""The orthogonal polar factor UVᵀ of a matrix G = UΣVᵀ, Muon's direction.

Two methods, both on stacks of matrices of shape (…, m, n):

- ``"svd"``: exact, in the input's precision. The reference.
- ``"newton-schulz"``: an odd polynomial applied a few times to G/‖G‖_F pushes every singular value towards 1. Only
  products of matrices, so it runs in bfloat16. With Jordan's coefficients and 5 steps, singular values of G/‖G‖_F
  above about 0.002 land in [0.65, 1.25]; smaller ones stay smaller.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["METHODS", "as_matrices", "orthogonalize", "orthogonalize_each"]

METHODS = ("svd", "newton-schulz")

# K. Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024): steepest slope at zero, at the price of
# not converging to exactly 1.
JORDAN = (3.4445, -4.7750, 2.0315)


def as_matrices(x: Tensor, *, stacked: bool = False) -> Tensor:
    """View a tensor as (…, m, n): a vector as one column, more dimensions flattened to (out, rest) or kept as a stack.

    Raises:
        ValueError: ``stacked`` with fewer than two dimensions.
    """
    if stacked:
        if x.ndim < 2:
            raise ValueError(f"a stack of matrices needs at least 2 dimensions, got shape {tuple(x.shape)}")
        return x
    return x.reshape(-1, 1) if x.ndim < 2 else x.flatten(1)


def orthogonalize(
    G: Tensor, *, method: str = "newton-schulz", steps: int = 5, dtype: torch.dtype | None = None
) -> Tensor:
    """UVᵀ of each matrix in a stack.

    Args:
        G: shape (…, m, n), real.
        method: "svd" or "newton-schulz".
        steps: iterations of "newton-schulz".
        dtype: what "newton-schulz" computes in; by default bfloat16, as everyone's Muon does.

    Returns:
        A tensor of G's shape and dtype. A zero matrix stays zero; directions in which G is zero stay zero.

    Raises:
        ValueError: fewer than two dimensions, an unknown method, or ``steps < 1``.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize import orthogonalize
        >>> orthogonalize(torch.tensor([[0.0, -2.0], [5.0, 0.0]]), method="svd").tolist()
        [[0.0, -1.0], [1.0, 0.0]]
    """
    if G.ndim < 2:
        raise ValueError(f"orthogonalize needs a matrix or a stack of them, got shape {tuple(G.shape)}")
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: use one of {METHODS}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if G.numel() == 0:
        return torch.zeros_like(G)
    if method == "svd":
        return _polar_svd(G)
    return _newton_schulz(G, steps, dtype or torch.bfloat16)


def orthogonalize_each(matrices: Sequence[Tensor], *, method: str = "newton-schulz", steps: int = 5) -> list[Tensor]:
    """`orthogonalize` of many tensors, those of one shape stacked into one call: at small widths that is the speed."""
    by_kind: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = defaultdict(list)
    for i, matrix in enumerate(matrices):
        by_kind[matrix.shape, matrix.dtype, matrix.device].append(i)
    factors: list[Tensor] = [torch.empty(0)] * len(matrices)
    for members in by_kind.values():
        stack = torch.stack([matrices[i] for i in members])
        for i, factor in zip(members, orthogonalize(stack, method=method, steps=steps), strict=True):
            factors[i] = factor
    return factors


def _polar_svd(G: Tensor) -> Tensor:
    wide = G if G.dtype == torch.float64 else G.float()
    U, S, Vh = torch.linalg.svd(wide, full_matrices=False)
    # Directions that are zero up to rounding have no sign to keep; leaving them out keeps LMO(0) = 0.
    tolerance = max(G.shape[-2:]) * torch.finfo(wide.dtype).eps * S.amax(-1, keepdim=True)
    return ((U * (tolerance < S).unsqueeze(-2)) @ Vh).to(G.dtype)


def _newton_schulz(G: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    a, b, c = JORDAN
    tall = G.shape[-2] > G.shape[-1]
    # The Gram matrix of the short side is the small one.
    X = (G.mT if tall else G).to(dtype).reshape(-1, *sorted(G.shape[-2:]))
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        A = X @ X.mT
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, B, X, beta=a)
    return (X.mT if tall else X).to(G.dtype).reshape(G.shape)
