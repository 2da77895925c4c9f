"""A corpus of a few small files, a cache of its own, and configs that train in a fraction of a second."""

import random
from pathlib import Path

import pytest

from autowarm.lab.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig

WORDS = ["a", "run", "of", "steps", "warms", "up", "and", "then", "its", "rate", "falls", "along", "the", "cosine"]


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for index in range(30):
        draw = random.Random(index)
        (folder / f"text{index}.txt").write_text(" ".join(draw.choice(WORDS) for _ in range(300)))
    return folder


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOWARM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def data(corpus_folder: Path) -> DataConfig:
    return DataConfig(corpus=str(corpus_folder))


@pytest.fixture
def run(data: DataConfig) -> RunConfig:
    return RunConfig(
        model=ModelConfig(layers=1, width=16, heads=2, ff=32, vocab_size=280, seq_len=16),
        data=data,
        optimizer=OptimizerConfig(name="muon", lr=0.01),
        schedule=ScheduleConfig(kind="linear", warmup_steps=3),
        steps=12,
        batch_size=4,
        eval_batches=2,
        checkpoint_every=4,
    )
