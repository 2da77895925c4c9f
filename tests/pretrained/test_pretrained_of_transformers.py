"""Every sixth family of transformers, the others in `make random`; `python -m studies.trained_weights` shows all."""

import pytest

from autowarm.pretrained import detect
from studies.trained_weights.packages import NEW

PARTS = 6


@pytest.mark.long
@pytest.mark.parametrize("part", [pytest.param(n, marks=[pytest.mark.generated] if n else []) for n in range(PARTS)])
def test_no_new_model_of_a_family_is_taken_for_trained(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.auto import modeling_auto

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    families = list(modeling_auto.MODEL_MAPPING_NAMES.items())[part::PARTS]
    monkeypatch.setattr(modeling_auto, "MODEL_MAPPING_NAMES", dict(families))
    found = {name: detect(model) for name, model in NEW["transformers"]()}
    assert len(found) >= 66
    assert not [name for name, verdict in found.items() if verdict.trained]
