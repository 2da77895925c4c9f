"""The tasks of a run's `model` on its `data`: next-token prediction, and classification of images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import RunConfig
from ..data import images, prepare, training_batches, validation_batches
from . import Batch, Drawn
from .models import classifier, llama, token_logits


class Language:
    first_bounds = predicts_tokens = True

    def __init__(self, config: RunConfig) -> None:
        self.config, self.per_example = config, config.model.seq_len
        self.data = prepare(config.data, config.model.vocab_size)

    def model(self) -> nn.Module:
        return llama(self.config.model, self.config.seed)

    def batches(self, seed: int) -> Drawn:
        config = self.config
        shape, sampling = (config.steps, config.batch_size, config.model.seq_len), config.data.sampling
        return Drawn(lambda first, rows: zip(training_batches(self.data.train, seed, first, *shape, rows, sampling)))

    def validation(self, whole: bool = False) -> Drawn:
        count = None if whole else self.config.eval_batches
        shape = count, self.config.batch_size, self.config.model.seq_len
        return Drawn(lambda _, rows: zip(map(torch.from_numpy, validation_batches(self.data.val, *shape, rows))))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(*token_logits(model, *batch))

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return _scores(*token_logits(model, *batch))


class Classification:
    first_bounds = True

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.data = images.open_images(config.data, config.model.name)

    def model(self) -> nn.Module:
        return classifier(self.config.model, self.config.seed, self.data.classes, self.data.shape)

    def batches(self, seed: int) -> Drawn:
        steps, size, workers = self.config.steps, self.config.batch_size, self.config.data.workers
        return Drawn(lambda first, rows: images.training_batches(self.data, seed, first, steps, size, rows, workers))

    def validation(self, whole: bool = False) -> Drawn:
        size, workers = self.config.batch_size, self.config.data.workers
        count = None if whole else self.config.eval_batches
        return Drawn(lambda _, rows: images.validation_batches(self.data, count, size, rows, workers))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.scores(model, batch)["loss"]

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        pictures, labels = batch
        return _scores(model(pictures), labels)


def _scores(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    accuracy = (logits.argmax(-1) == targets).to(logits.dtype).mean()
    return {"loss": F.cross_entropy(logits, targets), "accuracy": accuracy}
