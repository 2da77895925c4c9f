"""The studies' tasks of language, images and linear networks.

They are diverse: language models of three sizes, a deep post-norm transformer (known to need warm-up), a vision
transformer and an MLP on scikit-learn's scanned digits, and a deep linear network with a known best loss. The paper's
two architectures, LLaMA and Swin, each come with a small batch and one eight times as large. "llama-long" has a quarter
of LLaMA's small batch, for runs of many steps, and "llama-bytes" reads bytes instead of tokens.
"""

import math
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autowarm.lab.config import ModelConfig
from autowarm.lab.tasks import Batch
from autowarm.lab.tasks.models import classifier, llama, token_loss
from autowarm.lab.tasks.recipes import Recipe, Transformer, digits, generator, language
from autowarm.lab.tasks.small import lm_small, mlp

_WIDTH, _DEPTH, _NOISE = 64, 4, 0.15  # of the deep linear network


def _transformer(vocab: int, width: int, depth: int, sequences: int, norm: str = "pre") -> Recipe:
    model = partial(Transformer, vocab, vocab, 32, width=width, depth=depth, causal=True, norm=norm)
    return language(model, vocab, sequences)


def _drawn_seed() -> int:
    """Draw a seed for a model builder that takes one."""
    return int(torch.randint(2**31, ()))


def _llama(vocab: int, sequences: int) -> Recipe:
    shape = ModelConfig(vocab_size=vocab, width=32, layers=2, heads=2, ff=85, seq_len=32)
    return language(lambda: llama(shape, _drawn_seed()), vocab, sequences, token_loss)


class Patches(nn.Module):
    """(batch, 8, 8) → (batch, 16, 4)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)


def _vit() -> nn.Module:
    return nn.Sequential(Patches(), Transformer(4, 10, 16, width=48, depth=3, causal=False))


def _swin() -> nn.Module:
    shape = ModelConfig(name="swin", layers=2, width=16, heads=2)
    return nn.Sequential(nn.Unflatten(1, (1, 8)), classifier(shape, _drawn_seed(), 10, (1, 8, 8)))


@cache
def _linear_map() -> Tensor:
    random = generator(1)
    left, right = (np.linalg.qr(random.standard_normal((_WIDTH, _WIDTH)))[0] for _ in range(2))
    spectrum = 2.0 / np.arange(1, _WIDTH + 1)
    return torch.from_numpy((left * spectrum @ right).astype(np.float32))


def _product() -> nn.Module:
    layers = [nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_DEPTH)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=1 / math.sqrt(_WIDTH))
    return nn.Sequential(*layers)


def _mapped(seed: int, step: int) -> Batch:
    """Points and their images under a noisy linear map with a known spectrum; f* is the variance of the noise."""
    random = generator(seed, step)
    x, noise = (torch.from_numpy(random.standard_normal((16, _WIDTH), dtype=np.float32)) for _ in range(2))
    return x, x @ _linear_map().T + _NOISE * noise


def _squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def _expected_error(model: Any, *batch: Tensor) -> dict[str, Tensor]:
    """Return the exact expected loss ‖W_L…W_1 − A‖²/width + noise²."""
    product = torch.eye(_WIDTH)
    for layer in model:
        product = layer.weight @ product
    return {"loss": (product - _linear_map()).square().sum() / _WIDTH + _NOISE**2}


TASKS: dict[str, Recipe] = {
    "lm-small": lm_small.TASK,
    "lm-middle": _transformer(1024, 96, 4, sequences=8),
    "lm-large": _transformer(2048, 256, 5, sequences=8),
    "post-norm": _transformer(512, 48, 6, sequences=16, norm="post"),
    "vit": digits(_vit),
    "mlp": mlp.TASK,
    "factor": Recipe(_product, _mapped, _squared_error, lambda: iter([(torch.empty(1),) * 2]), _expected_error),
    "llama": _llama(512, sequences=16),
    "llama-x8": _llama(512, sequences=128),
    "llama-long": _llama(512, sequences=4),
    "llama-bytes": _llama(257, sequences=4),
    "swin": digits(_swin),
    "swin-x8": digits(_swin, 256),
}
