"""What a model or an optimizer keeps beside its weights: interrupted or evaluated on the way, a run ends with the same
bits, or a message names what could not be kept."""

import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from autowarm.lab.config import EngineConfig, LabError
from autowarm.lab.tasks.own import pack
from autowarm.lab.training.checkpoint import attributes
from autowarm.lab.training.optimizers import unchanged
from tests.cases import each

from ..helpers import resumed
from ..tasks.own_runs import Line, config_of


@dataclass
class Number:
    value: float = 0.0


class Counts:
    def __init__(self) -> None:
        self.seen = [0]


class Extra(nn.Module):
    count = 0

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        self.count = state

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * (1 + self.count / 100)


class Keeps(nn.Module):
    """Keeps something under `kept`, changes it at every pass, and scales its input by what comes of it; see `KINDS`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        begins, self.change = KINDS[kind]
        exec(begins, {**NAMES, "one": self})

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        found = {**NAMES, "one": self}
        exec(self.change, found)
        return self.inner(x) * (1 + abs(complex(found.get("x", 0))) / 100)


def buffer(value: str, persistent: bool = True) -> str:
    return f"one.register_buffer('kept', {value}, {persistent})"


UP, REPLACED = "one.kept += 1; x = one.kept.sum()", "one.kept = one.kept + 1; x = one.kept.sum()"
GROWN = "one.kept = torch.cat([one.kept, torch.ones(1)]); x = len(one.kept)"
MADE = "one.kept = torch.ones(2) if one.kept is None else one.kept + 1; x = one.kept.sum()"
DROPPED = "one.kept = None if one.kept is None or one.passes >= 4 else one.kept + 1; x = one.kept or 0"
TURNS = "if one.training: one.inner[0].weight.requires_grad_(not one.inner[0].weight.requires_grad)"
FOURTH = "one.training and one.passes == 4 and one.inner"
FUNCTION = "one.kept = torch.tanh if one.passes % 2 else torch.relu; x = one.kept(torch.tensor(3.0))"
# How it begins, and what changes it.
SAVED = {
    "buffer": (buffer("torch.zeros(())"), UP),
    "long": (buffer("torch.zeros(2, dtype=torch.long)"), UP),
    "complex": (buffer("torch.zeros(1, dtype=torch.complex64)"), UP),
    "replaced": (buffer("torch.zeros(3)"), REPLACED),
    "beside a weight": (buffer("one.inner[0].weight.detach()"), "x = one.kept.sum()"),
    "extra state": ("one.inner.append(Extra())", ""),
}
# Persistent buffers that are not as in a new model.
REFUSED = {
    "grown": (buffer("torch.zeros(0)"), GROWN),
    "None at first": (buffer("None"), MADE),
    "dropped": (buffer("torch.zeros(())"), DROPPED),
    "late": ("", f"hasattr(one, 'kept') or {buffer('torch.zeros(())')}; {UP}"),
    "wider": (buffer("torch.zeros(())"), "one.kept = one.kept.double() + 1; x = one.kept"),
}
# What no `state_dict` holds; an evaluation puts it back.
UNSAVED = {
    "not persistent, grown": (buffer("torch.zeros(0)", False), GROWN),
    "not persistent, late": ("", f"hasattr(one, 'kept') or {buffer('torch.zeros(())', False)}; {UP}"),
    "frozen by turns": ("", TURNS),
    "dropout in evaluation mode": ("", f"{FOURTH}[2].eval()"),
}
# Attributes cannot be saved; they are named.
NAMED = {
    "number": ("one.kept = 0", "one.kept += 1; x = one.kept"),
    "text": ("one.kept = 'a'", "one.kept += one.kept[:1]; x = len(one.kept)"),
    "pair": ("one.kept = 1, 2", "one.kept += one.kept[:1]; x = len(one.kept)"),
    "tensor": ("one.kept = torch.zeros(())", REPLACED),
    "tensor in place": ("one.kept = torch.zeros(())", UP),
    "list": ("one.kept = []", "one.kept.append(1); x = len(one.kept)"),
    "deque": ("one.kept = deque(maxlen=9)", "one.kept.append(1); x = len(one.kept)"),
    "dict": ("one.kept = {}", "one.kept['n'] = x = one.kept.get('n', 0) + 1"),
    "set": ("one.kept = set()", "one.kept.add(len(one.kept)); x = len(one.kept)"),
    "array": ("one.kept = np.zeros(2)", UP),
    "object": ("one.kept = Number()", "one.kept.value += 1; x = one.kept.value"),
    "deep object": ("one.kept = Counts()", "one.kept.seen[0] += 1; x = one.kept.seen[0]"),
    "function": ("one.kept = torch.relu", FUNCTION),
    "Python's generator": ("one.kept = random.Random(0)", "x = one.kept.random()"),
    "NumPy's generator": ("one.kept = np.random.default_rng(0)", "x = one.kept.random()"),
    "PyTorch's generator": ("one.kept = torch.Generator().manual_seed(0)", "x = torch.rand((), generator=one.kept)"),
}
KINDS = SAVED | REFUSED | UNSAVED | NAMED
NAMES = {"torch": torch, "np": np, "random": random, "deque": deque, "Number": Number, "Counts": Counts, "Extra": Extra}


class Kept(Line):
    def __init__(self, kind: str, judged: int = 1) -> None:
        self.kind, self.judged = kind, judged

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Keeps(self.kind), nn.Linear(4, 1))

    def validation(self) -> list[Any]:
        return super().validation() * self.judged


class Slower(torch.optim.SGD):
    """Counts its updates in an attribute, a group, and the states."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.updates = self.param_groups[0]["updates"] = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.updates += 1
        self.param_groups[0]["updates"] += 1
        for p in self.param_groups[0]["params"]:
            self.state[p]["number"] = self.state[p].get("number", 0) + 1
            if p.grad is not None:
                p.grad *= 1 + (self.updates + self.param_groups[0]["updates"] + self.state[p]["number"]) / 10
        super().step(closure)


class OwnOptimizer(Line):
    optimizers = {"slower": lambda model, lr: Slower(model.parameters(), lr)}  # noqa: RUF012


def outcome(task: Line, folder: Path, stops: tuple[int, ...] = (), **more: Any) -> tuple[dict[str, Tensor], str]:
    """The final weights of eight updates, and all that the result warns of."""
    own = pack(task)
    config = config_of(own, kind="linear", steps=8, **more)
    result = resumed(config, folder, *stops, own=own)
    return load_file(folder / "model.safetensors"), "\n".join(result["warnings"])


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


OFTEN = EngineConfig(eval_every=2)


@pytest.mark.parametrize("kind", SAVED | UNSAVED)
def test_evaluated_and_interrupted_where_it_is_saved_a_run_ends_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    straight, said = outcome(Kept(kind), tmp_path / "straight")
    broken, lost = outcome(Kept(kind, 3), tmp_path / "broken", (2, 5) if kind in SAVED else (), engine=OFTEN)
    assert same(straight, broken)
    assert (said, lost) == ("", "")


@pytest.mark.parametrize("kind", REFUSED)
def test_a_buffer_that_a_new_model_does_not_have_so_is_named_and_not_guessed(kind: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"1\.kept: the checkpoint holds .*, and a new model .*: make it in the model's"):
        outcome(Kept(kind), tmp_path, (5,))


@each("kind", NAMED)
def test_an_attribute_that_a_pass_changes_is_seen_and_put_back_after_an_evaluation_or_seen_there(kind: str) -> None:
    def run(judged: bool) -> tuple[Tensor, bool, bool]:
        torch.manual_seed(0)
        model, x = nn.Sequential(Keeps(kind)), torch.randn(8, 4)
        optimizer = torch.optim.SGD(model.parameters())
        before = attributes(model, optimizer)
        model(x)
        between = attributes(model, optimizer)
        if judged:
            with unchanged(model):
                model(x)
        after = attributes(model, optimizer)
        return model(x), before != between, between != after

    (plain, changes, _), (judged, _, seen) = run(False), run(True)
    assert changes
    assert torch.equal(plain, judged) or seen


def test_attributes_that_were_lost_are_named(tmp_path: Path) -> None:
    _, lost = outcome(Kept("deep object", 3), tmp_path / "broken", (2, 5), engine=OFTEN)
    assert "1.kept: not as when the run stopped" in lost
    assert "1.kept: changed by an evaluation" in lost


def test_the_counters_of_an_own_optimizer_are_kept_or_named(tmp_path: Path) -> None:
    straight, said = outcome(OwnOptimizer(), tmp_path / "straight", name="slower")
    _, lost = outcome(OwnOptimizer(), tmp_path / "resumed", (2, 5), name="slower")
    often, _ = outcome(OwnOptimizer(), tmp_path / "often", name="slower", engine=OFTEN)
    assert same(straight, often)
    assert not said
    assert "the optimizer.updates: not as when the run stopped" in lost
