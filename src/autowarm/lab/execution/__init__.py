"""Makes runs: the engine, and the workers that it gives them to.

- `engine`: a plan's runs, each made once → `results.json`.
- `pool`: jobs on this machine, one process per GPU or core.      - `cluster`: jobs on many machines, by Ray.
- `display`: progress on the screen.      - `compare`: schedules on your own task.      - `rate`: a range test.
"""
