import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # where fake_device is


@pytest.fixture
def accelerator() -> Iterator[object]:
    """What stands in for `torch.cuda` where no GPU is."""
    from fake_device import standing_in

    with standing_in() as accelerator:
        yield accelerator
