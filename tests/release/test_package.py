"""What importing the package does and does not bring in."""

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import autowarm


@pytest.mark.parametrize("name", ["geometry", "lab", "logs", "optim", "orthogonalize", "rate", "smoothness", "theory"])
def test_a_room_has_what_it_lists(name: str) -> None:
    room = importlib.import_module(f"autowarm.{name}")
    assert all(hasattr(room, one) for one in room.__all__)


@pytest.mark.long
def test_the_package_lists_its_names_and_rooms_and_has_them(python_without: Callable[..., str]) -> None:
    code = """
import autowarm
print(*dir(autowarm))
print(autowarm.geometry.Spectral.__name__, autowarm.schedule.calibrate.__name__, autowarm.lab.__name__)
"""
    listed, reached = python_without([], code).splitlines()
    names = listed.split()
    assert set(autowarm.__all__) < set(names)
    assert all(name[0].islower() or name in autowarm.__all__ for name in names if name != "__version__")
    assert [name for name in names if name.startswith("_")] == ["__version__"]
    assert reached == "Spectral calibrate autowarm.lab"


MISSPELT = """
import torch
from autowarm import LMO, AdaptiveWarmup, Muon
x = [torch.zeros(2, 2, requires_grad=True)]
optimizer = Muon(x, lr=0.1, method="newton-schulz")
AdaptiveWarmup(optimizer, 100, warmup="cosine", decay="1-sqrt")
AdaptiveWarmup(optimizer, 100, decay="cosin")
AdaptiveWarmup(optimizer, 100, warmup="linea")
Muon(x, method="newton-shulz")
LMO(x, geometry="spectrl")
"""


@pytest.mark.long
def test_mypy_sees_a_misspelt_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MISSPELT)
    # To read PyTorch's types takes five times as long as all the rest; `make lint` reads them.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    words = ["-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "mine.py"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    lines = MISSPELT.splitlines()
    wrong = [int(found) for found in re.findall(r"^mine\.py:(\d+): error", done.stdout, re.MULTILINE)]
    assert [lines[number - 1] for number in wrong] == lines[-4:], done.stdout + done.stderr


def test_the_package_alone_does_not_import_torch(python_without: Callable[..., str]) -> None:
    assert python_without([], "import sys, autowarm; print('torch' in sys.modules)") == "False"


CORE_ALONE = """
import sys
from autowarm import *
import autowarm.geometry, autowarm.orthogonalize, autowarm.schedule, autowarm.optim, autowarm.theory
import autowarm.logs, autowarm.smoothness
print(sorted({"autowarm.lab", "autowarm.integrations", "transformers", "tokenizers", "jsonargparse", "rich", "scipy",
              "matplotlib", "jinja2", "yaml", "lightning", "pytorch_lightning", "accelerate", "tensorboard"}
             & set(sys.modules)))
import autowarm.lab.execution.engine  # what a command has at work while its workers make the runs
print(sorted({"autowarm.lab.training.loop", "torch.distributed.checkpoint", "transformers", "scipy.stats"}
             & set(sys.modules)))
"""


@pytest.mark.long
def test_the_core_goes_alone_and_the_engine_is_light(python_without: Callable[..., str]) -> None:
    assert python_without([], CORE_ALONE).splitlines() == ["[]", "[]"]
