"""Where runs are made: the engine, and the workers it hands them to.

- `engine`: a plan's runs, each made once → `results.json`.
- `pool`: jobs on this machine, one process per GPU or core.      - `cluster`: jobs on many machines, by Ray.
- `display`: what they look like meanwhile.      - `compare`: schedules on your own task.      - `rate`: a range test.
"""
