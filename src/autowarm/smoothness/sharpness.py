"""The Hessian's largest eigenvalue, by Lanczos: what the Edge of Stability is about (paper, App. "eos")."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["lanczos", "sharpness"]


def lanczos(
    product: Callable[[Tensor], Tensor], start: Tensor, *, iterations: int = 50, tolerance: float = 1e-4
) -> tuple[float, float]:
    """The largest eigenvalue of a symmetric operator, with full reorthogonalisation.

    Args:
        product: v ↦ Av, for vectors of shape (n,).
        start: any vector of shape (n,) that is not zero; its dtype is the recurrence's.
        iterations: products at most.
        tolerance: stop when the residual is this share of the eigenvalue's size.

    Returns:
        (θ, r): the largest Ritz value and its residual. Some eigenvalue lies within r of θ, and λ_max ≥ θ.

    Raises:
        ValueError: ``iterations < 1`` or a start that is zero or not finite.

    Example:
        >>> import torch
        >>> from autowarm.smoothness import lanczos
        >>> diagonal = torch.tensor([1.0, -9.0, 4.0], dtype=torch.float64)
        >>> value, residual = lanczos(lambda v: diagonal * v, torch.ones(3, dtype=torch.float64))
        >>> round(value, 9), residual < 1e-9
        (4.0, True)
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    size = torch.linalg.vector_norm(start)
    if not (size > 0 and torch.isfinite(size)):
        raise ValueError("the start vector of Lanczos must be finite and not zero")
    basis = [start / size]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        w = product(basis[-1])
        diagonal.append(float(torch.dot(w, basis[-1])))
        V = torch.stack(basis)
        # Twice is enough (Kahan, Parlett): without this, rounding brings found eigenvalues back as copies.
        for _ in range(2):
            w = w - V.T @ (V @ w)
        rest = float(torch.linalg.vector_norm(w))
        T = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        if beside:
            T += torch.diag(torch.tensor(beside, dtype=torch.float64), 1)
            T += torch.diag(torch.tensor(beside, dtype=torch.float64), -1)
        values, vectors = torch.linalg.eigh(T)
        top, residual = float(values[-1]), rest * abs(float(vectors[-1, -1]))
        scale = float(values.abs().amax())
        small = rest <= torch.finfo(start.dtype).eps * scale * len(basis)  # the Krylov space is exhausted
        if small or residual <= tolerance * scale or len(basis) == min(iterations, start.numel()):
            return top, residual
        beside.append(rest)
        basis.append(w / rest)


def sharpness(
    loss: Callable[[], Tensor],
    params: Sequence[Tensor],
    *,
    iterations: int = 50,
    tolerance: float = 1e-3,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> float:
    """λ_max(∇²f), in units of loss per squared parameter: the curvature of the worst direction in ℓ2.

    Each product with the Hessian is a second backward pass through one graph. Fused attention has no second derivative,
    so the forward pass runs with PyTorch's plain one.

    Args:
        loss: computes the loss of one fixed batch, without backward; it must depend on all of ``params``.
        params: the tensors x of f(x); models spread over processes are not supported.
        iterations, tolerance: see `lanczos`; the tolerance is that of a residual, the eigenvalue is far closer.
        dtype: of the recurrence; None for the parameters', torch.float64 where products are exact enough to use it.
        seed: of the start vector.

    Example:
        >>> import torch
        >>> from autowarm.smoothness import sharpness
        >>> x = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
        >>> round(sharpness(lambda: 3 * x[0] ** 2 + x[1] ** 2, [x]), 6)
        6.0
    """
    params = list(params)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        gradients = torch.autograd.grad(loss(), params, create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in gradients])
    wide = dtype or flat.dtype
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(flat.numel(), generator=generator, dtype=torch.float64).to(flat.device, wide)

    def product(v: Tensor) -> Tensor:
        parts = torch.autograd.grad(flat, params, v.to(flat.dtype), retain_graph=True)
        return torch.cat([part.reshape(-1) for part in parts]).to(wide)

    return lanczos(product, start, iterations=iterations, tolerance=tolerance)[0]
