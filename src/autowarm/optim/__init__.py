"""Norm-constrained optimizers: x ← (1 − λη)x + η·LMO(momentum), each tensor in its group's geometry."""

from .elementwise import Lion, NormSGD, SignSGD
from .lmo import LMO
from .model.partition import partition
from .muon import Muon
from .together import Together

__all__ = ["LMO", "Lion", "Muon", "NormSGD", "SignSGD", "Together", "partition"]
