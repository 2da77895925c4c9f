"""What docs/optimizers.md says that a step launches and holds on GPUs."""

import runpy
from pathlib import Path


def test_the_page_shows_what_is_counted() -> None:
    fake_gpu = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fake_gpu.py"))
    heading, *counted = fake_gpu["table"](["124M"]).splitlines()
    shown = fake_gpu["TABLE"].read_text(encoding="utf-8").splitlines()
    assert shown[0] == heading
    ours = [line for line in counted if ",torch.optim.Muon," not in line]  # PyTorch's own changes with its version
    assert ours == [line for line in shown if line.startswith("124M") and ",torch.optim.Muon," not in line]
