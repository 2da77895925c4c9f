"""Computations for the spectral geometry, on stacks of matrices: polar factors UVᵀ, nuclear and spectral norms.

- `polar`: `orthogonalize`, which computes Muon's direction.
- `coefficients`: quintic polynomials that push singular values towards 1, and the intervals that they reach.
- `iterate`: applies the quintics to stacks of matrices, in the order of products that takes the fewest operations.
- `precision`: the dtype of the iterations, and the smallest safe divisor for a norm.
- `singular`: nuclear and spectral norms without a singular value decomposition.
"""

from .coefficients import METHODS, Method, checked_steps
from .iterate import NARROW, held_in, orthogonalize_
from .polar import as_matrices, orthogonalize
from .precision import HALVES, least_norm, working_dtype
from .singular import nuclear_norm, spectral_norm

__all__ = [
    "HALVES",
    "METHODS",
    "NARROW",
    "Method",
    "as_matrices",
    "checked_steps",
    "held_in",
    "least_norm",
    "nuclear_norm",
    "orthogonalize",
    "orthogonalize_",
    "spectral_norm",
    "working_dtype",
]
