"""Forward and backward passes that leave no trace."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def untouched(model: nn.Module, params: Iterable[Tensor]) -> Iterator[None]:
    """Restore generators, buffers and gradients of a model and further tensors afterwards; gradients start as None."""
    before = generators()
    everything = list({id(p): p for p in [*params, *model.parameters()]}.values())
    # DDP may keep gradients as views of its buckets, which the next backward pass overwrites.
    views = {p: p.grad.detach().clone() for p in everything if p.grad is not None and p.grad._is_view()}
    grads = [(p, p.grad, views.get(p)) for p in everything]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    for p in everything:
        p.grad = None
    try:
        yield
    finally:
        set_generators(before)
        with torch.no_grad():
            for p, grad, content in grads:
                if grad is not None and content is not None:
                    grad.copy_(content)
                p.grad = grad
            for module, name, buffer, content in buffers:
                # A forward pass may change a buffer in place or replace it.
                if not overlaps_itself(buffer):
                    buffer.copy_(content)
                put_back(module, name, buffer)


def put_back(module: nn.Module, name: str, buffer: Tensor) -> None:
    """Let a module have its buffer again, but leave it one that has grown: its attributes count on the new size."""
    now = module._buffers.get(name)
    if now is None or now.shape == buffer.shape:
        module._buffers[name] = buffer


def overlaps_itself(x: Tensor) -> bool:
    """Whether several entries share memory, as in an expanded tensor: then none of them can change in place."""
    return x.layout is torch.strided and any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True))


def generators() -> dict[str, Any]:
    """The states of the global generators: Python's, NumPy's, PyTorch's on the CPU and on accelerators in use."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - it is the global one that training may use
        "torch": torch.get_rng_state(),
    }
    for device in _accelerators():
        states[device] = torch.get_device_module(device).get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Restore the states."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    for device in _accelerators():
        if device in states:
            torch.get_device_module(device).set_rng_state_all(states[device])
    if "mps" in states:
        torch.mps.set_rng_state(states["mps"])


def _accelerators() -> list[str]:
    return [name for name in ("cuda", "xpu") if torch.get_device_module(name).is_initialized()]
