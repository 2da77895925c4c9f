import pytest
import torch._dynamo  # noqa: F401  # which the first step of an optimizer imports


@pytest.fixture(autouse=True)
def _without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of these runs give a schedule losses and an optimizer no gradients, of which a user would be warned."""
    monkeypatch.setattr("autowarm.optim.unused.Unused.look", lambda *_, **__: None)
