"""The bed's tasks: each a model, a stream of mini-batches that depends on (seed, step) alone, and a held-out loss.

They are small enough that a run takes seconds on one core, and unlike one another: language models of three sizes, a
deep post-norm transformer (which is known to need warm-up), a vision transformer and an MLP on the scanned digits that
come with scikit-learn, and a deep linear network whose best loss is known. The paper's two architectures, LLaMA and
Swin, come from the laboratory, each with a small batch and one eight times as large.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["TASKS", "Task"]

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """What is trained, on what.

    Attributes:
        about: in a few words.
        build: makes the model, from the global generator.
        batch: (seed, step) → inputs and targets.
        loss: (model, inputs, targets) → mean loss.
        held_out: the held-out loss, given the model.
    """

    about: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    held_out: Callable[[nn.Module], float]


def _random(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


class Block(nn.Module):
    """Attention and a two-layer MLP, each with a residual and a LayerNorm before it or after the sum."""

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
    """Tokens or patches in, logits out: at every position if causal, of their mean if not."""

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


@cache
def _corpus(vocab: int) -> Any:
    from autowarm.lab.config.runs import DataConfig
    from autowarm.lab.data import prepare

    return prepare(DataConfig(), vocab)


def _seed() -> int:
    """One for a model that is built from a seed of its own."""
    return int(torch.randint(2**31, ()))


class Llama(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, vocab: int, width: int, depth: int, length: int) -> None:
        from autowarm.lab.config.runs import ModelConfig
        from autowarm.lab.tasks.models import llama

        super().__init__()
        shape = ModelConfig(
            vocab_size=vocab, width=width, layers=depth, heads=max(1, width // 16), ff=8 * width // 3, seq_len=length
        )
        self.model = llama(shape, _seed())

    def forward(self, x: Tensor) -> Tensor:
        return self.model(input_ids=x, use_cache=False).logits


def language(vocab: int, width: int, depth: int, sequences: int, length: int, kind: str = "pre-norm") -> Task:
    """Predict the next token of Python's own documentation and source, by a "llama", "pre-norm" or "post-norm"."""
    from autowarm.lab.data import batch, validation_batches

    def loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    def draw(seed: int, step: int) -> Batch:
        window = torch.from_numpy(batch(_corpus(vocab).train, seed, step, sequences, length))
        return window[:, :-1], window[:, 1:]

    def held_out(model: nn.Module) -> float:
        losses = [
            loss(model, (window := torch.from_numpy(array))[:, :-1], window[:, 1:]).item()
            for array in validation_batches(_corpus(vocab).val, 8, 64, length)
        ]
        return float(np.mean(losses))

    def build() -> nn.Module:
        if kind == "llama":
            return Llama(vocab, width, depth, length)
        norm = kind.removesuffix("-norm")
        return Transformer(vocab, vocab, length, width=width, depth=depth, causal=True, norm=norm)

    name = "LLaMA" if kind == "llama" else f"{kind} transformer"
    about = f"{name}, {depth} layers of {width}, {sequences}×{length} tokens of {vocab}"
    return Task(about, build, draw, loss, held_out)


@lru_cache
def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = (data.images / 16.0 - 0.3).astype(np.float32)
    order = _random(0).permutation(len(images))
    train, val = order[:1197], order[1197:]
    return images[train], data.target[train], images[val], data.target[val]


_SMOOTHING = 0.1  # of labels: keeps the loss away from 0, as vision transformers are trained


def digits(build: Callable[[], nn.Module], about: str, size: int = 32) -> Task:
    """Classify 8×8 digits, each drawn with a random shift of up to one pixel."""

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels, label_smoothing=_SMOOTHING)

    def draw(seed: int, step: int) -> Batch:
        images, labels, _, _ = _digits()
        random = _random(seed, step)
        chosen = random.integers(0, len(images), size)
        padded = np.pad(images[chosen], ((0, 0), (1, 1), (1, 1)), constant_values=-0.3)
        rows, columns = random.integers(0, 3, (2, size, 1)) + np.arange(8)
        shifted = padded[np.arange(size)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return torch.from_numpy(shifted), torch.from_numpy(labels[chosen])

    def held_out(model: nn.Module) -> float:
        _, _, images, labels = _digits()
        model.eval()  # a Swin drops paths while it trains
        value = loss(model, torch.from_numpy(images), torch.from_numpy(labels)).item()
        model.train()
        return value

    return Task(about, build, draw, loss, held_out)


class Patches(nn.Module):
    """(batch, 8, 8) → (batch, 16, 4)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)


def _vit() -> nn.Module:
    return nn.Sequential(Patches(), Transformer(4, 10, 16, width=48, depth=3, causal=False))


def _swin() -> nn.Module:
    from autowarm.lab.config.runs import ModelConfig
    from autowarm.lab.tasks.models import classifier

    shape = ModelConfig(name="swin", layers=2, width=16, heads=2)
    return nn.Sequential(nn.Unflatten(1, (1, 8)), classifier(shape, _seed(), 10, (1, 8, 8)))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def factorisation(width: int = 64, depth: int = 4, size: int = 16, noise: float = 0.15) -> Task:
    """Fit a product of matrices to a noisy linear map of known spectrum: f* is the noise's variance."""
    random = _random(1)
    left, right = (np.linalg.qr(random.standard_normal((width, width)))[0] for _ in range(2))
    spectrum = 2.0 / np.arange(1, width + 1)
    matrix = torch.from_numpy((left * spectrum @ right).astype(np.float32))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - y).square().mean()

    def draw(seed: int, step: int) -> Batch:
        random = _random(seed, step)
        x = torch.from_numpy(random.standard_normal((size, width), dtype=np.float32))
        return x, x @ matrix.T + noise * torch.from_numpy(random.standard_normal((size, width), dtype=np.float32))

    def held_out(model: nn.Module) -> float:
        """The population's loss, without sampling: ‖W_L…W_1 − A‖²/width + noise²."""
        product = torch.eye(width)
        for layer in model:  # type: ignore[attr-defined]
            product = layer.weight @ product
        return (product - matrix).square().sum().item() / width + noise**2

    def build() -> nn.Module:
        layers = [nn.Linear(width, width, bias=False) for _ in range(depth)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=1 / math.sqrt(width))
        return nn.Sequential(*layers)

    about = f"deep linear network, {depth} layers of {width}, f* = {noise**2:.2f}"
    return Task(about, build, draw, loss, held_out)


TASKS: dict[str, Task] = {
    "lm-small": language(512, 48, 2, sequences=16, length=32),
    "lm-middle": language(1024, 96, 4, sequences=8, length=32),
    "lm-large": language(2048, 256, 5, sequences=8, length=32),
    "post-norm": language(512, 48, 6, sequences=16, length=32, kind="post-norm"),
    "vit": digits(_vit, "vision transformer on digits, 3 layers of 48"),
    "mlp": digits(_mlp, "MLP on digits, 64–128–128–10"),
    "factor": factorisation(),
    "llama": language(512, 32, 2, sequences=16, length=32, kind="llama"),
    "llama-x8": language(512, 32, 2, sequences=128, length=32, kind="llama"),
    "swin": digits(_swin, "Swin on digits, two stages of 2 blocks, 16 and 32 wide, 32 images"),
    "swin-x8": digits(_swin, "the same Swin, 256 images", 256),
}
