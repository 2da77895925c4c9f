"""One run: from a config to rows.

- `setup`: network, optimizer, forward and backward.      - `loop`: the training loop.
- `identity`: a run's id.
- `optimizers`, `schedules`: from their configs.
- `parallel`: ranks, DDP, FSDP2.      - `checkpoint`: what a run goes on from.
- `metrics`: what it notes.      - `stopping`: Ctrl-C and SIGTERM.
"""
