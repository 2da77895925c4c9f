"""The optimizers that the tables of tests go through, which a new one joins by a line, and what these tests share."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.optim import Together

Make = Callable[..., Optimizer]
CLASSES = (Muon, Lion, SignSGD, NormSGD, LMO)


@dataclass(frozen=True)
class Made:
    """An optimizer of tensors, or of a model; its options may be those of its group."""

    cls: type[LMO]
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, params: Iterable[Any], lr: Any = 0.1, **options: Any) -> LMO:
        given = self.options | options
        group = {"algorithm": given.pop("algorithm")} if "algorithm" in given else {}
        return self.cls([{"params": params, **group}] if group else params, lr, **given)

    def of_model(self, model: nn.Module, lr: Any = 0.1, **options: Any) -> LMO:
        return self.cls.from_model(model, lr, **self.options | options)


EVERY = {
    "muon": Made(Muon),
    "muon, newton-schulz": Made(Muon, {"method": "newton-schulz", "nesterov": False}),
    "adamw part": Made(Muon, {"algorithm": "adamw"}),
    "lion": Made(Lion),
    "signsgd": Made(SignSGD),
    "signsgd, no momentum": Made(SignSGD, {"momentum": 0.0}),
    "signsgd, nesterov": Made(SignSGD, {"nesterov": True}),
    "normsgd": Made(NormSGD),
    "normsgd, nesterov": Made(NormSGD, {"nesterov": True}),
    "lmo": Made(LMO),
    "svd, nesterov": Made(LMO, {"nesterov": True}),
    "rows": Made(LMO, {"geometry": "rows"}),
    "columns": Made(LMO, {"geometry": "columns", "momentum": 0.0}),
}


def halves(model: nn.Module) -> tuple[list[tuple[str, nn.Parameter]], list[tuple[str, nn.Parameter]]]:
    """A model's matrices and its vectors, with their names."""
    named = list(model.named_parameters())
    return [(n, p) for n, p in named if p.ndim > 1], [(n, p) for n, p in named if p.ndim < 2]


def together(model: nn.Module, lr: float | Tensor = 0.1, **options: Any) -> Together:
    matrices, vectors = halves(model)
    return Together(Muon(matrices, lr=lr, **options), AdamW(vectors, lr=lr))


# Of a model.
OURS: dict[str, Make] = {name: EVERY[name].of_model for name in ("muon", "lion", "signsgd", "normsgd", "lmo", "rows")}
ALL: dict[str, Make] = OURS | {"together": together}


@contextmanager
def unmoved(params: Iterable[Tensor]) -> Iterator[None]:
    """Asserts that what is done inside changes no tensor."""
    params = list(params)
    before = [p.detach().clone() for p in params]
    yield
    assert all(map(torch.equal, before, params))


@contextmanager
def nothing_taken(opt: Optimizer, message: str) -> Iterator[pytest.ExceptionInfo]:
    """Asserts that a state is refused with this message, and nothing of it loaded."""
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(ValueError, match=message) as refused:
        yield refused
    after = opt.state_dict()
    assert after["param_groups"] == before["param_groups"]
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


def drawn(shapes: Iterable[Iterable[int]], seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Normal tensors, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tuple(shape), generator=generator, dtype=dtype) for shape in shapes]


def draw_gradients(model: nn.Module, seed: int) -> None:
    """Give every tensor a gradient, the same for the same seed, in the tensor's dtype."""
    for p, g in zip(model.parameters(), drawn([p.shape for p in model.parameters()], seed), strict=True):
        p.grad = g.to(p.dtype)


def set_gradient(p: Tensor, grad: Tensor) -> None:
    """Set a gradient of any dtype, as PyTorch allows where ``grad_dtype`` does."""
    p.grad = None
    if hasattr(p, "grad_dtype"):
        p.grad_dtype = grad.dtype
        p.grad = grad
    else:
        content = p.data
        p.data = content.to(grad.dtype)
        p.grad = grad
        p.data = content


# Of tensors, and other ones of their gradients.
DTYPES = [
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float64, torch.float32),
]


def said_by(do: Callable[[], Any]) -> list[str]:
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    return [str(one.message) for one in caught]


def peak_bytes(do: Callable[[], Any]) -> int:
    """How much memory a call holds at most, beyond what was held before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        do()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
