"""The former place of `autowarm.orthogonalize.singular`."""

import warnings

from .orthogonalize.singular import nuclear_norm, spectral_norm

__all__ = ["nuclear_norm", "spectral_norm"]

warnings.warn(
    "autowarm.singular is now part of autowarm.orthogonalize: import nuclear_norm and spectral_norm from there",
    DeprecationWarning,
    stacklevel=2,
)
