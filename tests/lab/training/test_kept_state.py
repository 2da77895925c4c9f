"""What a model or an optimizer keeps beside its weights: a checkpoint holds what `state_dict` holds, to the bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from autowarm.lab.config import EngineConfig, LabError
from autowarm.lab.tasks.own import pack

from ..helpers import resumed
from ..tasks.own_runs import Line, config_of


class Buffer(NamedTuple):
    """A buffer that a model has from the start, what a pass makes of it, and whether a `state_dict` holds it."""

    first: Tensor | None
    change: Callable[[Any], Tensor]
    persistent: bool = True


SAVED = {
    "long": Buffer(torch.zeros(2, dtype=torch.long), lambda count: count.add_(1)),
    "complex": Buffer(torch.zeros(1, dtype=torch.complex64), lambda count: count.add_(1)),
    "replaced": Buffer(torch.zeros(3), lambda count: count + 1),
}
REFUSED = {  # buffers that are not as in a new model
    "grown": Buffer(torch.zeros(0), lambda count: torch.cat([count, torch.ones(1)])),
    "wider": Buffer(torch.zeros(1), lambda count: count.double() + 1),
    "late": Buffer(None, lambda count: torch.ones(1) if count is None else count + 1),
}
UNSAVED = {"not persistent": REFUSED["grown"]._replace(persistent=False)}  # but put back after an evaluation
BUFFERS = SAVED | REFUSED | UNSAVED


class Counts(nn.Module):
    """Changes its buffer at every pass, and scales its input by what comes of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        first, self.change, persistent = BUFFERS[kind]
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.register_buffer("count", None if first is None else first.clone(), persistent)

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.change(self.count)
        return self.inner(x) * (1 + abs(self.count.sum()) / 100)


class Counting(Line):
    def __init__(self, kind: str, evaluations: int = 1) -> None:
        self.kind, self.evaluations = kind, evaluations

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Counts(self.kind), nn.Linear(4, 1))

    def validation(self) -> list[Any]:
        return super().validation() * self.evaluations


def weights(task: Line, folder: Path, stops: tuple[int, ...] = (), **more: Any) -> dict[str, Tensor]:
    """The final weights of eight updates, of which the result warns of nothing."""
    own = pack(task)
    result = resumed(config_of(own, kind="linear", steps=8, **more), folder, *stops, own=own)
    assert result["warnings"] == []
    return load_file(folder / "model.safetensors")


OFTEN = EngineConfig(eval_every=2)


@pytest.mark.parametrize("kind", SAVED | UNSAVED)
def test_evaluated_and_interrupted_where_it_is_saved_a_run_ends_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    straight = weights(Counting(kind), tmp_path / "straight")
    again = weights(Counting(kind, 3), tmp_path / "again", (2, 5) if kind in SAVED else (), engine=OFTEN)
    torch.testing.assert_close(again, straight, rtol=0, atol=0)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_buffer_that_a_new_model_does_not_have_so_is_named_and_not_guessed(kind: str, tmp_path: Path) -> None:
    words = r"1\.count: the checkpoint holds .*, and a new model .*: make it in the model's"
    with pytest.raises(LabError, match=words):
        weights(Counting(kind), tmp_path, (5,))
