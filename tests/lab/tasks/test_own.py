"""A user's own task in one run: what it may do, and that it resumes to the bit."""

import functools
import random
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autowarm.lab.config import EngineConfig
from autowarm.lab.registry import OPTIMIZERS, SCHEDULES
from autowarm.lab.tasks.own import pack
from autowarm.lab.training.stopping import Interrupted

from .own_runs import Line, run

Pair = namedtuple("Pair", "x y")


class GlobalGenerators(Line):
    """Draws from all three global generators, and keeps an order of samples over steps."""

    def batches(self, seed: int) -> Iterator[Any]:
        while True:
            order = torch.randperm(5)  # kept for five batches: what is drawn at one step decides later ones
            for index in order:
                noise = np.random.normal(size=(16, 4)) + random.random()  # noqa: NPY002
                yield torch.randn(16, 4) * (1 + index) + torch.from_numpy(noise).float()


class OwnGenerator(Line):
    def batches(self, seed: int) -> Iterator[Any]:
        draw = torch.Generator().manual_seed(seed)
        while True:
            yield torch.randn(16, 4, generator=draw)


class Loader(Line):
    def batches(self, seed: int) -> Iterator[Any]:
        rows = torch.arange(160.0).view(40, 4) / 100
        while True:
            yield from torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)


def weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "run" / "model.safetensors")


@pytest.mark.parametrize("task", [Line, GlobalGenerators, OwnGenerator, Loader])
def test_a_resumed_run_equals_a_straight_one(task: type, tmp_path: Path) -> None:
    straight = run(task(), tmp_path / "straight")
    for stop in (3, 7):
        with pytest.raises(Interrupted):
            run(task(), tmp_path / "resumed", lambda progress, at=stop: progress.step == at)
    torch.rand(3)  # a worker's generators are somewhere else when a run goes on
    np.random.rand(3)  # noqa: NPY002
    resumed = run(task(), tmp_path / "resumed")
    for key in ("val_loss", "train_loss", "first_loss"):
        assert resumed[key] == straight[key]
    a, b = weights(tmp_path / "straight"), weights(tmp_path / "resumed")
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_evaluations_along_the_way_leave_training_as_it_is(tmp_path: Path) -> None:
    from autowarm.lab.config import EngineConfig

    often = run(GlobalGenerators(), tmp_path / "often", engine=EngineConfig(eval_every=2))
    assert often["val_loss"] == run(GlobalGenerators(), tmp_path / "once")["val_loss"]


class Batches(Line):
    """Batches of any kind; the loss finds the tensor again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def wrapped(self, x: Tensor) -> Any:
        from transformers import BatchEncoding

        match self.kind:
            case "tuple":
                return x, x.sum(1)
            case "named":
                return Pair(x, x.sum(1))
            case "dict":
                return {"x": x, "names": ["a"] * len(x)}
            case "encoding":
                return BatchEncoding({"x": x})
            case _:
                return [{"x": row} for row in x]  # sample by sample, not collated

    def batches(self, seed: int) -> Iterator[Any]:
        while True:
            yield self.wrapped(torch.randn(16, 4))

    def validation(self) -> list[Any]:
        return [self.wrapped(torch.randn(32, 4))]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        match self.kind:
            case "tuple":
                x = batch[0]
            case "named":
                x = batch.x
            case "samples":
                x = torch.stack([sample["x"] for sample in batch])
            case _:
                x = batch["x"]
        return super().loss(model, x)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["tuple", "named", "dict", "encoding", "samples"])
def test_batches_of_every_kind_give_the_same_run(kind: str, precision: Any, tmp_path: Path) -> None:
    from autowarm.lab.config import EngineConfig

    engine = EngineConfig(precision=precision)
    found, plain = run(Batches(kind), tmp_path / "a", engine=engine), run(Line(), tmp_path / "b", engine=engine)
    assert found["val_loss"] == plain["val_loss"]


class Negative(Line):
    """A log-likelihood may be below zero, and fine-tuning may end above its first batch: neither is divergence."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) - 100.0


class Overfits(Line):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) * (1.0 if torch.is_grad_enabled() else 1e6)


@pytest.mark.parametrize("task", [Negative, Overfits])
def test_a_loss_of_any_sign_and_scale_is_a_result(task: type, tmp_path: Path) -> None:
    assert not run(task(), tmp_path)["diverged"]


class Explodes(Line):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) * (float("nan") if torch.is_grad_enabled() else 1.0)


def test_a_loss_that_is_not_finite_has_diverged(tmp_path: Path) -> None:
    found = run(Explodes(), tmp_path, kind="linear")
    assert found["diverged"]
    assert found["val_loss"] is None


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule(kind: str, tmp_path: Path) -> None:
    assert run(Line(), tmp_path, name="adamw", kind=kind)["val_loss"] > 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_the_lab(name: str, tmp_path: Path) -> None:
    assert run(Line(), tmp_path, name=name, kind="linear")["val_loss"] > 0


def test_frozen_weights_stay_and_evaluation_mode_is_for_evaluation(tmp_path: Path) -> None:
    class Frozen(Line):
        def model(self) -> nn.Module:
            model = super().model().eval()  # as `from_pretrained` leaves it
            model[0].requires_grad_(False)
            return model

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            assert model.training == torch.is_grad_enabled()
            return super().loss(model, batch)

    found = []
    for steps in (5, 12):
        run(Frozen(), tmp_path / str(steps), steps=steps)
        found.append(weights(tmp_path / str(steps)))
    assert torch.equal(found[0]["0.weight"], found[1]["0.weight"])
    assert not torch.equal(found[0]["3.weight"], found[1]["3.weight"])


class Rotated(Line):
    """Its model has complex numbers, as rotary embeddings do, and its data come from a function with a cache."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("turn", torch.polar(torch.ones(1), torch.tensor([0.5])))
        return model

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        assert model.turn.is_complex()  # type: ignore[operator]
        return super().loss(model, held() * batch)


@functools.lru_cache(maxsize=1)
def held() -> torch.Tensor:
    return torch.ones(4)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_complex_numbers_stay_complex(precision: Any, tmp_path: Path) -> None:
    assert run(Rotated(), tmp_path, engine=EngineConfig(precision=precision))["val_loss"] < 10


def test_a_function_with_a_cache_is_packed_with_its_code_and_an_empty_cache() -> None:
    held()
    packed = cloudpickle.loads(pack(Rotated()).content)
    theirs = packed.loss.__func__.__globals__["held"]
    assert theirs is not held
    assert theirs.cache_info()[:3] == (0, 0, 1)
    assert torch.equal(theirs(), held())
