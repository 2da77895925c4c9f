"""The paper's theory as code."""

from .constants import Smoothness
from .families import Family, regression_family
from .pairs import largest_smoothness_ratio, smoothness_ratio
from .problems import EXPONENTIAL, LINEAR, Outer, Problem, barrier, catalogue
from .rates import (
    constant_bound,
    decay_only_bound,
    decay_only_rate,
    theorem_1_bound,
    theorem_1_rate,
    theorem_2_bound,
    theorem_2_rate,
    theorem_3_bound,
    theorem_3_rate,
    theorem_3_uniform_bound,
    weight_decay_limit,
)

__all__ = [
    "EXPONENTIAL",
    "LINEAR",
    "Family",
    "Outer",
    "Problem",
    "Smoothness",
    "barrier",
    "catalogue",
    "constant_bound",
    "decay_only_bound",
    "decay_only_rate",
    "largest_smoothness_ratio",
    "regression_family",
    "smoothness_ratio",
    "theorem_1_bound",
    "theorem_1_rate",
    "theorem_2_bound",
    "theorem_2_rate",
    "theorem_3_bound",
    "theorem_3_rate",
    "theorem_3_uniform_bound",
    "weight_decay_limit",
]
