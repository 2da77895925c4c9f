"""Recipes of small tasks: four functions, of which the batches are functions of (seed, step)."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import DataConfig
from ..data import batch as sample
from ..data import prepare, validation_batches
from ..data.images import scanned_digits
from . import Batch, Drawn

_LENGTH = 32  # tokens of a sequence
_SMOOTHING = 0.1  # label smoothing, usual for vision transformers; it keeps the loss away from 0


@dataclass(frozen=True)
class Recipe:
    """A small task in four functions; see `OwnTask`."""

    model: Callable[[], nn.Module]  # draws the weights from the global generator
    draw: Callable[[int, int], Batch]  # (seed, step) → a tuple of tensors
    loss_of: Callable[..., Tensor]  # (model, *batch) → mean loss
    validation: Callable[[], Iterator[Batch]]
    first_bounds = True

    def batches(self, seed: int) -> Drawn:
        return Drawn(lambda first, _: (self.draw(seed, step) for step in itertools.count(first)))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.loss_of(model, *batch)


def generator(*key: int) -> np.random.Generator:
    """Return a generator of random numbers that depend on the key alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


class Block(nn.Module):
    """Attention and a two-layer MLP, each behind a LayerNorm and with a residual."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)  # (batch, heads, length, width/heads)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Map tokens or patches to logits: at every position if causal, otherwise from the mean over positions."""

    def __init__(self, inputs: int, outputs: int, length: int, *, width: int, depth: int, causal: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(inputs, width) if causal else nn.Linear(inputs, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        heads = max(1, width // 16)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=causal) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs, bias=False)
        self.causal = causal
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embed(x) + self.position))
        return self.head(x if self.causal else x.mean(dim=1))


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def language(
    model: Callable[[], nn.Module], vocab: int, sequences: int, loss: Callable[..., Tensor] = next_token_loss
) -> Recipe:
    """Predict the next token of Python's documentation and source, in sequences of 32."""

    def draw(seed: int, step: int) -> Batch:
        return (torch.from_numpy(sample(prepare(DataConfig(), vocab).train, seed, step, sequences, _LENGTH)),)

    def held_out() -> Iterator[Batch]:
        return zip(map(torch.from_numpy, validation_batches(prepare(DataConfig(), vocab).val, 8, 64, _LENGTH)))

    return Recipe(model, draw, loss, held_out)


@lru_cache
def _scans() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images and labels, then validation images and labels."""
    pixels, labels = scanned_digits()
    images = (pixels / 16.0 - 0.3).astype(np.float32)
    order = generator(0).permutation(len(images))
    train, val = order[:1197], order[1197:]
    return images[train], labels[train], images[val], labels[val]


def digits(model: Callable[[], nn.Module], size: int = 32) -> Recipe:
    """Classify 8×8 digits, each shifted at random by up to one pixel."""

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels, label_smoothing=_SMOOTHING)

    def draw(seed: int, step: int) -> Batch:
        images, labels, _, _ = _scans()
        random = generator(seed, step)
        chosen = random.integers(0, len(images), size)
        padded = np.pad(images[chosen], ((0, 0), (1, 1), (1, 1)), constant_values=-0.3)
        rows, columns = random.integers(0, 3, (2, size, 1)) + np.arange(8)
        moved = padded[np.arange(size)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return torch.from_numpy(moved), torch.from_numpy(labels[chosen])

    def held_out() -> Iterator[Batch]:
        _, _, images, labels = _scans()
        yield torch.from_numpy(images), torch.from_numpy(labels)

    return Recipe(model, draw, loss, held_out)
