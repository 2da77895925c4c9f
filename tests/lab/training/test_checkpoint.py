import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from autowarm.lab.config import LabError
from autowarm.lab.files import claim
from autowarm.lab.training.checkpoint import SCHEMA, Checkpoints

from ..helpers import ALONE, contents, trained


def strided(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Tensors of any strides, two in one place."""
    torch.manual_seed(seed)
    layers = torch.nn.Conv2d(3, 4, 2), torch.nn.Flatten(), torch.nn.Linear(16, 5)
    model = torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)
    model.register_buffer("same", model[2].weight.detach())
    assert not model[0].weight.is_contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(2, 3, 3, 3)).square().mean().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("make", [lambda seed: trained(3 * (not seed), seed), strided], ids=["buffers", "strides"])
def test_weights_buffers_and_states_come_back_to_the_bit(make: Any, tmp_path: Path) -> None:
    def state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
        states = optimizer.state_dict()["state"]
        flat = {(index, name): value for index, values in states.items() for name, value in values.items()}
        return copy.deepcopy(model.state_dict() | flat)

    model, optimizer = make(0)
    before = state(model, optimizer)
    Checkpoints(tmp_path, ALONE).save(3, model, optimizer, {"note": 7})
    other, its_optimizer = make(1)
    rest = Checkpoints(tmp_path, ALONE).load(other, its_optimizer)
    assert rest["note"] == 7
    torch.testing.assert_close(state(other, its_optimizer), before, rtol=0, atol=0)
    assert its_optimizer.param_groups[0]["lr"] == 0.01


def test_what_a_new_model_lacks_is_named(tmp_path: Path) -> None:
    model, other = (torch.nn.Sequential(torch.nn.Linear(3, 2)) for _ in range(2))
    model[0].later = torch.nn.Parameter(torch.ones(2))
    Checkpoints(tmp_path, ALONE).save(1, model, torch.optim.AdamW(model.parameters()), {})
    message = r"0\.later: the checkpoint holds torch.float32 of shape \(2,\), and a new model none: "
    with pytest.raises(LabError, match=message):
        Checkpoints(tmp_path, ALONE).load(other, torch.optim.AdamW(other.parameters()))


def test_only_the_newest_are_kept_and_a_crash_leaves_nothing_that_counts(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    checkpoints = Checkpoints(tmp_path, ALONE, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, model, optimizer, {"step": step})
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-00000002", "checkpoint-00000003"]
    claim(tmp_path / ".checkpoint-00000004")
    again = Checkpoints(tmp_path, ALONE)
    assert not list(tmp_path.glob(".*"))
    rest = again.load(model, optimizer)
    assert rest["step"] == 3


def test_a_checkpoint_of_another_schema_is_refused_by_its_number_and_left_alone(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    Checkpoints(tmp_path, ALONE).save(1, model, optimizer, {})
    manifest = tmp_path / "checkpoint-00000001" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": SCHEMA + 1}))
    before = contents(tmp_path)
    with pytest.raises(LabError, match=rf"checkpoint-00000001 has schema {SCHEMA + 1}, this version reads {SCHEMA}"):
        Checkpoints(tmp_path, ALONE).load(model, optimizer)
    assert contents(tmp_path) == before
