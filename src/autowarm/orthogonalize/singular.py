"""Nuclear and spectral norms without a singular value decomposition.

The eigenvalues of the Gram matrix on the short side are the squared singular values, so an embedding of 50 000 × 768
becomes one 768 × 768 problem. Squaring loses half of the digits, so the Gram matrix is accumulated in float64. The
remaining error is at most √ε·n·σ_max, about 1e-5 σ_max at n = 768, and usually far smaller.

The CPU computes those eigenvalues. On an accelerator eigensolvers are slow and products are fast, so it computes both
norms from products of Gram matrices only. ``torch.linalg.matrix_norm`` is the reference for both, and serves when a
gradient is needed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..modes import without_autocast
from .coefficients import JORDAN

_ROWS = 16384  # rows added to the Gram matrix at once, which bounds the float64 copy of a tall matrix
_SQUARINGS = 22  # the estimate of λ_max is within a factor n^(2^-22) of it
# Jordan's coefficients lift every σ above 4e-7·‖G‖_F into [0.65, 1.25]; the classical ones converge to 1 from there.
_POLAR = [JORDAN] * 12 + [(15 / 8, -10 / 8, 3 / 8)] * 5


def nuclear_norm(G: Tensor) -> Tensor:
    """Return Σ σᵢ of each matrix in a stack (…, m, n), with shape (…) and G's dtype; NaN if an entry is not finite.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize import nuclear_norm
        >>> nuclear_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]])).item()
        7.0
    """
    return _norm(G, "nuc", _sum_by_eigenvalues, _sum_by_products)


def spectral_norm(G: Tensor) -> Tensor:
    """Return max σᵢ of each matrix in a stack (…, m, n), with shape (…) and G's dtype; NaN if an entry is not finite.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize import spectral_norm
        >>> spectral_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]])).item()
        4.0
    """
    return _norm(G, 2, _max_by_eigenvalues, _max_by_products)


@without_autocast
def _norm(G: Tensor, order: Any, on_cpu: Callable[[Tensor], Tensor], elsewhere: Callable[[Tensor], Tensor]) -> Tensor:
    if torch.is_grad_enabled() and G.requires_grad:
        return torch.linalg.matrix_norm(G, ord=order)
    norm = _by_vector if min(G.shape[-2:]) == 1 else lambda X: (on_cpu if X.is_cpu else elsewhere)(_gram(X))
    if G.dtype != _wide(G.device) or not G.numel():
        return norm(G).to(G.dtype)
    # Squares of such entries may overflow, or underflow.
    largest = G.abs().amax((-2, -1), keepdim=True)
    largest = torch.where(largest == 0, 1.0, largest)
    return norm(G / largest) * largest[..., 0, 0]


def _wide(device: torch.device) -> torch.dtype:
    """The dtype of sums of squares: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _by_vector(G: Tensor) -> Tensor:
    return torch.linalg.vector_norm(G, dim=(-2, -1), dtype=_wide(G.device))


def _gram(G: Tensor) -> Tensor:
    """The Gram matrix of the short side."""
    wide = _wide(G.device)
    tall = G if G.shape[-2] >= G.shape[-1] else G.mT
    gram = torch.zeros(*G.shape[:-2], tall.shape[-1], tall.shape[-1], dtype=wide, device=G.device)
    for rows in tall.split(_ROWS, dim=-2):
        rows = rows.to(wide)
        gram += rows.mT @ rows
    return gram


def _eigenvalues(gram: Tensor) -> Tensor:
    # LAPACK fails on NaN instead of returning it, but a diverged run should yield NaN.
    finite = gram.isfinite().all(-1).all(-1)[..., None]
    values = torch.linalg.eigvalsh(torch.where(finite[..., None], gram, torch.zeros_like(gram))).clamp(min=0.0)
    return torch.where(finite, values, torch.full_like(values, torch.nan))


def _sum_by_eigenvalues(gram: Tensor) -> Tensor:
    return _eigenvalues(gram).sqrt().sum(-1)


def _max_by_eigenvalues(gram: Tensor) -> Tensor:
    return _eigenvalues(gram).amax(-1).sqrt()


def _unit_trace(A: Tensor) -> tuple[Tensor, Tensor]:
    trace = A.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return A / torch.where(trace == 0, torch.ones_like(trace), trace), trace  # a zero matrix stays zero


def _sum_by_products(gram: Tensor) -> Tensor:
    """tr((GᵀG)^½) = ⟨Q, GᵀG⟩ with Q → (GᵀG)^(−½), by the iteration that orthogonalizes G, on its Gram matrix."""
    start, scale = _unit_trace(gram)
    A = start
    Q = eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    for a, b, c in _POLAR:
        P = a * eye + b * A + c * (A @ A)
        Q = Q @ P
        A = P @ A @ P
    return (Q * start).sum((-2, -1)) * scale[..., 0, 0].sqrt()


def _max_by_products(gram: Tensor) -> Tensor:
    """√λ_max by repeated squaring: (tr A^p)^(1/p) → λ_max as p = 2^k grows, from above."""
    A, scale = _unit_trace(gram)
    log = scale.log()
    for k in range(1, _SQUARINGS + 1):
        A, scale = _unit_trace(A @ A)
        log = log + scale.log() / 2**k
    return (0.5 * log).exp()[..., 0, 0]
