"""What a model or an optimizer keeps beside its weights: interrupted or evaluated on the way, a run ends with the same
bits, or a warning names what could not be kept."""

import copy
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from autowarm.lab.config import EngineConfig
from autowarm.lab.tasks.own import PackedTask, pack
from autowarm.lab.training.loop import train
from autowarm.lab.training.stopping import Interrupted

from ..helpers import stop_at
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
    """Keeps something under `kept`, changes it at every pass, and scales its input by it."""

    kept: Any

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.change, begin = KINDS[kind]
        begin(self)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
        return self.inner(x) * (1 + float(self.change(self)) / 100)


def buffer(value: Any, persistent: bool = True) -> Callable[[Keeps], None]:
    return lambda one: one.register_buffer("kept", copy.deepcopy(value), persistent=persistent)


def attribute(make: Callable[[], Any]) -> Callable[[Keeps], None]:
    return lambda one: setattr(one, "kept", make())


def put(one: Keeps, value: Any) -> None:
    one.kept = value


def nothing(one: Keeps) -> None:
    pass


def in_place(one: Keeps) -> float:
    one.kept += 1
    return abs(complex(one.kept.double().sum() if not one.kept.is_complex() else one.kept.sum()))


def replaced(one: Keeps) -> float:
    one.kept = one.kept + 1
    return float(one.kept.sum())


def grown(one: Keeps) -> int:
    one.kept = torch.cat([one.kept, torch.ones(1)])
    return len(one.kept)


def made(one: Keeps) -> float:
    one.kept = torch.ones(2) if one.kept is None else one.kept + 1
    return float(one.kept.sum())


def dropped(one: Keeps) -> float:
    if one.kept is not None:
        one.kept = None if one.passes >= 4 else one.kept + 1
    return 0.0 if one.kept is None else float(one.kept)


def late(persistent: bool) -> Callable[[Keeps], float]:
    def change(one: Keeps) -> float:
        if not hasattr(one, "kept"):
            one.register_buffer("kept", torch.zeros(()), persistent=persistent)
        return in_place(one)

    return change


def shared(one: Keeps) -> None:
    one.register_buffer("kept", torch.zeros(()), persistent=False)
    one.inner[0].register_buffer("same", one.kept, persistent=False)


def through_the_other(one: Keeps) -> float:
    one.inner[0].same += 1  # type: ignore[operator]
    return float(one.kept)


def wider(one: Keeps) -> float:
    one.kept = one.kept.double() + 1e-9
    return float(one.kept) * 1e9


def expanded(one: Keeps) -> float:
    one.kept = torch.full((1,), float(one.passes)).expand(3)
    return float(one.kept.sum())


def beside_a_weight(one: Keeps) -> None:
    one.register_buffer("kept", one.inner[0].weight.detach())


def grad_of(layer: int, at: int, on: bool) -> Callable[[Keeps], float]:
    def change(one: Keeps) -> float:
        if one.training and one.passes == at:
            one.inner[layer].requires_grad_(on)
        return 0.0

    return change


def by_turns(one: Keeps) -> float:
    if one.training:
        one.inner[0].weight.requires_grad_(not one.inner[0].weight.requires_grad)
    return 0.0


def mode_of(layer: int) -> Callable[[Keeps], float]:
    def change(one: Keeps) -> float:
        if one.training and one.passes == 4:
            one.inner[layer].eval()
        return 0.0

    return change


def with_extra(one: Keeps) -> None:
    one.inner.append(Extra())


def mutated(change: Callable[[Any], float]) -> Callable[[Keeps], float]:
    return lambda one: change(one.kept)


def item(kept: Any) -> float:
    kept["n"] = kept.get("n", 0) + 1
    return float(kept["n"])


def append(kept: Any) -> int:
    kept.append(1)
    return len(kept)


def add(kept: set[int]) -> int:
    kept.add(len(kept))
    return len(kept)


def add_in_array(kept: np.ndarray) -> float:
    kept += 1
    return float(kept.sum())


def add_value(kept: Any) -> float:
    kept.value += 1
    return float(kept.value)


def add_deeply(kept: Counts) -> int:
    kept.seen[0] += 1
    return kept.seen[0]


def swapped(one: Keeps) -> float:
    one.kept = torch.tanh if one.passes % 2 else torch.relu
    return float(one.kept(torch.tensor(3.0)))


def longer(one: Keeps) -> int:
    one.kept = one.kept + one.kept[:1]
    return len(one.kept)


# What changes it, and how it begins. Attributes cannot be saved; they are named.
KINDS: dict[str, tuple[Callable[[Keeps], float], Callable[[Keeps], None]]] = {
    "buffer": (in_place, buffer(torch.zeros(()))),
    "long": (in_place, buffer(torch.zeros(2, dtype=torch.long))),
    "complex": (in_place, buffer(torch.zeros(1, dtype=torch.complex64))),
    "bfloat16, not persistent": (in_place, buffer(torch.zeros(1, dtype=torch.bfloat16), False)),
    "not persistent": (in_place, buffer(torch.zeros(()), False)),
    "not persistent, replaced": (replaced, buffer(torch.zeros(3), False)),
    "replaced": (replaced, buffer(torch.zeros(3))),
    "grown": (grown, buffer(torch.zeros(0))),
    "not persistent, grown": (grown, buffer(torch.zeros(0), False)),
    "None at first": (made, buffer(None)),
    "not persistent, None at first": (made, buffer(None, False)),
    "dropped": (dropped, buffer(torch.zeros(()), False)),
    "late": (late(True), nothing),
    "not persistent, late": (late(False), nothing),
    "shared": (through_the_other, shared),
    "wider": (wider, buffer(torch.zeros(()), False)),
    "expanded": (expanded, buffer(torch.zeros(3), False)),
    "beside a weight": (lambda one: float(one.kept.sum()), beside_a_weight),
    "frozen on the way": (grad_of(0, 4, False), nothing),
    "thawed on the way": (grad_of(0, 4, True), lambda one: one.inner[0].requires_grad_(False) and None),
    "frozen by turns": (by_turns, nothing),
    "batch norm in evaluation mode": (mode_of(1), nothing),
    "dropout in evaluation mode": (mode_of(2), nothing),
    "extra state": (lambda one: 0.0, with_extra),
    "number": (lambda one: put(one, one.kept + 1) or one.kept, attribute(int)),
    "average": (lambda one: put(one, 0.9 * one.kept + 1) or one.kept, attribute(float)),
    "flag": (lambda one: put(one, not one.kept) or one.kept, attribute(bool)),
    "text": (longer, attribute(lambda: "a")),
    "pair": (longer, attribute(lambda: (1, 2))),
    "tensor": (lambda one: put(one, one.kept + 1) or one.kept, attribute(lambda: torch.zeros(()))),
    "tensor in place": (in_place, attribute(lambda: torch.zeros(()))),
    "list": (mutated(append), attribute(list)),
    "deque": (mutated(append), attribute(lambda: deque(maxlen=9))),
    "dict": (mutated(item), attribute(dict)),
    "ordered": (mutated(item), attribute(OrderedDict)),
    "counter": (mutated(item), attribute(Counter)),
    "set": (mutated(add), attribute(set)),
    "array": (mutated(add_in_array), attribute(lambda: np.zeros(2))),
    "object": (mutated(add_value), attribute(Number)),
    "deep object": (mutated(add_deeply), attribute(Counts)),
    "function": (swapped, attribute(lambda: torch.relu)),
    "Python's generator": (mutated(lambda kept: kept.random()), attribute(lambda: random.Random(0))),
    "NumPy's generator": (mutated(lambda kept: kept.random()), attribute(lambda: np.random.default_rng(0))),
    "PyTorch's generator": (
        mutated(lambda kept: float(torch.rand((), generator=kept))), attribute(lambda: torch.Generator().manual_seed(0))
    ),
}  # fmt: skip


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


def outcome(own: PackedTask, folder: Path, stops: tuple[int, ...] = (), **more: Any) -> tuple[dict[str, Tensor], str]:
    """The final weights, and all that the result warns of."""
    config = config_of(own, kind="linear", **more)
    for stop in stops:
        with pytest.raises(Interrupted):
            train(config, folder, stop_at(stop), own=own)
    result = train(config, folder, own=own)
    return load_file(folder / "model.safetensors"), "\n".join(result["warnings"])


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_or_evaluated_a_run_ends_with_the_same_bits_or_says_why_not(kind: str, tmp_path: Path) -> None:
    own = pack(Kept(kind))
    straight, said = outcome(own, tmp_path / "straight")
    resumed, lost = outcome(own, tmp_path / "resumed", (2, 5, 9))
    judged, changed = outcome(pack(Kept(kind, 3)), tmp_path / "judged", engine=EngineConfig(eval_every=2))
    saved = list(KINDS).index(kind) < list(KINDS).index("number")
    assert same(straight, resumed) if saved else "1.kept: not as when the run stopped" in lost
    assert (not said and not lost) or not saved
    assert same(straight, judged) or "1.kept: changed by an evaluation" in changed
    assert not changed or not saved


def test_the_counters_of_an_own_optimizer_are_kept_or_named(tmp_path: Path) -> None:
    own = pack(OwnOptimizer())
    straight, said = outcome(own, tmp_path / "straight", name="slower")
    _, lost = outcome(own, tmp_path / "resumed", (2, 5, 9), name="slower")
    often, _ = outcome(own, tmp_path / "often", name="slower", engine=EngineConfig(eval_every=2))
    assert same(straight, often)
    assert not said
    assert "the optimizer.updates: not as when the run stopped" in lost
