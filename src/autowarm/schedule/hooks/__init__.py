"""What a scheduler holds on to in PyTorch.

- `clock`: counts the updates that the optimizer made.
- `groups`: writes the groups' rates, and keeps what others multiply them by.
- `others`: finds other schedulers of the same optimizer.
- `alarms`: warns and raises when something goes wrong.
"""
