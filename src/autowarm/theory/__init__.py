"""The paper's theory as code."""

from .constants import Smoothness
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
    "Smoothness",
    "constant_bound",
    "decay_only_bound",
    "decay_only_rate",
    "theorem_1_bound",
    "theorem_1_rate",
    "theorem_2_bound",
    "theorem_2_rate",
    "theorem_3_bound",
    "theorem_3_rate",
    "theorem_3_uniform_bound",
    "weight_decay_limit",
]
