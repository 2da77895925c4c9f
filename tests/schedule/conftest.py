import sys
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  # which the first step of an optimizer imports

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of these runs give a schedule losses and an optimizer no gradients, of which a user would be warned."""
    monkeypatch.setattr("autowarm.optim.unused.Unused.look", lambda *_, **__: None)
