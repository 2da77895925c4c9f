"""The Hessian's largest eigenvalue, as in the Edge of Stability (paper, App. "eos"), by SciPy's Lanczos method."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from autowarm._torch.modes import autocast_off

_VECTORS = 12  # as long as all the parameters, from which Lanczos restarts


def sharpness(
    loss: Callable[[], Tensor], params: Sequence[Tensor], *, iterations: int = 50, tolerance: float = 1e-3
) -> float:
    """Compute λ_max(∇²f), the curvature of the worst direction in ℓ2, in units of loss per squared parameter.

    Each product with the Hessian is a second backward pass through one graph, made with PyTorch's plain attention,
    because fused attention has no second derivative. The vectors of Lanczos are in the host's memory.

    Args:
        loss: computes the loss of one fixed batch, without backward; it depends on all of ``params``, if only linearly.
        params: the tensors x of f(x). Models distributed over processes are not supported.
        iterations: the most products to compute, in round numbers. NaN if that is too few.
        tolerance: of the residual, as a share; the eigenvalue is much more accurate.

    Example:
        >>> import torch
        >>> from autowarm.lab.training.sharpness import sharpness
        >>> x = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
        >>> round(sharpness(lambda: 3 * x[0] ** 2 + x[1] ** 2, [x]), 6)
        6.0
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

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

    def product(v: np.ndarray) -> np.ndarray:
        pairs = zip(torch.from_numpy(v.ravel()).split(sizes), gradients, strict=True)
        along = [part.view_as(g).to(g) for part, g in pairs if g.requires_grad]
        with autocast_off():
            parts = torch.autograd.grad(curved, params, along, retain_graph=True, materialize_grads=True)
        return np.concatenate([part.reshape(-1).to("cpu", dtype).numpy() for part in parts])

    # ARPACK has no half precision, and needs more dimensions than eigenvalues.
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    generator = torch.Generator("cpu").manual_seed(0)
    start = torch.randn(sum(sizes), generator=generator, dtype=torch.float64, device="cpu").to(dtype)
    if len(start) == 1:
        return float(product(np.ones(1, start.numpy().dtype))[0])
    hessian = LinearOperator((len(start), len(start)), product, dtype=start.numpy().dtype)
    vectors = min(_VECTORS, len(start))
    try:
        restarts = max(1, 2 * iterations // vectors)  # each of about half as many products as vectors
        (largest,) = eigsh(hessian, 1, which="LA", v0=start.numpy(), ncv=vectors, maxiter=restarts, tol=tolerance,
                           return_eigenvectors=False)  # fmt: skip
    except ArpackError:
        return math.nan
    return float(largest)
