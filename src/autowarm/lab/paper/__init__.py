"""The paper's figures and tables, by name.

- `gallery`: the register of all figures, and those that need no sweep.      - `experiments`: figures made from sweeps.
- `smoothness`: curvature over the gap along runs.      - `settings`: the paper's values, and how a run differs.
- `costs`: what a run would need and take.
"""
