"""The paper's figures and tables, by name.

- `gallery`: the register of all figures, and those that need no sweep.      - `experiments`: figures made from sweeps.
- `smoothness`: curvature over the gap along runs.      - `costs`: estimates of a run's cost.
"""
