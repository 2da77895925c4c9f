"""Image classification."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import RunConfig
from ..data import images
from . import Batch, Task
from .models import classifier

__all__ = ["Classification"]


class Classification(Task):
    """Classification of the images that a run's config names."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.images = images.open_images(config.data, config.model.name)
        self.name, self.sha256 = self.images.name, self.images.sha256

    def model(self) -> nn.Module:
        return classifier(self.config.model, self.config.seed, self.images.classes, self.images.shape)

    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        config = self.config
        return images.training_batches(
            self.images, config.data_seed, first, config.steps, config.batch_size, rows, config.data.workers
        )

    def validation(self, rows: slice) -> Iterator[Batch]:
        config = self.config
        return images.validation_batches(self.images, config.eval_batches, config.batch_size, rows, config.data.workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.scores(model, batch)["loss"]

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        pictures, labels = batch
        logits = model(pictures)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        accuracy = (logits.argmax(1) == labels).to(wide.dtype).mean()
        return {"loss": F.cross_entropy(wide, labels), "accuracy": accuracy}
