"""Makes runs: the engine, and the workers to which it gives them.

- `engine`: makes each run of a plan once and writes `results.json`.
- `pool`: runs jobs on this machine, one process per GPU or core.      - `cluster`: runs jobs on many machines, by Ray.
- `display`: shows progress on the screen.
"""
