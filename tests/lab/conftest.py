"""A corpus of a few small files, a cache of its own, and configs that train in a fraction of a second."""

import random
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig

from .helpers import MODEL, run_here

WORDS = ["a", "run", "of", "steps", "warms", "up", "and", "then", "its", "rate", "falls", "along", "the", "cosine"]


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for index in range(30):
        draw = random.Random(index)
        (folder / f"text{index}.txt").write_text(" ".join(draw.choice(WORDS) for _ in range(300)))
    return folder


def small_run(corpus: Path) -> RunConfig:
    """Twelve steps of a small LLaMA, which take a fraction of a second."""
    return RunConfig(
        model=ModelConfig(**MODEL),
        data=DataConfig(corpus=str(corpus)),
        optimizer=OptimizerConfig(name="muon", lr=0.01),
        schedule=ScheduleConfig(kind="linear", warmup_steps=3),
        steps=12,
        batch_size=4,
        eval_batches=2,
        checkpoint_every=4,
    )


@pytest.fixture
def run(corpus_folder: Path) -> RunConfig:
    return small_run(corpus_folder)


@pytest.fixture
def small(corpus_folder: Path) -> dict[str, Any]:
    """Keys that make the runs of a sweep as small."""
    return {"model": MODEL, "data.corpus": str(corpus_folder), "eval_batches": 1, "batch_size": 4}


@pytest.fixture
def data(corpus_folder: Path) -> DataConfig:
    return DataConfig(corpus=str(corpus_folder))


@pytest.fixture
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are done in this process: what starts workers is tested in `execution/test_pool.py`."""
    monkeypatch.setattr("autowarm.lab.execution.engine.run_jobs", run_here)
