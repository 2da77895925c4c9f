"""The language task's batches are those of its config, from any step."""

import dataclasses
import threading

import pytest
import torch

from autowarm.lab.config import DataConfig, RunConfig
from autowarm.lab.data import batch
from autowarm.lab.data.batches import Sampling
from autowarm.lab.tasks.corpora import Language


@pytest.mark.parametrize("sampling", ["random", "epochs"])
def test_batches_are_those_of_the_config_from_any_step(data: DataConfig, sampling: Sampling) -> None:
    config = RunConfig(data=dataclasses.replace(data, sampling=sampling), steps=6, batch_size=4, seed=3, eval_batches=1)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=280, seq_len=16))
    task = Language(config)
    found = [tokens for (tokens,) in task.batches(3).after(2, slice(1, 3))]
    for step, tokens in enumerate(found, 2):
        assert torch.equal(tokens, torch.from_numpy(batch(task.data.train, 3, step, 4, 16, slice(1, 3), sampling)))
    assert len(found) == 4
    assert not any(thread.name.startswith("autowarm-read-ahead") for thread in threading.enumerate())
