"""Small tasks for the warm-up study. Each run takes seconds on one core.

The tasks are diverse: language models of three sizes, a deep post-norm transformer (known to need warm-up), a vision
transformer and an MLP on scikit-learn's scanned digits, and a deep linear network with a known best loss. The paper's
two architectures, LLaMA and Swin, each come with a small batch and one eight times as large. "llama-long" has a quarter
of LLaMA's small batch, for runs of many steps, and "llama-bytes" reads bytes instead of tokens. Batches are functions
of (seed, step).
"""

import math
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import DataConfig, ModelConfig, RunConfig
from ..data import batch as sample
from ..data import prepare, validation_batches
from ..data.images import scanned_digits
from . import Batch, Task, fresh
from .finetuning import fine_tuning
from .models import classifier, llama, token_loss
from .recipe import Recipe

__all__ = ["TASKS", "SmallTask"]

_SMOOTHING = 0.1  # label smoothing, usual for vision transformers; it keeps the loss away from 0
_WIDTH, _DEPTH, _NOISE = 64, 4, 0.15  # of the deep linear network


class SmallTask(Task):
    """The small task that a run's config names."""

    def __init__(self, config: RunConfig) -> None:
        self.name, self.sha256 = str(config.task), ""  # code makes the data, and the run's id covers that
        self._recipe, self._config = TASKS[self.name], config
        self.first_bounds = self._recipe.first_bounds

    def model(self) -> nn.Module:
        model = self._recipe.build()
        if not self._config.engine.compile:
            return model
        compiled = _compiled(self.name)
        compiled.load_state_dict(model.state_dict())
        compiled.zero_grad()
        return compiled

    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        return (self._recipe.draw(self._config.data_seed, step) for step in range(first, self._config.steps))

    def validation(self, rows: slice) -> Iterator[Batch]:
        return self._recipe.held_out()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._recipe.loss(model, *batch)

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        scores = self._recipe.scores
        with torch.compiler.set_stance("force_eager"):  # compiling for a few batches of another shape would not pay
            return super().scores(model, batch) if scores is None else scores(model, *batch)


@cache
def _compiled(name: str) -> nn.Module:
    """Return this process's only network for the task, so that only the first run compiles it."""
    return TASKS[name].build()


def _random(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def _drawn_seed() -> int:
    """Draw a seed for a model builder that takes one."""
    return int(torch.randint(2**31, ()))


class Block(nn.Module):
    """Attention and a two-layer MLP, each with a residual and a LayerNorm, either before it or after the sum."""

    def __init__(self, width: int, heads: int, *, causal: bool, norm: Literal["pre", "post"]) -> None:
        super().__init__()
        self.heads, self.causal, self.norm = heads, causal, norm
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm == "pre":
            x = x + self.attend(self.norm1(x))
            return x + self.transform(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.transform(x))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))

    def transform(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Transformer(nn.Module):
    """Map tokens or patches to logits: at every position if causal, otherwise from the mean over positions."""

    def __init__(
        self, inputs: int, outputs: int, length: int, *, width: int, depth: int, causal: bool, norm: str = "pre"
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(inputs, width) if causal else nn.Linear(inputs, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(
            *(Block(width, max(1, width // 16), causal=causal, norm=norm) for _ in range(depth))  # type: ignore[arg-type]
        )
        self.norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
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


def _language(vocab: int, width: int, depth: int, sequences: int, length: int, kind: str = "pre-norm") -> Recipe:
    """Predict the next token of Python's documentation and source, with a "llama", "pre-norm" or "post-norm"."""

    def build() -> nn.Module:
        if kind != "llama":
            norm = kind.removesuffix("-norm")
            return Transformer(vocab, vocab, length, width=width, depth=depth, causal=True, norm=norm)
        heads, ff = max(1, width // 16), 8 * width // 3
        shape = ModelConfig(vocab_size=vocab, width=width, layers=depth, heads=heads, ff=ff, seq_len=length)
        return llama(shape, _drawn_seed())

    def loss(model: nn.Module, tokens: Tensor) -> Tensor:
        if kind == "llama":
            return token_loss(model, tokens)
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def draw(seed: int, step: int) -> Batch:
        return (torch.from_numpy(sample(prepare(DataConfig(), vocab).train, seed, step, sequences, length)),)

    def held_out() -> Iterator[Batch]:
        return zip(map(torch.from_numpy, validation_batches(prepare(DataConfig(), vocab).val, 8, 64, length)))

    name = "LLaMA" if kind == "llama" else f"{kind} transformer"
    about = f"{name}, {depth} layers of {width}, {sequences}×{length} tokens of {vocab}"
    return Recipe(about, build, draw, loss, held_out)


@lru_cache
def _scans() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images and labels, then validation images and labels."""
    pixels, labels = scanned_digits()
    images = (pixels / 16.0 - 0.3).astype(np.float32)
    order = _random(0).permutation(len(images))
    train, val = order[:1197], order[1197:]
    return images[train], labels[train], images[val], labels[val]


def _digits(build: Callable[[], nn.Module], about: str, size: int = 32) -> Recipe:
    """Classify 8×8 digits, each shifted at random by up to one pixel."""

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels, label_smoothing=_SMOOTHING)

    def draw(seed: int, step: int) -> Batch:
        images, labels, _, _ = _scans()
        random = _random(seed, step)
        chosen = random.integers(0, len(images), size)
        padded = np.pad(images[chosen], ((0, 0), (1, 1), (1, 1)), constant_values=-0.3)
        rows, columns = random.integers(0, 3, (2, size, 1)) + np.arange(8)
        moved = padded[np.arange(size)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return torch.from_numpy(moved), torch.from_numpy(labels[chosen])

    def held_out() -> Iterator[Batch]:
        _, _, images, labels = _scans()
        yield torch.from_numpy(images), torch.from_numpy(labels)

    return Recipe(about, build, draw, loss, held_out)


class Patches(nn.Module):
    """(batch, 8, 8) → (batch, 16, 4)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)


def _vit() -> nn.Module:
    return nn.Sequential(Patches(), Transformer(4, 10, 16, width=48, depth=3, causal=False))


def _swin() -> nn.Module:
    shape = ModelConfig(name="swin", layers=2, width=16, heads=2)
    return nn.Sequential(nn.Unflatten(1, (1, 8)), classifier(shape, _drawn_seed(), 10, (1, 8, 8)))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


@cache
def _linear_map() -> Tensor:
    random = _random(1)
    left, right = (np.linalg.qr(random.standard_normal((_WIDTH, _WIDTH)))[0] for _ in range(2))
    spectrum = 2.0 / np.arange(1, _WIDTH + 1)
    return torch.from_numpy((left * spectrum @ right).astype(np.float32))


def _factorisation(size: int = 16) -> Recipe:
    """Fit a product of matrices to a noisy linear map with a known spectrum. f* is the variance of the noise."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - y).square().mean()

    def draw(seed: int, step: int) -> Batch:
        random = _random(seed, step)
        x, noise = (torch.from_numpy(random.standard_normal((size, _WIDTH), dtype=np.float32)) for _ in range(2))
        return x, x @ _linear_map().T + _NOISE * noise

    def population(model: Any, *batch: Tensor) -> dict[str, Tensor]:
        """Return the exact expected loss ‖W_L…W_1 − A‖²/width + noise²."""
        product = torch.eye(_WIDTH)
        for layer in model:
            product = layer.weight @ product
        return {"loss": (product - _linear_map()).square().sum() / _WIDTH + _NOISE**2}

    def build() -> nn.Module:
        layers = [nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_DEPTH)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=1 / math.sqrt(_WIDTH))
        return nn.Sequential(*layers)

    about = f"deep linear network, {_DEPTH} layers of {_WIDTH}, f* = {_NOISE**2:.2f}"
    return Recipe(about, build, draw, loss, lambda: iter([(torch.empty(1),) * 2]), population)


def _transformer(tokens: int) -> nn.Module:
    return Transformer(tokens, tokens, 24, width=32, depth=2, causal=True)


_MLP = _digits(_mlp, "MLP on digits, 64–128–128–10")
TASKS: dict[str, Recipe] = {
    "lm-small": _language(512, 48, 2, sequences=16, length=32),
    "lm-middle": _language(1024, 96, 4, sequences=8, length=32),
    "lm-large": _language(2048, 256, 5, sequences=8, length=32),
    "post-norm": _language(512, 48, 6, sequences=16, length=32, kind="post-norm"),
    "vit": _digits(_vit, "vision transformer on digits, 3 layers of 48"),
    "mlp": _MLP,
    "factor": _factorisation(),
    "llama": _language(512, 32, 2, sequences=16, length=32, kind="llama"),
    "llama-x8": _language(512, 32, 2, sequences=128, length=32, kind="llama"),
    "llama-long": _language(512, 32, 2, sequences=4, length=32, kind="llama"),
    "llama-bytes": _language(257, 32, 2, sequences=4, length=32, kind="llama"),
    "swin": _digits(_swin, "Swin on digits, two stages of 2 blocks, 16 and 32 wide, 32 images"),
    "swin-x8": _digits(_swin, "the same Swin, 256 images", 256),
    "tune-near": fine_tuning("near"),
    "tune-far": fine_tuning("far"),
    "tune-near-lora": fine_tuning("near", lora=True),
    "tune-far-lora": fine_tuning("far", lora=True),
    "unsmoothed": fresh.unsmoothed(_MLP.draw, _MLP.held_out),
    "cnn": fresh.cnn(_MLP.draw, _MLP.held_out),
    "autoencoder": fresh.autoencoder(_MLP.draw, _MLP.held_out),
    "regression": fresh.regression(),
    "copier": fresh.copier(_transformer),
    "policy": fresh.policy(),
}
