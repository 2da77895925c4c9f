"""Norm-constrained optimizers: x ← (1 − λη)x + η·LMO(momentum), each tensor in its group's geometry."""

from .elementwise import Lion, NormSGD, SignSGD
from .known import geometry_of, kappa_of
from .lmo import LMO
from .muon import Muon
from .partition import partition
from .together import Together

__all__ = ["LMO", "Lion", "Muon", "NormSGD", "SignSGD", "Together", "geometry_of", "kappa_of", "partition"]
