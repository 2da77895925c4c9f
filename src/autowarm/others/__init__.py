"""Optimizers that are not ours: what they are by class, and what a wrapper holds."""

from .known import geometry_of, kappa_of

__all__ = ["geometry_of", "kappa_of"]
