"""The paper's theory as code: constants, rates and bounds, problems that satisfy the assumptions, and checks.

- `Smoothness`: the constants of Assumption 2, Δ′ and λ_max, and the lemma that derives them from gradient norms.
- `theorem_1_rate`, `theorem_1_bound`, …: the theorems' formulas, for numbers or arrays (`autowarm.theory.rates` lists
  them in a table).
- `CompositeProblem`, `FiniteSum`, `catalogue`: star-convex functions with proved constants (`autowarm.theory.problems`
  has the proofs).
- `descend`: runs the theorems' method with any rate. `check_theorem_1`, …: check every claim of a theorem at every step
  (`autowarm.theory.verify` says what the proofs need).
"""

from .constants import Smoothness
from .families import FiniteSum, regression_family
from .problems import LINEAR, CompositeProblem, Outer, barrier, catalogue
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
from .verify import ClaimViolated, check_decay_only, check_theorem_1, check_theorem_2, check_theorem_3

__all__ = [
    "LINEAR", "ClaimViolated", "CompositeProblem", "FiniteSum", "Outer", "Run", "Smoothness", "barrier", "catalogue",
    "check_decay_only", "check_theorem_1", "check_theorem_2", "check_theorem_3", "decay_only_rate", "descend",
    "regression_family", "theorem_1_bound", "theorem_1_rate", "theorem_2_bound", "theorem_2_rate", "theorem_3_bound",
    "theorem_3_uniform_bound", "weight_decay_limit",
]  # fmt: skip
