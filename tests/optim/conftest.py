from collections.abc import Iterator

import pytest


@pytest.fixture
def accelerator() -> Iterator[object]:
    """What stands in for `torch.cuda` where no GPU is."""
    from tests.optim.fake_device import standing_in

    with standing_in() as accelerator:
        yield accelerator
