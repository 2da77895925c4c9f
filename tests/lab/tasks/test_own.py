"""A user's own task in one run: what it may do, what is said of a mistake, and that it resumes to the bit."""

import os
import random
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autowarm.lab.config import LabError, OptimizerConfig, Point, RunConfig, ScheduleConfig, UsageError
from autowarm.lab.execution.engine import Planned
from autowarm.lab.registry import OPTIMIZERS as LABS
from autowarm.lab.registry import SCHEDULES
from autowarm.lab.tasks.own import PackedTask, load, pack
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import Progress
from autowarm.lab.training.stopping import Interrupted

Pair = namedtuple("Pair", "x y")


class Line:
    """What every task below starts from; batches draw from PyTorch's global generator."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def batches(self, seed: int) -> Iterator[Any]:
        while True:
            yield torch.randn(16, 4)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

    def validation(self) -> list[Any]:
        return [torch.randn(32, 4)]


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


def config_of(own: PackedTask, name: str = "adamw", kind: Any = "adaptive", **more: Any) -> RunConfig:
    return RunConfig(
        task=own.key, optimizer=OptimizerConfig(name=name, lr=0.01, weight_decay=0.0),
        schedule=ScheduleConfig(kind, 3 if kind == "linear" else None, target_loss=0.0 if kind == "paper" else None),
        **{"steps": 12, "clip": 0.0, "checkpoint_every": 5, **more},
    )  # fmt: skip


def run(task: Any, folder: Path, on_step: Callable[[Progress], bool] | None = None, **more: Any) -> dict[str, Any]:
    """One run as the engine makes it."""
    own = pack(task, folder / "task")
    planned = Planned(Point("run", config_of(own, **more)), "id", folder / "run", own)
    return planned.job().call(on_step or (lambda progress: False))


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
    assert run(Line(), tmp_path, kind=kind)["val_loss"] > 0


@pytest.mark.parametrize("name", LABS)
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


# --- mistakes --------------------------------------------------------------------------------------------------------

BEGINNING = """import torch
class Task:
    def model(self):
        return torch.nn.Linear(4, 1)
    def batches(self, seed):
        while True:
            yield torch.randn(16, 4)
    def loss(self, model, batch):
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    def validation(self):
        return [torch.randn(32, 4)]
"""
# What the file says, and what is said of it: the line in the file, and the remedy or the reason.
LOSS, SQUARE, LINEAR = "        return (model(batch)", "square().mean()", "return torch.nn.Linear(4, 1)"
DRAW, SCORES = "yield torch.randn(16, 4)", "    def scores(self, model, batch):\n        return {'a': [1, 2]}\n"
SEVENTH = "        self.n = getattr(self, 'n', 0) + model.training\n        1 / (self.n - 7)\n"
VALIDATION = "return [torch.randn(32, 4)]"
MISTAKES = {
    "loss is not scalar": (SQUARE, "square()", ":8: loss() must return a one-element tensor, got a tensor of shape"),
    "loss is detached": (SQUARE, "square().mean().detach()", ":8: loss() returned a tensor without a gradient"),
    "loss is a number": (SQUARE, "square().mean().item()", ":8: loss() must return a one-element tensor, got a float"),
    "loss is nothing": (LOSS, LOSS.replace("return ", ""), ":8: loss() must return a one-element tensor, got a None"),
    "exception in loss": (LOSS, SEVENTH + LOSS, ":10: in loss at step 7: ZeroDivisionError: division by zero"),
    "sys.exit": (LOSS, f"        raise SystemExit('enough')\n{LOSS}", ":9: in loss of a validation batch: SystemExit"),
    "exception in forward": ("Linear(4, 1)", "Linear(5, 1)", ":9: in loss of a validation batch: RuntimeError"),
    "exception in backward": (SQUARE, f"{SQUARE} * Broken.apply(model(batch)).mean()",
                              ":18: in training: RuntimeError: no way back"),
    "exception in model": (LINEAR, LINEAR.replace("1)", "'x')"), ":4: in model: TypeError"),
    "model is a class": (LINEAR, "return torch.nn.Linear", ":3: model() must return a torch.nn.Module, got a type"),
    "too few batches": ("while True", "for _ in range(7)",
                        ":5: batches() ended after 7 batches and the run has 12 steps: repeat them, or set run.steps"),
    "exception in batches": (DRAW, "yield torch.randn(16, '4')", ":7: in batches at step 1: TypeError"),
    "no validation": (VALIDATION, "return []", ":10: validation() gave no batch: it needs one or more"),
    "exception in validation": (VALIDATION, "return open('nowhere')", ":11: in validation: FileNotFoundError"),
    "scores are lists": ("    def validation", f"{SCORES}    def validation",
                         ":10: scores() must return a number for each name, got 'a': a tensor of shape (2,)"),
    # These go wrong in the call, so no line of the file is at fault by itself.
    "batches takes no seed": ("batches(self, seed)", "batches(self)", ": in batches: TypeError: Task.batches() takes"),
    "validation is None": (VALIDATION, "pass", ": in validation: TypeError: 'NoneType' object is not iterable"),
}  # fmt: skip
ENDING = """class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone().requires_grad_()
    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("no way back")
"""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_line_that_names_the_place(name: str, tmp_path: Path) -> None:
    old, new, expected = MISTAKES[name]
    assert old in BEGINNING
    text = BEGINNING.replace(old, new)
    text += ENDING if "Broken" in new else ""
    (tmp_path / "task.py").write_text(text)
    with pytest.raises(LabError) as caught:
        run(load(f"{tmp_path / 'task.py'}:Task"), tmp_path)
    said = str(caught.value)
    assert f"task.py{expected}" in said
    assert "\n" not in said
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_mistake_in_validation_is_found_before_the_first_step(tmp_path: Path) -> None:
    steps: list[int] = []
    (tmp_path / "task.py").write_text(BEGINNING.replace("[torch.randn(32, 4)]", "[torch.randn(32, 3)]"))
    with pytest.raises(LabError, match="in loss of a validation batch: RuntimeError"):
        run(load(f"{tmp_path / 'task.py'}:Task"), tmp_path, lambda progress: bool(steps.append(progress.step)))
    assert steps == []


OPTIMIZERS = {
    "raises": ("lambda model, lr: 1 / 0", "task.py:12: in optimizers['mine']: ZeroDivisionError"),
    "returns none": ("lambda model, lr: None", "task.py:12: optimizers['mine'] must return a torch.optim.Optimizer"),
    "is a class path": ("'torch.optim.SGD'", "task.py:2: optimizers of the task Task must map names to functions"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_mistake_in_an_optimizer(name: str, tmp_path: Path) -> None:
    code, words = OPTIMIZERS[name]
    (tmp_path / "task.py").write_text(f"{BEGINNING}    optimizers = {{'mine': {code}}}\n")
    with pytest.raises(LabError) as caught:
        run(load(f"{tmp_path / 'task.py'}:Task"), tmp_path, name="mine", kind="linear")
    assert words in str(caught.value)


FILES = {
    "import": ("import nothing_of_this_name", "task.py:1: while loading: ModuleNotFoundError"),
    "syntax": ("x = 1\ndef f(:\n", "task.py:2: while loading: SyntaxError"),
    "exit": ("import sys\nsys.exit(3)\n", "task.py:2: while loading: SystemExit: 3"),
    "constructor": ("class Task:\n    def __init__(self):\n        self.x = y\n", "task.py:3: in Task(): NameError"),
    "method missing": (BEGINNING.replace("def loss", "def lost"), "task.py:2: the task Task has no loss()"),
    "attribute": (f"import threading\n{BEGINNING}    lock = threading.Lock()\n",
                  "task.py:3: the task Task cannot be sent to other processes"),
    "prepare": (f"{BEGINNING}    def prepare(self, folder):\n        (folder / 'x' / 'y').write_text('')\n",
                "task.py:13: in prepare: FileNotFoundError"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_fails(name: str, tmp_path: Path) -> None:
    text, words = FILES[name]
    (tmp_path / "task.py").write_text(text)
    with pytest.raises(LabError) as caught:
        pack(load(f"{tmp_path / 'task.py'}:Task"), tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["nowhere.py:Task", "task.py", "task.py:", "task.txt:Task", "task.py:Tusk", ":"])
def test_a_place_that_is_none(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("task.py", "task.txt"):
        Path(name).write_text(BEGINNING)
    with pytest.raises(UsageError, match="did you mean 'Task'" if place == "task.py:Tusk" else "FILE.py:NAME"):
        load(place)


def test_a_class_where_an_object_is_needed(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"Line is a class: give Line\(\)"):
        pack(Line, tmp_path)


# --- prepare, and what a task's identity is --------------------------------------------------------------------------


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
    first, again = pack(Prepared(), tmp_path), pack(Prepared(), tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert first.folder == again.folder
    assert first.folder is not None
    assert (first.folder / "calls").read_text() == "x"
    assert train(config_of(first), tmp_path / "run", own=first)["val_loss"] > 0


def test_a_prepare_that_was_cut_off_is_called_again(tmp_path: Path) -> None:
    folder = pack(Prepared(), tmp_path).folder
    assert folder is not None
    (folder / ".prepared").unlink()
    (folder / "half").write_text("")
    assert pack(Prepared(), tmp_path).folder == folder
    assert not (folder / "half").exists()


IDENTITIES = """
import sys
from autowarm.lab.tasks.fingerprint import fingerprint
from autowarm.lab.tasks.own import load
for folder in sys.argv[1:]:
    print(fingerprint(load(f"{folder}/task.py:Task"), frozenset({"defaults"})))
    sys.path.pop(0)
    for name in ("model", "layers", "more"):
        sys.modules.pop(name, None)
"""
FILE = """
import torch
from model import Net
SCALE = torch.tensor([1.0, 2.0])
KINDS = {"a", "b", "c"}
def scaled(x):
    return x * SCALE.sum()
class Task:
    defaults = {"seeds": [0, 1]}
    def __init__(self):
        self.table, self.names = {"x": torch.ones(2)}, {"p", "q", "r"}
    def model(self):
        import layers
        return Net(layers.WIDTH)
    def batches(self, seed):
        while True:
            yield torch.randn(4)
    def loss(self, model, batch):
        return scaled(model(batch)).mean() if "a" in {"a", "b"} else KINDS
    def validation(self):
        return [torch.randn(4)]
if __name__ == "__main__":
    print("compare")
"""


OTHERS = {
    "model": "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self, n):\n        super().__init__(n, 1)\n",
    "layers": "from more import WIDTH\n",
    "more": "WIDTH = 4\n",
}
SAME = [
    ("task", "import torch\n", "# a remark\n\nimport torch\n"),
    ("task", "[0, 1]", "[0, 1, 2]"),  # what `defaults` do stands in the config
    ("task", 'print("compare")', "print(1)"),
]
CHANGED = [
    ("task", "x * SCALE", "x + SCALE"),
    ("task", "2.0", "3.0"),
    ("task", '"x": torch.ones', '"x": torch.zeros'),
    ("task", '"c"}', '"d"}'),
    ("task", "        import layers\n", "        import layers\n        torch.rand(1)\n"),
    ("model", "(n, 1)", "(n, 1, bias=False)"),  # a file beside it
    ("more", "4", "5"),  # a file that is imported late, by way of another
]


def test_a_task_is_known_again_and_a_change_of_its_code_is_seen(tmp_path: Path) -> None:
    folders = []
    for index, (changed, old, new) in enumerate([("task", "", ""), *SAME, *CHANGED]):
        folders.append(tmp_path / str(index))
        folders[-1].mkdir()
        for name, text in {"task": FILE, **OTHERS}.items():
            assert name != changed or old in text
            (folders[-1] / f"{name}.py").write_text(text.replace(old, new) if name == changed and old else text)
    found = []
    for seed in ("1", "2"):  # sets in another order
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", IDENTITIES, *map(str, folders)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found[0] == found[1]
    here, *others = found[0]
    assert others[: len(SAME)] == [here] * len(SAME)
    assert len({here, *others}) == 1 + len(CHANGED)


def test_packing_leaves_the_task_as_it_was(tmp_path: Path) -> None:
    task = Prepared()
    assert pack(task, tmp_path).sha256 == pack(task, tmp_path).sha256 == pack(Prepared(), tmp_path).sha256
    assert vars(task) == {}
