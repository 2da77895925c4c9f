"""The Hessian's largest eigenvalue, by Lanczos iterations, as in the Edge of Stability (paper, App. "eos")."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from autowarm._torch.modes import autocast_off


def lanczos(
    product: Callable[[Tensor], Tensor], start: Tensor, *, iterations: int = 50, tolerance: float = 1e-4,
    vectors: int = 12,
) -> tuple[float, float]:  # fmt: skip
    """A symmetric operator's largest Ritz value and its residual: some eigenvalue lies as near, and none is smaller.

    Full reorthogonalisation; after ``vectors`` iterations the basis restarts from its leading quarter of Ritz vectors.
    Everything but ``product`` runs outside the caller's autocast, in the dtype of ``start``, of shape (n,). It stops
    after so many iterations, or when the residual is at most this fraction of the value.
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    size = torch.linalg.vector_norm(start)
    if not (size > 0 and torch.isfinite(size)):
        raise ValueError("the start vector of Lanczos must be finite and not zero")
    most = min(vectors, iterations, start.numel())
    V = start.new_empty(most, start.numel())  # the basis, one vector per row
    V[0] = start / size
    T = torch.zeros(most, most, dtype=torch.float64, device="cpu")  # VAVᵀ
    filled = 0
    for products in range(1, min(iterations, start.numel()) + 1):
        w = product(V[filled])
        filled += 1
        with autocast_off():
            basis = V[:filled]
            along = basis @ w
            T[filled - 1, :filled] = T[:filled, filled - 1] = along.cpu().double()
            w = w.addmv(basis.T, along, alpha=-1)
            # Orthogonalise a second time, which is enough (Kahan, Parlett). Otherwise rounding would bring back copies
            # of eigenvalues that are already found.
            w.addmv_(basis.T, basis @ w, alpha=-1)
            rest = float(torch.linalg.vector_norm(w))
            values, S = torch.linalg.eigh(T[:filled, :filled])
            top, residual = float(values[-1]), rest * abs(float(S[-1, -1]))
            scale = float(values.abs().amax())
            small = rest <= torch.finfo(start.dtype).eps * scale * filled  # the Krylov space is exhausted
            if small or residual <= tolerance * abs(top) or products == min(iterations, start.numel()):
                break
            if filled == most:
                # All Ritz vectors share the residual w, so the recurrence can continue from the leading ones and w
                # alone.
                filled = most // 4
                V[:filled] = S[:, -filled:].T.to(V) @ V
                T.zero_()
                T.diagonal()[:filled] = values[-filled:]
            V[filled] = w / rest
    return top, residual


def sharpness(
    loss: Callable[[], Tensor], params: Sequence[Tensor], *, iterations: int = 50, tolerance: float = 1e-3
) -> float:
    """Compute λ_max(∇²f), the curvature of the worst direction in ℓ2, in units of loss per squared parameter.

    Each product with the Hessian is a second backward pass through one graph, made with PyTorch's plain attention,
    because fused attention has no second derivative. Besides the graph, it keeps 12 vectors as long as all the
    parameters, and a few more for each product.

    Args:
        loss: computes the loss of one fixed batch, without backward; it depends on all of ``params``, if only linearly.
        params: the tensors x of f(x). Models distributed over processes are not supported.
        iterations: the most products to compute.
        tolerance: of the residual, as a share; the eigenvalue is much more accurate.

    Example:
        >>> import torch
        >>> from autowarm.lab.training.sharpness import sharpness
        >>> x = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
        >>> round(sharpness(lambda: 3 * x[0] ** 2 + x[1] ** 2, [x]), 6)
        6.0
    """
    params = list(params)
    if sharded := [p for p in params if hasattr(p, "placements")]:
        raise ValueError(f"sharpness needs plain tensors, but one of shape {tuple(sharded[0].shape)} is a DTensor: "
                         "measure a copy of the model that is not distributed")  # fmt: skip
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        value = loss()
        with autocast_off():  # which the loss keeps
            gradients = torch.autograd.grad(value, params, create_graph=True)
    curved = [g for g in gradients if g.requires_grad]  # the others are constant: the loss is linear there
    if not curved:
        return 0.0
    sizes = [p.numel() for p in params]
    generator = torch.Generator("cpu").manual_seed(0)
    start = torch.randn(sum(sizes), generator=generator, dtype=torch.float64, device="cpu").to(gradients[0])

    def product(v: Tensor) -> Tensor:
        pairs = zip(v.split(sizes), gradients, strict=True)
        along = [part.view_as(g).to(g.dtype) for part, g in pairs if g.requires_grad]
        with autocast_off():
            parts = torch.autograd.grad(curved, params, along, retain_graph=True, materialize_grads=True)
            return torch.cat([part.reshape(-1) for part in parts])

    return lanczos(product, start, iterations=iterations, tolerance=tolerance)[0]
