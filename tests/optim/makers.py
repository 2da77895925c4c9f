"""Optimizers of a model that many tables of tests go through, and what these tests share."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.optim import Together

Make = Callable[..., Optimizer]


def halves(model: nn.Module) -> tuple[list[tuple[str, nn.Parameter]], list[tuple[str, nn.Parameter]]]:
    """A model's matrices and its vectors, with their names."""
    named = list(model.named_parameters())
    return [(n, p) for n, p in named if p.ndim > 1], [(n, p) for n, p in named if p.ndim < 2]


def together(model: nn.Module, lr: float | Tensor = 0.1, **options: Any) -> Together:
    matrices, vectors = halves(model)
    return Together(Muon(matrices, lr=lr, **options), AdamW(vectors, lr=lr))


OURS: dict[str, Make] = {
    "muon": lambda m, lr=0.1, **o: Muon.from_model(m, lr=lr, **o),
    "lion": lambda m, lr=0.1, **o: Lion.from_model(m, lr=lr, **o),
    "signsgd": lambda m, lr=0.1, **o: SignSGD.from_model(m, lr=lr, **o),
    "normsgd": lambda m, lr=0.1, **o: NormSGD.from_model(m, lr=lr, **o),
    "lmo": lambda m, lr=0.1, **o: LMO.from_model(m, lr=lr, **o),
    "rows": lambda m, lr=0.1, **o: LMO.from_model(m, lr=lr, geometry="rows", **o),
}
ALL: dict[str, Make] = OURS | {"together": together}


@contextmanager
def unmoved(params: Iterable[Tensor]) -> Iterator[None]:
    """Asserts that what is done inside changes no tensor."""
    params = list(params)
    before = [p.detach().clone() for p in params]
    yield
    assert all(map(torch.equal, before, params))


def draw_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    """Give every tensor a gradient, the same for the same seed, in the tensor's dtype."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = (scale * torch.randn(p.shape, generator=generator)).to(p.dtype)
