"""Six tasks unlike those of the warm-up study, to test a rule that was chosen without them.

Three have losses that fall to zero: a classifier without label smoothing, a regression without noise, and a copier that
finds the answer in its input. The loss of another, an autoencoder with a narrow bottleneck, stays far from zero. The
others are a convolutional network and a policy gradient, whose loss may be negative and does not measure success.
"""

from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autowarm.lab.tasks.recipes import Recipe, Transformer
from autowarm.lab.tasks.small.mlp import TASK as _DIGITS

_FEATURES, _ACTIONS = 16, 8
_SYMBOLS, _COPIED = 16, 12


def generator(*key: int) -> torch.Generator:
    """Return a generator seeded by the key. The global generator is left alone."""
    mixed = 0
    for part in key:
        mixed = (mixed * 1_000_003 + part + 1) % 2**63
    return torch.Generator().manual_seed(mixed)


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 10),
    )  # fmt: skip


def _cross_entropy(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def _autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6), nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64)
    )


def _reconstruction(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(model(images), images.flatten(1))


def _regressor() -> nn.Module:
    return nn.Sequential(nn.Linear(_FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


@cache
def _teacher() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(_FEATURES, 8), nn.Tanh(), nn.Linear(8, 4)).requires_grad_(False)


def _taught(count: int, *key: int) -> tuple[Tensor, Tensor]:
    """Points and the outputs of a small, fixed network."""
    x = torch.randn(count, _FEATURES, generator=generator(*key))
    return x, _teacher()(x)


def _squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def _repeated(count: int, *key: int) -> tuple[Tensor]:
    """Rows of symbols that are repeated after a pause."""
    said = torch.randint(1, _SYMBOLS, (count, _COPIED), generator=generator(*key))
    return (torch.cat((said, torch.zeros(count, 1, dtype=torch.long), said), 1),)


def _repetition(model: nn.Module, tokens: Tensor) -> Tensor:
    """The loss of the repetition alone."""
    logits = model(tokens[:, :-1])[:, _COPIED:]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, _COPIED + 1 :].flatten())


def _policy() -> nn.Module:
    return nn.Sequential(nn.Linear(_FEATURES, 64), nn.Tanh(), nn.Linear(64, _ACTIONS))


@cache
def _right_actions() -> Tensor:
    return torch.randn(_FEATURES, _ACTIONS, generator=generator(5))


def _contexts(count: int, *key: int) -> tuple[Tensor, Tensor]:
    """Contexts of a bandit. In each, one of eight actions is right and pays 1."""
    x = torch.randn(count, _FEATURES, generator=generator(*key))
    return x, (x @ _right_actions()).argmax(1)


def _reinforce(model: nn.Module, x: Tensor, right: Tensor) -> Tensor:
    chances = model(x).log_softmax(1)
    taken = torch.multinomial(chances.detach().exp(), 1).squeeze(1)
    reward = (taken == right).float()
    return -((reward - reward.mean()) * chances.gather(1, taken[:, None]).squeeze(1)).mean()


def _missed_reward(model: nn.Module, x: Tensor, right: Tensor) -> dict[str, Tensor]:
    """Return as loss the exact difference between the best reward, 1, and the policy's expected reward."""
    return {"loss": 1 - model(x).softmax(1).gather(1, right[:, None]).mean()}


TASKS: dict[str, Recipe] = {
    "unsmoothed": Recipe(_classifier, _DIGITS.draw, _cross_entropy, _DIGITS.validation),
    "cnn": Recipe(_cnn, _DIGITS.draw, _cross_entropy, _DIGITS.validation),
    "autoencoder": Recipe(_autoencoder, _DIGITS.draw, _reconstruction, _DIGITS.validation),
    "regression": Recipe(_regressor, partial(_taught, 32), _squared_error, lambda: iter([_taught(1024, -3)])),
    "copier": Recipe(
        partial(Transformer, _SYMBOLS, _SYMBOLS, 2 * _COPIED, width=32, depth=2, causal=True),
        partial(_repeated, 32), _repetition, lambda: iter([_repeated(512, -4)]),
    ),
    "policy": Recipe(
        _policy, partial(_contexts, 64), _reinforce, lambda: iter([_contexts(2048, -6)]), _missed_reward,
        first_bounds=False,
    ),
}  # fmt: skip
