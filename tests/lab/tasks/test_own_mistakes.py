"""What is said of a mistake in a user's own task: where it is, and what to do."""

from pathlib import Path

import pytest

import autowarm
from autowarm.lab.config import LabError, UsageError
from autowarm.lab.tasks.own import blamed, load, pack

from ..helpers import LINE
from .own_runs import Line, run

# What the file says, and what is said of it: the line in the file, and the remedy or the reason.
LOSS, SQUARE, LINEAR = "        return (model(batch)", "square().mean()", "return torch.nn.Linear(8, 1)"
SCORES = "    def scores(self, model, batch):\n        return {'a': [1, 2]}\n"
SEVENTH = "        self.n = getattr(self, 'n', 0) + model.training\n        1 / (self.n - 7)\n"
VALIDATION = "return [torch.randn(64, 8)]"
MISTAKES = {
    "loss is not scalar": (SQUARE, "square()", ": loss() must return a one-element tensor, got a tensor of shape"),
    "loss is detached": (SQUARE, "square().mean().detach()", ": loss() returned a tensor without a gradient"),
    "loss is a number": (SQUARE, "square().mean().item()", ": loss() must return a one-element tensor, got a float"),
    "exception in loss": (LOSS, SEVENTH + LOSS, ":18: ZeroDivisionError: division by zero"),
    "sys.exit": (LOSS, f"        raise SystemExit('enough')\n{LOSS}", ":17: SystemExit"),
    "exception in backward": (SQUARE, f"{SQUARE} * Broken.apply(model(batch)).mean()",
                              ":28: RuntimeError: no way back"),
    "exception in model": (LINEAR, LINEAR.replace("1)", "'x')"), ":10: TypeError"),
    "model is a class": (LINEAR, "return torch.nn.Linear", ": model() must return a torch.nn.Module, got a type"),
    "extra state": (LINEAR, "return type('', (torch.nn.Linear,), {'get_extra_state': lambda self: 1})(8, 1)",
                    ": model() has _extra_state, and a checkpoint holds only tensors: keep it as a buffer"),
    "too few batches": (
        "while True", "for _ in range(7)",
        ": batches() ended after 7 batches and the run has 12 updates: repeat them, or make fewer",
    ),
    "no validation": (VALIDATION, "return []", ": validation() gave no batch: it needs one or more"),
    "exception in validation": (VALIDATION, "return open('nowhere')", ":20: FileNotFoundError"),
    "scores are lists": ("    def validation", f"{SCORES}    def validation",
                         ": scores() must return a number for each name, got 'a': a tensor of shape (2,)"),
}  # fmt: skip
ENDING = """class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone().requires_grad_()
    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("no way back")
"""


def mine(optimizer: str) -> str:
    return f"{LINE}    optimizers = {{'mine': {optimizer}}}\n"


FILES = {
    "import": ("import nothing_of_this_name", "task.py:1: ModuleNotFoundError"),
    "syntax": ("x = 1\ndef f(:\n", "task.py:2: SyntaxError"),
    "constructor": ("class Line:\n    def __init__(self):\n        self.x = y\n", "task.py:3: NameError"),
    "method missing": (LINE.replace("def loss", "def lost"), "the task Line has no loss()"),
    "attribute": (f"import threading\n{LINE}    lock = threading.Lock()\n",
                  "the task Line cannot be sent to other processes"),
    "prepare": (f"{LINE}    def prepare(self, folder):\n        (folder / 'x' / 'y').write_text('')\n",
                "task.py:23: FileNotFoundError"),
    "an optimizer raises": (mine("lambda model, lr: 1 / 0"), "task.py:22: ZeroDivisionError"),
    "an optimizer is none": (mine("lambda model, lr: None"), "task.py: optimizers['mine'] must return a torch.o"),
    "optimizers are names": (mine("'SGD'"), "optimizers of the task Line must map names to functions"),
    **{name: (LINE.replace(old, new) + ENDING * ("Broken" in new), f"task.py{expected}")
       for name, (old, new, expected) in MISTAKES.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_mistake_is_a_line_that_names_the_place(name: str, tmp_path: Path) -> None:
    text, words = FILES[name]
    assert text != LINE
    (tmp_path / "task.py").write_text(text)
    with pytest.raises(LabError) as caught:
        run(load(f"{tmp_path / 'task.py'}:Line"), tmp_path, name="mine" if "mine" in text else "adamw", kind="linear")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("place", ["task.py", "task.py:", "task.txt:Line", "task.py:Lime", ":"])
def test_a_place_that_is_none(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("task.py", "task.txt"):
        Path(name).write_text(LINE)
    with pytest.raises(UsageError, match="did you mean 'Line'" if place == "task.py:Lime" else "FILE.py:NAME"):
        load(place)


def test_a_class_where_an_object_is_needed() -> None:
    with pytest.raises(LabError, match=r"Line is a class: give Line\(\)"):
        pack(Line)


NOT_THE_TASKS = {
    "the disk": OSError("no space left on device"), "our own code": AssertionError("no such group"),
    "an early end": SystemExit(3),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_THE_TASKS)
def test_a_fault_outside_the_users_code_is_not_the_tasks(name: str) -> None:
    with pytest.raises(type(NOT_THE_TASKS[name])) as caught, blamed("/somewhere/task.py"):
        raise NOT_THE_TASKS[name]
    assert caught.value is NOT_THE_TASKS[name]


def test_a_fault_of_ours_is_not_a_task_s_that_lies_above_our_code() -> None:
    above = Path(autowarm.__file__).parents[1] / "task.py"
    with pytest.raises(ValueError, match="radius must"), blamed(str(above)):
        autowarm.geometry.Spectral(radius=-1)
