"""What docs/optimizers.md says that a step launches and holds on GPUs."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fake_gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_gpu", ROOT / "benchmarks" / "fake_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_is_counted(fake_gpu: ModuleType) -> None:
    heading, *counted = fake_gpu.table(["124M"]).splitlines()
    shown = fake_gpu.TABLE.read_text(encoding="utf-8").splitlines()
    assert shown[0] == heading
    ours = [line for line in counted if ",torch.optim.Muon," not in line]  # PyTorch's own changes with its version
    assert ours == [line for line in shown if line.startswith("124M") and ",torch.optim.Muon," not in line]
