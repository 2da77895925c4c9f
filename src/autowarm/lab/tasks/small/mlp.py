"""A classifier of digits."""

from torch import nn

from ..recipes import digits

TASK = digits(
    lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
)
