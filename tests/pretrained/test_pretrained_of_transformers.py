"""The families of transformers, in a file of its own because it takes as long as all others: files run side by side."""

import pytest

from autowarm.pretrained import detect
from studies.trained_weights.packages import NEW


@pytest.mark.long
def test_no_new_model_of_any_family_is_taken_for_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = {name: detect(model) for name, model in NEW["transformers"]()}
    assert len(found) >= 200
    assert not [name for name, verdict in found.items() if verdict.trained]
