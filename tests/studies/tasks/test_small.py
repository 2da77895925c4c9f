"""The small tasks, compiled."""

from pathlib import Path

import pytest

from autowarm.lab.config import EngineConfig, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.training.loop import train
from studies.tasks import StudyTask


@pytest.mark.long
def test_a_compiled_network_serves_one_run_after_another_alike(tmp_path: Path) -> None:
    own = StudyTask("mlp")

    def loss(seed: int, compile: bool, name: str) -> float:
        config = RunConfig(
            task=own.key, steps=5, seed=seed, optimizer=OptimizerConfig("adamw"),
            schedule=ScheduleConfig("linear", 1),
            engine=EngineConfig(precision="float32", device="cpu", keep_weights=False, compile=compile),
        )  # fmt: skip
        return float(train(config, tmp_path / name, own=own)["val_loss"])

    first, other, again = loss(0, True, "a"), loss(1, True, "b"), loss(0, True, "c")
    assert first == again != other
    assert first == pytest.approx(loss(0, False, "d"), rel=1e-4)
