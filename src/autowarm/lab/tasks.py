"""What is learnt: tokens predicted by a LLaMA, or images classified. All that the loop needs to know of the two."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import RunConfig
from .data import batch, images, prepare, validation_batches
from .models import classifier, llama, token_loss

Batch = tuple[Tensor, ...]


class Task(Protocol):
    """A task.

    Attributes:
        name: of the data.
        sha256: of the data.
        per_example: tokens in a sequence, or 1: what a rate of work counts.
    """

    name: str
    sha256: str
    per_example: int

    def model(self) -> nn.Module:
        """The network, with weights that the seed decides."""

    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        """Some rows of the global batches of all steps from ``first`` on."""

    def validation(self, rows: slice) -> Iterator[Batch]:
        """The same rows of the fixed validation batches."""

    def loss(self, model: nn.Module, examples: Batch) -> Tensor:
        """Mean over the examples."""

    def scores(self, model: nn.Module, examples: Batch) -> dict[str, Tensor]:
        """Means over the examples of what validation reports; "loss" is among them."""


class Language:
    """Next-token prediction."""

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
            tokens = batch(self.corpus.train, config.seed, step, config.batch_size, config.model.seq_len, rows)
            yield (torch.from_numpy(tokens),)

    def validation(self, rows: slice) -> Iterator[Batch]:
        config = self.config
        spread = validation_batches(self.corpus.val, config.eval_batches, config.batch_size, config.model.seq_len, rows)
        return ((torch.from_numpy(tokens),) for tokens in spread)

    def loss(self, model: nn.Module, examples: Batch) -> Tensor:
        return token_loss(model, *examples)

    def scores(self, model: nn.Module, examples: Batch) -> dict[str, Tensor]:
        return {"loss": self.loss(model, examples)}


class Classification:
    """Images to labels."""

    per_example = 1

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.images = images.open_images(config.data, config.model.name)
        self.name, self.sha256 = self.images.name, self.images.sha256

    def model(self) -> nn.Module:
        return classifier(self.config.model, self.config.seed, self.images.classes, self.images.shape)

    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        config = self.config
        return images.training_batches(
            self.images, config.seed, first, config.steps, config.batch_size, rows, config.data.workers
        )

    def validation(self, rows: slice) -> Iterator[Batch]:
        config = self.config
        return images.validation_batches(self.images, config.eval_batches, config.batch_size, rows, config.data.workers)

    def loss(self, model: nn.Module, examples: Batch) -> Tensor:
        return self.scores(model, examples)["loss"]

    def scores(self, model: nn.Module, examples: Batch) -> dict[str, Tensor]:
        pictures, labels = examples
        logits = model(pictures)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        accuracy = (logits.argmax(1) == labels).to(wide.dtype).mean()
        return {"loss": F.cross_entropy(wide, labels), "accuracy": accuracy}


def make_task(config: RunConfig) -> Task:
    """The task of a run, its data prepared.

    Raises:
        LabError: the data is not there.
    """
    return Classification(config) if config.model.sees_images else Language(config)
