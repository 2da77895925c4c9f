"""A user's own task in one run: what it may do, that it resumes to the bit, prepares once, and is known again."""

import functools
import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autowarm.lab.config import EngineConfig, RunConfig
from autowarm.lab.processes import Interrupted
from autowarm.lab.tasks import Task
from autowarm.lab.tasks.own import pack
from autowarm.lab.training.loop import train

from .own_runs import Line, config_of, run

Pair = namedtuple("Pair", "x y")


class GlobalGenerators(Line):
    """Draws from all three global generators, and keeps an order of samples over steps."""

    def batches(self, seed: int) -> Iterator[Any]:
        while True:
            order = torch.randperm(5)  # kept for five batches: what is drawn at one step decides later ones
            for index in order:
                noise = np.random.normal(size=(16, 4)) + random.random()  # noqa: NPY002
                yield torch.randn(16, 4) * (1 + index) + torch.from_numpy(noise).float()


def weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "run" / "model.safetensors")


def test_a_run_that_is_evaluated_and_resumed_equals_a_straight_one(tmp_path: Path) -> None:
    task = GlobalGenerators
    straight, often = run(task(), tmp_path / "straight"), EngineConfig(eval_every=2)
    with pytest.raises(Interrupted):
        run(task(), tmp_path / "resumed", lambda progress: progress.step == 7, engine=often)
    torch.rand(3)  # a worker's generators are somewhere else when a run goes on
    np.random.rand(3)  # noqa: NPY002
    resumed = run(task(), tmp_path / "resumed", engine=often)
    for key in ("val_loss", "train_loss", "first_loss"):
        assert resumed[key] == straight[key]
    a, b = weights(tmp_path / "straight"), weights(tmp_path / "resumed")
    assert all(torch.equal(a[key], b[key]) for key in a)


# How it is made of a tensor, and where the tensor is in it.
BATCHES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda x: (x, x.sum(1)), lambda batch: batch[0]),
    "named": (lambda x: Pair(x, x.sum(1)), lambda batch: batch.x),
    "dict": (lambda x: {"x": x, "names": ["a"] * len(x)}, lambda batch: batch["x"]),
    "samples, not collated": (lambda x: [{"x": row} for row in x], lambda batch: torch.stack([y["x"] for y in batch])),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_batches_of_every_kind_are_moved_and_converted_and_stay_of_their_kind(kind: str) -> None:
    task, (make, tensor) = Task(Line(), RunConfig(), "line", file=__file__), BATCHES[kind]
    x = torch.randn(16, 4)
    [batch] = task.pieces(given := make(x), torch.device("cpu"), 1, torch.float64)
    assert type(batch) is type(given)
    assert tensor(batch).dtype == torch.float64
    assert torch.equal(tensor(batch), x.double())
    assert torch.equal(tensor(given), x)  # which the task may use again


def test_frozen_weights_stay_and_evaluation_mode_is_for_evaluation(tmp_path: Path) -> None:
    class Frozen(Line):
        def model(self) -> nn.Module:
            model = super().model().eval()  # as `from_pretrained` leaves it
            model[0].requires_grad_(False)
            return model

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            assert model.training == torch.is_grad_enabled()
            return super().loss(model, batch)

    actual = []
    for steps in (5, 12):
        run(Frozen(), tmp_path / str(steps), steps=steps)
        actual.append(weights(tmp_path / str(steps)))
    assert torch.equal(actual[0]["0.weight"], actual[1]["0.weight"])
    assert not torch.equal(actual[0]["3.weight"], actual[1]["3.weight"])


@functools.lru_cache(maxsize=1)
def ones() -> Tensor:
    return torch.ones(4)


class Cached(Line):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, ones() * batch)


def test_a_function_with_a_cache_is_packed_with_its_code_and_an_empty_cache() -> None:
    ones()
    packed = cloudpickle.loads(pack(Cached()).content).loss.__func__.__globals__["ones"]
    assert packed.cache_info()[:3] == (0, 0, 1)
    assert torch.equal(packed(), ones())


class Prepared(Line):
    def prepare(self, folder: Path) -> None:
        self.forgotten = True  # on a copy: only files stay
        (folder / "calls").open("a").write("x")
        torch.save(torch.rand(3), folder / "weights.pt")

    def model(self) -> nn.Module:
        assert not hasattr(self, "forgotten")
        assert torch.load(self.folder / "weights.pt").shape == (3,)  # type: ignore[attr-defined]
        return super().model()


def test_prepare_is_called_once_and_its_folder_stays(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first, again = (pack(Prepared()).prepared(tmp_path) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first.folder == again.folder
    assert (first.folder / "calls").read_text() == "x"
    assert train(config_of(first), tmp_path / "run", own=first)["val_loss"] > 0


def test_a_prepare_that_was_cut_off_is_called_again(tmp_path: Path) -> None:
    folder = pack(Prepared()).prepared(tmp_path).folder
    (folder / ".prepared").unlink()
    (folder / "half").write_text("")
    assert pack(Prepared()).prepared(tmp_path).folder == folder
    assert not (folder / "half").exists()


def test_packing_leaves_the_task_as_it_was() -> None:
    task = Prepared()
    assert pack(task).sha256 == pack(task).sha256 == pack(Prepared()).sha256
    assert vars(task) == {}
