"""Norms, their duals and the step each one dictates.

A norm-constrained optimizer moves by a *linear minimisation oracle* (LMO): of all steps of unit norm, it takes the one
along which the loss falls fastest. Choosing the norm chooses the optimizer (paper, Table "optimizers"):

=======================  ===================  ===============  ===============  =====================
geometry                 norm ‖x‖             dual norm ‖g‖⋆   LMO(g)           κ of an m × n matrix
=======================  ===================  ===============  ===============  =====================
`Spectral` (Muon)        largest σᵢ           Σ σᵢ             −U Vᵀ            min(m, n)
`Sign` (signSGD, Lion)   largest abs(entry)   Σ abs(entry)     −sign(g)         m·n
`Frobenius` (normSGD)    √Σ entry²            √Σ entry²        −g/‖g‖           1
`Rows` (Scion)           largest ‖rowᵢ‖       Σ ‖rowᵢ‖         −rowᵢ/‖rowᵢ‖     m
`Columns` (Scion)        largest ‖colⱼ‖       Σ ‖colⱼ‖         −colⱼ/‖colⱼ‖     n
=======================  ===================  ===============  ===============  =====================

A geometry measures one tensor. `MaxOverLayers` combines geometries into a norm of the whole model: the largest of its
tensors' norms. Its dual norm and its κ are sums over the tensors.

Every geometry has a *radius* R, a number or a rule that computes it from the shape (`RADIUS_RULES`). It scales the unit
ball, so the norm becomes ‖x‖/R, the dual norm R‖g‖⋆, the oracle R·LMO(g), and κ becomes R²κ. Muon's "learning-rate
adjustment" is such a radius.
"""

from .base import RADIUS_RULES, Geometry, Locality, RadiusRule
from .euclidean import Columns, Frobenius, Rows, Sign
from .layers import GeometryName, MaxOverLayers, resolve, total_kappa
from .rate import Rate
from .spectral import Polar, Spectral

__all__ = [
    "RADIUS_RULES",
    "Columns",
    "Frobenius",
    "Geometry",
    "GeometryName",
    "Locality",
    "MaxOverLayers",
    "Polar",
    "RadiusRule",
    "Rate",
    "Rows",
    "Sign",
    "Spectral",
    "resolve",
    "total_kappa",
]
