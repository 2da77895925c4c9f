"""The paper's figures and tables, by name.

- `gallery`: the register of all figures, and those that need no sweep.      - `experiments`: figures made from sweeps.
- `smoothness`: curvature over the gap along runs.      - `costs`, `dry_run`: what a run needs and takes, before it starts.
"""
