"""Connects a rule to PyTorch.

- `scheduler`: the methods of `LRScheduler`, which drive a rule.
- `clock`: counts the updates that the optimizer made.
- `rates`: writes the groups' rates, and keeps what others multiply them by.
- `alarms`: warns and raises when something goes wrong.
"""
