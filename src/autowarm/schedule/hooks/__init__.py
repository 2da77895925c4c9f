"""A rule in PyTorch's hooks.

- `scheduler`: `LRScheduler`'s own methods around a rule.      - `clock`: time, in updates the optimizer made.
- `rates`: the groups' rates, and what others do to them.      - `alarms`: what is said when something goes wrong.
"""
