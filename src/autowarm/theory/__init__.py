"""The paper's theory as code: constants, rates and bounds, problems that satisfy the assumptions, and checks.

- `Smoothness`: the constants of Assumption 2, Δ′ and λ_max, and the lemma that derives them from gradient norms.
- `theorem_1_rate`, `theorem_1_bound`, …: the theorems' formulas, for numbers or arrays (`autowarm.theory.rates` lists
  them in a table).
- `Problem`, `Family`: what a function of your own needs for the runs and the checks. `CompositeProblem`, `FiniteSum`,
  `catalogue`: star-convex functions with proved constants (`autowarm.theory.problems` has the proofs).
  `smoothness_ratio` and `largest_smoothness_ratio` test the constants numerically.
- `descend`: runs the theorems' method with any rate. `check_theorem_1`, …: check every claim of a theorem at every step
  (`autowarm.theory.verify` says what the proofs need).
"""

from .constants import Smoothness
from .families import FiniteSum, regression_family
from .pairs import largest_smoothness_ratio, smoothness_ratio
from .problems import EXPONENTIAL, LINEAR, CompositeProblem, Outer, barrier, catalogue
from .protocols import Family, Function, Problem
from .rates import (
    decay_only_rate,
    theorem_1_bound,
    theorem_1_rate,
    theorem_2_bound,
    theorem_2_rate,
    theorem_3_bound,
    theorem_3_uniform_bound,
    weight_decay_limit,
)
from .runs import Run, descend
from .verify import (
    ClaimViolated,
    check_decay_only,
    check_theorem_1,
    check_theorem_2,
    check_theorem_3,
)

__all__ = [
    "EXPONENTIAL", "LINEAR", "ClaimViolated", "CompositeProblem", "Family", "FiniteSum", "Function", "Outer",
    "Problem", "Run", "Smoothness", "barrier", "catalogue", "check_decay_only", "check_theorem_1", "check_theorem_2",
    "check_theorem_3", "decay_only_rate", "descend", "largest_smoothness_ratio",
    "regression_family", "smoothness_ratio", "theorem_1_bound", "theorem_1_rate", "theorem_2_bound", "theorem_2_rate",
    "theorem_3_bound", "theorem_3_uniform_bound", "weight_decay_limit"
]  # fmt: skip
