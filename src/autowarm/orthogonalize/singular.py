"""Nuclear and spectral norms without a singular value decomposition.

The eigenvalues of the Gram matrix on the short side are the squared singular values, so an embedding of 50 000 × 768
becomes one 768 × 768 problem. Squaring loses half of the digits, so the Gram matrix is accumulated in float64. The
remaining error is at most √ε·n·σ_max, about 1e-5 σ_max at n = 768, and usually far smaller.

``torch.linalg.matrix_norm`` is the reference for both, and serves when a gradient is needed.
"""

import torch
from torch import Tensor

from .._torch.modes import without_autocast

_ROWS = 16384  # rows added to the Gram matrix at once, which bounds the float64 copy of a tall matrix


def nuclear_norm(G: Tensor) -> Tensor:
    """Return Σ σᵢ of each matrix in a stack (…, m, n), with shape (…) and G's dtype; NaN if an entry is not finite.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize import nuclear_norm
        >>> nuclear_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]])).item()
        7.0
    """
    if torch.is_grad_enabled() and G.requires_grad:
        return torch.linalg.matrix_norm(G, ord="nuc")
    return _singular_values(G).sum(-1).to(G.dtype)


def spectral_norm(G: Tensor) -> Tensor:
    """Return max σᵢ of each matrix in a stack (…, m, n), with shape (…) and G's dtype; NaN if an entry is not finite.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize import spectral_norm
        >>> spectral_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]])).item()
        4.0
    """
    if torch.is_grad_enabled() and G.requires_grad:
        return torch.linalg.matrix_norm(G, ord=2)
    return _singular_values(G).amax(-1).to(G.dtype)


@without_autocast
def _singular_values(G: Tensor) -> Tensor:
    """The singular values of each matrix in a stack, in ascending order, of shape (…, min(m, n))."""
    if G.dtype != _wide(G.device) or not G.numel():
        return _eigenvalues(_gram(G)).sqrt()
    # Squares of such entries may overflow, or underflow.
    largest = G.abs().amax((-2, -1), keepdim=True)
    largest = torch.where(largest == 0, 1.0, largest)
    return _eigenvalues(_gram(G / largest)).sqrt() * largest[..., 0]


def _wide(device: torch.device) -> torch.dtype:
    """The dtype of sums of squares: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _gram(G: Tensor) -> Tensor:
    """The Gram matrix of the short side."""
    wide = _wide(G.device)
    tall = G if G.shape[-2] >= G.shape[-1] else G.mT
    # (…, short, short): the sum over the long side, some rows at a time
    gram = torch.zeros(*G.shape[:-2], tall.shape[-1], tall.shape[-1], dtype=wide, device=G.device)
    for rows in tall.split(_ROWS, dim=-2):
        rows = rows.to(wide)
        gram += rows.mT @ rows
    return gram


def _eigenvalues(gram: Tensor) -> Tensor:
    # LAPACK fails on NaN instead of returning it, but a diverged run should yield NaN.
    finite = gram.isfinite().all(-1).all(-1)[..., None]
    gram = torch.where(finite[..., None], gram, torch.zeros_like(gram))
    # Apple's GPUs have no eigensolver.
    values = torch.linalg.eigvalsh(gram.cpu() if gram.is_mps else gram).to(gram.device).clamp(min=0.0)
    return torch.where(finite, values, torch.full_like(values, torch.nan))
