"""Next-token prediction on the lab's corpora."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..config import RunConfig
from ..data import batch as sample
from ..data import prepare, validation_batches
from . import Batch, Task
from .models import llama, token_loss

__all__ = ["Language"]


class Language(Task):
    """Next-token prediction on the corpus that a run's config names."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.corpus = prepare(config.data, config.model.vocab_size)
        self.name, self.sha256 = self.corpus.name, self.corpus.sha256
        self.per_example = config.model.seq_len

    def model(self) -> nn.Module:
        return llama(self.config.model, self.config.seed)

    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        config = self.config
        for step in range(first, config.steps):
            tokens = sample(self.corpus.train, config.data_seed, step, config.batch_size, config.model.seq_len, rows)
            yield (torch.from_numpy(tokens),)

    def validation(self, rows: slice) -> Iterator[Batch]:
        config = self.config
        spread = validation_batches(self.corpus.val, config.eval_batches, config.batch_size, config.model.seq_len, rows)
        return ((torch.from_numpy(tokens),) for tokens in spread)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return token_loss(model, *batch)
