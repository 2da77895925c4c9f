"""Trains one run, from its config to its row of results.

- `setup`: network, optimizer, forward and backward.      - `loop`: the training loop.
- `optimizers`, `schedules`: make them from their configs.
- `parallel`: ranks, DDP, FSDP2.      - `checkpoint`: saving and resuming.
- `metrics`: a run's records.      - `sharpness`: the Hessian's largest eigenvalue.
"""
