"""What a model or an optimizer keeps beside its weights: a checkpoint holds what `state_dict` holds, to the bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from autowarm.lab.config import EngineConfig, LabError
from autowarm.lab.tasks.own import pack

from ..helpers import resumed
from ..tasks.own_runs import Line, config_of


class Keeps(nn.Module):
    """Changes its buffer at every pass, and scales its input by what comes of it; see `KINDS`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        first, self.change, persistent = KINDS[kind]
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        if kind != "late":
            self.register_buffer("count", None if first is None else first.clone(), persistent)

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return self.inner(x) * (1 + abs(self.change(self)) / 100)

    def get_extra_state(self) -> int:
        return int(self.inner[0].weight.requires_grad)

    def set_extra_state(self, state: int) -> None:
        self.inner[0].requires_grad_(bool(state))


def up(module: Any) -> Any:
    module.count += 1
    return module.count.sum()


def replaced(module: Any) -> Any:
    module.count = module.count + 1
    return module.count.sum()


def grown(module: Any) -> Any:
    module.count = torch.cat([module.count, torch.ones(1)])
    return len(module.count)


def late(module: Any) -> Any:
    if not hasattr(module, "count"):
        module.register_buffer("count", torch.zeros(()))
    return up(module)


def dropped(module: Any) -> Any:
    module.count = None if module.count is None or module.passes >= 4 else module.count + 1
    return module.count or 0


def wider(module: Any) -> Any:
    module.count = module.count.double() + 1
    return module.count


def frozen_by_turns(module: Any) -> Any:
    if module.training:
        module.inner[0].requires_grad_(not module.inner[0].weight.requires_grad)
    return 0


# A buffer's first value, what changes it, and whether a `state_dict` holds it.
SAVED: dict[str, tuple[Tensor | None, Callable[[Any], Any], bool]] = {
    "long": (torch.zeros(2, dtype=torch.long), up, True),
    "complex": (torch.zeros(1, dtype=torch.complex64), up, True),
    "replaced": (torch.zeros(3), replaced, True),
    "extra state": (torch.zeros(()), frozen_by_turns, True),
}
REFUSED = {  # buffers that are not as in a new model
    "grown": (torch.zeros(0), grown, True),
    "dropped": (torch.zeros(()), dropped, True),
    "late": (None, late, True),
    "wider": (torch.zeros(()), wider, True),
}
UNSAVED = {"not persistent": (torch.zeros(0), grown, False)}  # but put back after an evaluation
KINDS = SAVED | REFUSED | UNSAVED


class Kept(Line):
    def __init__(self, kind: str, evaluations: int = 1) -> None:
        self.kind, self.evaluations = kind, evaluations

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Keeps(self.kind), nn.Linear(4, 1))

    def validation(self) -> list[Any]:
        return super().validation() * self.evaluations


class Slower(torch.optim.SGD):
    """Counts its updates in a group and in the states."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.param_groups[0]["updates"] = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.param_groups[0]["updates"] += 1
        for p in self.param_groups[0]["params"]:
            self.state[p]["number"] = self.state[p].get("number", 0) + 1
            if p.grad is not None:
                p.grad *= 1 + (self.param_groups[0]["updates"] + self.state[p]["number"]) / 10
        super().step(closure)


class OwnOptimizer(Line):
    optimizers = {"slower": lambda model, lr: Slower(model.parameters(), lr)}  # noqa: RUF012


def weights(task: Line, folder: Path, stops: tuple[int, ...] = (), **more: Any) -> dict[str, Tensor]:
    """The final weights of eight updates, of which the result warns of nothing."""
    own = pack(task)
    result = resumed(config_of(own, kind="linear", steps=8, **more), folder, *stops, own=own)
    assert result["warnings"] == []
    return load_file(folder / "model.safetensors")


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


OFTEN = EngineConfig(eval_every=2)


@pytest.mark.parametrize("kind", SAVED | UNSAVED)
def test_evaluated_and_interrupted_where_it_is_saved_a_run_ends_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    straight = weights(Kept(kind), tmp_path / "straight")
    stops = (2, 5) if kind in SAVED else ()
    assert same(straight, weights(Kept(kind, 3), tmp_path / "broken", stops, engine=OFTEN))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_buffer_that_a_new_model_does_not_have_so_is_named_and_not_guessed(kind: str, tmp_path: Path) -> None:
    with pytest.raises(
        LabError, match=r"1\.count: the checkpoint holds .*, and a new model .*: make it in the model's"
    ):
        weights(Kept(kind), tmp_path, (5,))


def test_the_counters_of_an_optimizer_of_ones_own_are_saved(tmp_path: Path) -> None:
    straight = weights(OwnOptimizer(), tmp_path / "straight", name="slower")
    assert same(straight, weights(OwnOptimizer(), tmp_path / "broken", (2, 5), name="slower", engine=OFTEN))
