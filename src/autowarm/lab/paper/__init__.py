"""The paper's figures and tables, by name.

- `gallery`: figures that need no sweep, and the register of all.      - `experiments`: those made from sweeps.
- `smoothness`: curvature over the gap along runs.      - `costs`: what a run costs before it is made.
"""
