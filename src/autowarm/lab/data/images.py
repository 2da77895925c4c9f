"""Images with labels: scikit-learn's digits, or ImageNet through timm's datasets and transforms.

The images of a step, and how they are flipped and cropped, are a pure function of (seed, step). A permutation keyed by
(seed, epoch) orders each epoch, and a generator keyed by a sample's place in the run drives its transform. So neither
the number of worker processes nor resuming a run changes a pixel.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..config import DataConfig, LabError
from ..errors import needs
from .batches import permutation, validation_places

_VALIDATION_DIGITS = 360  # a fifth
_AUGMENTATION: dict[str, Any] = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25}  # Swin's training recipe


@dataclass(frozen=True)
class Images:
    """A training and a validation set. Training images are transformed at random.

    Indexing either set returns an image of shape (channels, height, width) and its label. `sha256` identifies the data.
    """

    name: str
    sha256: str
    train: Any
    val: Any
    classes: int
    shape: tuple[int, int, int]


def scanned_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return 1797 handwritten digits of 8×8 pixels, from 0 to 16, and their labels; LabError without scikit-learn."""
    with needs("the set of digits", "vision"):
        from sklearn.datasets import load_digits

    data = load_digits()
    return data.images, data.target


@lru_cache(maxsize=1)
def digits() -> Images:
    pixels, labels = scanned_digits()
    scaled = torch.from_numpy((pixels / 8 - 1).astype(np.float32)).unsqueeze(1)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(scaled)))  # neighbours share a writer
    pairs = [(scaled[i], int(labels[i])) for i in order.tolist()]
    count = len(pairs) - _VALIDATION_DIGITS
    return Images("digits", f"sklearn-digits-{len(pairs)}", pairs[:count], pairs[count:], 10, (1, 8, 8))


@lru_cache(maxsize=1)
def open_images(data: DataConfig, model: str) -> Images:
    """Open the configured images; those of a data set of the hub get the size and normalisation of the timm model."""
    if data.images == "digits":
        return digits()
    with needs(f"data.images {data.images!r}", "vision"):
        import timm
        from timm.data import create_dataset, create_transform, resolve_data_config

    about: Any = timm.get_pretrained_cfg(model, allow_unregistered=True)
    settings: dict[str, Any] = resolve_data_config({}, pretrained_cfg=about.to_dict())
    common: Any = {key: settings[key] for key in ("input_size", "interpolation", "mean", "std", "crop_pct")}
    parts: dict[str, Any] = {}
    for part, training in (("train", True), ("validation", False)):
        try:
            parts[part] = create_dataset(data.images, root=None, split=part, is_training=training)
        except Exception as error:  # `datasets` raises exceptions of many kinds
            raise LabError(f"data.images {data.images!r}: the part {part!r} cannot be read ({type(error).__name__}: "
                           f"{' '.join(str(error).split())[:160]}); 'digits' needs no files") from None  # fmt: skip
        parts[part].transform = create_transform(**common, is_training=training, **(_AUGMENTATION if training else {}))
    train, val = parts.values()
    digest = f"{data.images} {len(train)} {len(val)}"
    return Images(data.images, digest, train, val, int(about.num_classes), settings["input_size"])


class _Placed(Dataset[tuple[Tensor, int]]):
    """Training samples indexed by their place in the run, which also seeds their transforms."""

    def __init__(self, images: Any, seed: int) -> None:
        self.images, self.seed = images, seed

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        key = int(np.random.SeedSequence([self.seed, place]).generate_state(1)[0])
        random.seed(key)  # timm's transforms draw from all three
        np.random.seed(key)  # noqa: NPY002
        count = len(self.images)
        epoch, offset = divmod(place, count)
        with torch.random.fork_rng(devices=()):  # for dropout in this process; transforms use no GPU's generator
            torch.default_generator.manual_seed(key)
            pair: tuple[Tensor, int] = self.images[int(permutation(count, self.seed, epoch)[offset])]
        return pair


def training_batches(
    images: Images, seed: int, first: int, last: int, batch_size: int, rows: slice, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the images and labels of this rank's rows at steps first to last − 1."""
    places = ([step * batch_size + row for row in range(batch_size)[rows]] for step in range(first, last))
    generator = torch.Generator()  # or a loader would draw its workers' seeds from the one for dropout
    samples = _Placed(images.train, seed)
    return iter(DataLoader(samples, batch_sampler=places, num_workers=workers, generator=generator))


def validation_batches(
    images: Images, count: int | None, batch_size: int, rows: slice, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `count` batches spread evenly over the validation part, alike in every run; None takes every image once."""
    chosen = [places[rows].tolist() for places in validation_places(len(images.val), count, batch_size)]
    return iter(DataLoader(images.val, batch_sampler=chosen, num_workers=workers))
