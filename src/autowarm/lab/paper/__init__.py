"""The paper's figures and tables, by name.

- `gallery`: the register of all figures, and those that need no sweep.      - `experiments`: figures made from sweeps.
- `smoothness`, `study`: curvature over the gap along runs.      - `costs`: what a run would need and take.
- `settings`: the paper's values, and how a run differs.
"""
