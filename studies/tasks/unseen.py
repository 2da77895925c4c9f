"""Six more tasks, listed before any rule or rate was tried on them; their runs are planned in `plans.unseen`.

- "recurrent": a diagonal linear recurrence with gates (a small state-space model) on bytes of Python's source.
- "graph": message passing on random graphs; each node says in how many triangles it is.
- "flow": an MLP learns the velocity of flow matching from noise to 8×8 digits, a squared error that stays high.
- "contrastive": InfoNCE between two noisy views of each digit, with the rest of the batch as negatives.
- "series": a dilated convolution forecasts the next value of noisy sums of two sinusoids.
- "bytes-192": a transformer of width 192 on bytes, the largest network of all studies' tasks.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autowarm.lab.tasks import Batch
from autowarm.lab.tasks.recipes import Recipe, Transformer, language
from autowarm.lab.tasks.small.mlp import TASK as _DIGITS

from .fresh import generator

_BYTES = 257  # the lab's tokens of single bytes
_NODES, _MOST = 12, 3  # of a graph; triangles that are told apart
_WINDOW = 32  # values of a series


class _Recurrence(nn.Module):
    """h ← a·h + (1 − a)·u along the sequence, with a gate a from the input, then a gated output and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inward, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        u, gate, keep = self.inward(self.norm(x)).chunk(3, -1)
        keep = torch.sigmoid(keep + 2.0)
        h, states = torch.zeros_like(u[:, 0]), []
        for a, new in zip(keep.unbind(1), u.unbind(1), strict=True):
            h = a * h + (1.0 - a) * new
            states.append(h)
        return x + self.out(torch.stack(states, 1) * F.silu(gate))


def _recurrent() -> nn.Module:
    width = 64
    return nn.Sequential(
        nn.Embedding(_BYTES, width), _Recurrence(width), _Recurrence(width), nn.LayerNorm(width),
        nn.Linear(width, _BYTES),
    )  # fmt: skip


class _Messages(nn.Module):
    """Each node adds the sum over its neighbours, through a layer, to itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return x + F.relu(self.own(x) + edges @ self.others(x))


class _Graph(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(_NODES, width), nn.Linear(width, _MOST + 1)
        self.layers = nn.ModuleList(_Messages(width) for _ in range(3))

    def forward(self, edges: Tensor) -> Tensor:
        x = self.embed(edges)  # a node is told its neighbours by number
        for layer in self.layers:
            x = layer(x, edges / _NODES**0.5)
        return self.head(x)


def _graphs(count: int, *key: int) -> tuple[Tensor, Tensor]:
    """Adjacency matrices, and for each node in how many triangles it is, `_MOST` at most."""
    edges = torch.triu((torch.rand(count, _NODES, _NODES, generator=generator(*key)) < 0.3).float(), 1)
    edges = edges + edges.mT
    triangles = (edges @ edges @ edges).diagonal(dim1=1, dim2=2) / 2
    return edges, triangles.long().clamp(max=_MOST)


def _triangles(model: nn.Module, edges: Tensor, counts: Tensor) -> Tensor:
    return F.cross_entropy(model(edges).flatten(0, 1), counts.flatten())


def _velocity() -> nn.Module:
    return nn.Sequential(nn.Linear(65, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 64))


def _with_noise(images: Tensor, *key: int) -> Batch:
    """Digits of about unit variance, noise, and a time for each."""
    draw = generator(*key)
    x = 2.5 * images.flatten(1)
    return x, torch.randn(x.shape, generator=draw), torch.rand(len(x), 1, generator=draw)


def _flow(model: nn.Module, x: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    return F.mse_loss(model(torch.cat(((1 - time) * noise + time * x, time), 1)), x - noise)


def _views(images: Tensor, *key: int) -> Batch:
    """Two noisy copies of each image."""
    x = images.flatten(1)
    return tuple(x + 0.3 * torch.randn(x.shape, generator=generator(*key, view)) for view in range(2))


def _encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 32))


def _info_nce(model: nn.Module, one: Tensor, other: Tensor) -> Tensor:
    a, b = (F.normalize(model(view), dim=1) for view in (one, other))
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


class _Causal(nn.Module):
    """Dilated convolutions that see the past alone."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [1, width, width, width]
        self.layers = nn.ModuleList(nn.Conv1d(sizes[i], width, 3, dilation=2**i) for i in range(3))
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        for i, layer in enumerate(self.layers):
            y = F.gelu(layer(F.pad(x, (2 * 2**i, 0))))
            x = x + y if i else y
        return self.head(x)[:, 0]


def _series(count: int, *key: int) -> tuple[Tensor]:
    draw = generator(*key)
    at = torch.arange(_WINDOW + 1.0)
    speed, phase = torch.rand(2, count, 2, 1, generator=draw)
    clean = torch.sin(at * (0.2 + speed) + 2 * math.pi * phase).sum(1)
    return (clean + 0.1 * torch.randn(clean.shape, generator=draw),)


def _forecast(model: nn.Module, values: Tensor) -> Tensor:
    return F.mse_loss(model(values[:, :-1]), values[:, 1:])


def _held_out_digits() -> Tensor:
    [(images, _)] = _DIGITS.validation()
    return images


def _one(batch: Batch) -> Iterator[Batch]:
    return iter([batch])


TASKS: dict[str, Recipe] = {
    "recurrent": language(_recurrent, _BYTES, sequences=8),
    "graph": Recipe(
        _Graph, lambda seed, step: _graphs(16, seed, step), _triangles, lambda: _one(_graphs(256, -7))
    ),
    "flow": Recipe(
        _velocity, lambda seed, step: _with_noise(_DIGITS.draw(seed, step)[0], seed, step), _flow,
        lambda: _one(_with_noise(_held_out_digits(), -8)),
    ),
    "contrastive": Recipe(
        _encoder, lambda seed, step: _views(_DIGITS.draw(seed, step)[0], seed, step), _info_nce,
        lambda: _one(_views(_held_out_digits()[:128], -9)),
    ),
    "series": Recipe(_Causal, lambda seed, step: _series(16, seed, step), _forecast, lambda: _one(_series(512, -10))),
    "bytes-192": language(
        lambda: Transformer(_BYTES, _BYTES, 32, width=192, depth=3, causal=True), _BYTES, sequences=8
    ),
}  # fmt: skip
