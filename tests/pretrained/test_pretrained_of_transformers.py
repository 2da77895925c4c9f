"""Every third family of transformers; `python -m studies.trained_weights` judges all of them for the page."""

import pytest

from autowarm.pretrained import detect
from studies.trained_weights.packages import NEW


@pytest.mark.long
def test_no_new_model_of_a_family_is_taken_for_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.auto import modeling_auto

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    families = list(modeling_auto.MODEL_MAPPING_NAMES.items())[::3]
    monkeypatch.setattr(modeling_auto, "MODEL_MAPPING_NAMES", dict(families))
    found = {name: detect(model) for name, model in NEW["transformers"]()}
    assert len(found) >= 66
    assert not [name for name, verdict in found.items() if verdict.trained]
