import dataclasses
import sys
from pathlib import Path

import pytest

from autowarm.lab.config import LabError, RunConfig
from autowarm.lab.training.loop import train


def test_without_its_package_a_remote_log_is_one_line(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    wanted = dataclasses.replace(run, engine=dataclasses.replace(run.engine, wandb="project"))
    with pytest.raises(LabError, match="pip install wandb"):
        train(wanted, tmp_path)
