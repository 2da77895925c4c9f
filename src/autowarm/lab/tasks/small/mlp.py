"""A classifier of digits."""

from torch import nn

from ..recipes import digits


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


TASK = digits(_mlp)
