"""The orthogonal polar factor UVᵀ of a matrix G = UΣVᵀ, Muon's direction.

Three methods, all on stacks of matrices of shape (…, m, n):

- ``"svd"``: exact, in the input's precision. The reference.
- ``"newton-schulz"``: Jordan's odd quintic, five times, on G/‖G‖_F. Its singular values above 0.002 land in
  [0.65, 1.25]; smaller ones stay smaller.
- ``"polar-express"``: a different, optimal quintic in each iteration, on G/(Σσ⁸)^⅛, whose divisor is a sharper bound of
  the largest singular value. Four iterations take singular values above 0.003 to [0.78, 1.22]; five take those above
  0.001 to [0.86, 1.14].

The two iterative methods need only matrix products, and run in bfloat16 if the hardware multiplies it
(`working_dtype`).
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from ..devices import traced_as_constant
from ..modes import without_autocast
from .coefficients import JORDAN, Quintic, polar_express
from .iterate import frobenius_scaled_, iterate, plan
from .precision import least_norm, product_precision, working_dtype

# Up to this short side, an iteration spends its time launching products, not computing them.
NARROW = 64

# Up to this short side, half precision is too coarse for Polar Express. Its first quintics are steep at the ends of
# their intervals, where an error of 1 % grows by powers of five from one iteration to the next. In larger matrices the
# elements' errors average out. Among Gaussian 2 × 2 matrices in bfloat16, two in a thousand ended with singular values
# of up to 8000.
_FEW_ROWS = 16

Method = Literal["svd", "newton-schulz", "polar-express"]
METHODS: tuple[Method, ...] = get_args(Method)
_USUAL_STEPS = {"svd": 1, "newton-schulz": 5, "polar-express": 4}


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
        U, S, Vh = torch.linalg.svd(G if G.dtype == torch.float64 else G.float(), full_matrices=False)
        # Directions that are zero up to rounding have no meaningful sign; dropping them keeps LMO(0) = 0.
        return ((U * (_rounding(G, S) < S).unsqueeze(-2)) @ Vh).to(G.dtype)
    X = torch.empty((G.shape[:-2].numel(), *G.shape[-2:]), dtype=dtype or working_dtype(G.device), device=G.device)
    X.copy_(G.detach().reshape(X.shape))
    return orthogonalize_(X, method=method, steps=steps).to(G.dtype).reshape(G.shape)


@without_autocast
def orthogonalize_(X: Tensor, *, method: Method, steps: int | None = None) -> Tensor:
    """`orthogonalize` a stack (count, m, n) iteratively, in its own dtype; this overwrites the stack.

    Optimizers use this, because they fill a stack of the working dtype themselves. A product cannot be computed in
    place, so X takes over the result's memory and its own is freed. Views of X made before the call do not see the
    result.

    Returns:
        The result, which is X itself except under `torch.compile`.
    """
    steps = checked_steps(method, steps)
    if not X.numel():
        return X
    precision = product_precision(X.dtype, X.device)
    halves = (torch.bfloat16, torch.float16)
    if method == "polar-express" and min(X.shape[-2:]) <= _FEW_ROWS and precision in halves:
        single = product_precision(torch.float32, X.device) == torch.float32
        wide = X.to(torch.float32 if single else torch.float64)
        if X.dtype in halves:
            wide = wide.nan_to_num_(0.0, 0.0, 0.0)  # values beyond half precision arrive as infinity
        return X.copy_(orthogonalize_(wide, method=method, steps=steps))
    long, short = max(X.shape[-2:]), min(X.shape[-2:])
    if method == "newton-schulz" or short <= NARROW:
        # Apply the iteration as published, up to rounding. Narrow matrices may lie in a stack with longer ones, on
        # which their iterations must not depend, and for them fewer products are faster than smaller ones.
        segments = (1,) * steps
    else:
        segments = plan(steps, long / short, precision)
    return iterate(frobenius_scaled_(X), _schedule(method, steps), segments, tighten=method == "polar-express")


@without_autocast
def orthogonalize_reference(G: Tensor, *, method: Method = "polar-express", steps: int | None = None) -> Tensor:
    """`orthogonalize` one matrix (m, n) by the plain formulas, in G's precision: the reference for the fast path."""
    steps = checked_steps(method, steps)
    if method == "svd":
        U, S, Vh = torch.linalg.svd(G, full_matrices=False)
        return U @ torch.diag((_rounding(G, S) < S).to(G.dtype)) @ Vh
    if G.shape[0] > G.shape[1]:
        return orthogonalize_reference(G.T, method=method, steps=steps).T
    X = G / torch.linalg.matrix_norm(G).clamp(min=least_norm(G.dtype))
    if method == "polar-express":
        R = X @ X.T
        X = X / torch.linalg.matrix_norm(R @ R).clamp(min=least_norm(G.dtype)) ** 0.25
    for a, b, c in _schedule(method, steps):
        R = X @ X.T
        X = a * X + (b * R + c * (R @ R)) @ X
    return X


def checked_steps(method: Method, steps: int | None) -> int:
    """Return how many iterations to make; ValueError if the method is unknown or ``steps < 1``."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: use one of {METHODS}")
    if steps is None:
        return _USUAL_STEPS[method]
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    return steps


@traced_as_constant
def _schedule(method: Method, steps: int) -> tuple[Quintic, ...]:
    return polar_express(steps) if method == "polar-express" else (JORDAN,) * steps


def _rounding(G: Tensor, S: Tensor) -> Tensor:
    return max(G.shape[-2:]) * torch.finfo(S.dtype).eps * S.amax(-1, keepdim=True)
