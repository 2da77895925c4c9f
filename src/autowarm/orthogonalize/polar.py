"""The orthogonal polar factor UVᵀ of a matrix G = UΣVᵀ, Muon's direction.

Three methods, all on stacks of matrices of shape (…, m, n):

- ``"svd"``: exact, in the input's precision. The reference.
- ``"newton-schulz"``: Jordan's odd quintic, five times, on G/‖G‖_F. Its singular values above 0.002 land in
  [0.65, 1.25]; smaller ones stay smaller.
- ``"polar-express"``: a different, optimal quintic in each iteration, on G/(Σσ⁸)^⅛, whose divisor is a sharper bound of
  the largest singular value. Four iterations take singular values above 0.003 to [0.78, 1.22]; five take those above
  0.001 to [0.86, 1.14]. In bfloat16, rounding takes some to 1.29, as where a third are 1 and all others 0.011.

The two iterative methods need only matrix products, and run in bfloat16 if the hardware multiplies it
(`working_dtype`).
"""

import torch
from torch import Tensor

from .._torch.modes import without_autocast
from .coefficients import Method, checked_steps
from .iterate import held_in, orthogonalize_
from .precision import working_dtype


def as_matrices(x: Tensor, *, stacked: bool = False, blocks: int = 1, transposed: bool = False) -> Tensor:
    """View a tensor as matrices (…, m, n): a vector as one column, more dimensions as (out, rest) or as a stack.

    Args:
        x: any tensor.
        stacked: keep leading dimensions as a stack of matrices.
        blocks: split each matrix into this many blocks of rows and stack them: 3 for a fused query-key-value matrix,
            one per head, or one per group of a convolution.
        transposed: whether the tensor stores its matrices as (…, n, m). With more than two dimensions and without
            ``stacked`` it is the kernel of a transposed convolution, (in, out/blocks, *k), whose groups are blocks of
            both inputs and outputs.

    Raises:
        ValueError: the shape does not suit ``stacked`` or ``transposed``, or the rows do not divide into ``blocks``.
    """
    if stacked:
        if x.ndim < 2:
            raise ValueError(f"a stack of matrices needs at least 2 dimensions, got shape {tuple(x.shape)}")
    else:
        if transposed and x.ndim < 2:
            raise ValueError(f"a transposed matrix needs at least 2 dimensions, got shape {tuple(x.shape)}")
        if transposed and x.ndim > 2:
            return _in_blocks(x.flatten(1), blocks).mT
        x = x.reshape(-1, 1) if x.ndim < 2 else x.flatten(1)
    return _in_blocks(x.mT if transposed else x, blocks)


def _in_blocks(x: Tensor, blocks: int) -> Tensor:
    if blocks == 1:
        return x
    if x.shape[-2] % blocks:
        raise ValueError(f"{x.shape[-2]} rows (shape {tuple(x.shape)}) do not divide into {blocks} equal blocks")
    return x.unflatten(-2, (blocks, -1))


@without_autocast
def orthogonalize(
    G: Tensor, *, method: Method = "polar-express", steps: int | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Return UVᵀ of each matrix in a stack.

    Args:
        G: shape (…, m, n), real.
        method: "svd", "newton-schulz" or "polar-express"; only "svd" can be differentiated.
        steps: number of iterations; by default 5 for "newton-schulz" and 4 for "polar-express".
        dtype: dtype of the iterations; by default `working_dtype` of G's device.

    Returns:
        A tensor of G's shape and dtype. A zero matrix stays zero, and so do directions in which G is zero. If G's norm
        is below `least_norm` of the dtype of the iterations (4e-16 in bfloat16 and single precision), the iterative
        methods return less than UVᵀ, down to zero. If G's squares overflow (from about 1e17), they return zero.

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
    steps = checked_steps(method, steps)
    if G.numel() == 0:
        return torch.zeros_like(G)
    if method == "svd":
        # In single precision at least: LAPACK has no other
        U, S, Vh = torch.linalg.svd(G if G.dtype == torch.float64 else G.float(), full_matrices=False)
        # Directions that are zero up to rounding have no meaningful sign; dropping them keeps LMO(0) = 0.
        rounding = max(G.shape[-2:]) * torch.finfo(S.dtype).eps * S.amax(-1, keepdim=True)
        return ((U * (rounding < S).unsqueeze(-2)) @ Vh).to(G.dtype)
    # A stack of its own, (count, m, n), which the iterations may overwrite
    dtype = dtype or working_dtype(G.device)
    X = torch.empty((G.shape[:-2].numel(), *G.shape[-2:]), dtype=held_in(dtype, min(G.shape[-2:])), device=G.device)
    X.copy_(G.detach().reshape(X.shape))
    return orthogonalize_(X, method=method, steps=steps, dtype=dtype).to(G.dtype).reshape(G.shape)
