import sys
from pathlib import Path

import pytest
import torch

from autowarm import devices
from autowarm.optim.step import agreement

sys.path.insert(0, str(Path(__file__).parent))  # where fake_device is


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> object:
    """What stands in for `torch.cuda` where no GPU is."""
    from fake_device import Accelerator

    accelerator = Accelerator()
    monkeypatch.setattr(devices, "_module", lambda device: accelerator)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # The first step of several ranks reads what they agree on, and fake tensors have no values.
    monkeypatch.setattr(agreement, "read", lambda numbers: [0] * numbers.numel())
    return accelerator
