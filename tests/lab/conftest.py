"""A corpus of a few small files, a cache of its own, and configs that train in a fraction of a second."""

import random
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.data.text import END_OF_TEXT

from .helpers import MODEL, run_here

WORDS = ["a", "run", "of", "steps", "warms", "up", "and", "then", "its", "rate", "falls", "along", "the", "cosine"]


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for index in range(30):
        draw = random.Random(index)
        (folder / f"text{index}.txt").write_text(" ".join(draw.choice(WORDS) for _ in range(300)))
    return folder


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a small tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=270, special_tokens=[END_OF_TEXT], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    made.train_from_iterator(["document says so 0123456789"], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


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
