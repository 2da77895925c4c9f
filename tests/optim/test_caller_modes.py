"""Autocast and gradients of another dtype change no step, and inference mode is refused."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autowarm import LMO, Muon
from autowarm.geometry import Spectral
from tests.cases import each
from tests.optim import makers
from tests.optim.makers import DTYPES, EVERY, Make, draw_gradients, set_gradient

OURS: dict[str, Make] = makers.OURS | {
    "muon, newton-schulz": EVERY["muon, newton-schulz"].of_model,
    "columns": lambda m, lr: LMO.from_model(m, lr, geometry="columns"),
    "muon, bfloat16": lambda m, lr: Muon.from_model(m, lr, dtype=torch.bfloat16),
    "muon, blocks": lambda m, lr: Muon.from_model(m, lr, blocks={"0": 4}, adamw_lr=1e-3),
    "lmo, polar": lambda m, lr: LMO.from_model(m, lr, geometry=Spectral(method="polar-express"), nesterov=True),
}
MAKERS = OURS | {"together": makers.together}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
our_optimizers = pytest.mark.parametrize("make", OURS.values(), ids=OURS)
every_lr = pytest.mark.parametrize("lr", [lambda: 1e-2, lambda: torch.tensor(1e-2)], ids=["float lr", "tensor lr"])
Mode = Callable[[], AbstractContextManager[object]]


def a_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 4)).to(dtype)


def trained(make: Make, lr: float | Tensor, *modes: Mode) -> list[Tensor]:
    """The parameters after a step in each mode."""
    model = a_model()
    opt = make(model, lr)
    for step, mode in enumerate(modes):
        draw_gradients(model, step)
        with mode():
            opt.step()
    return [p.detach().clone() for p in model.parameters()]


def autocast(dtype: torch.dtype) -> Mode:
    return lambda: torch.autocast("cpu", dtype)


@every_optimizer
@every_lr
@each("mode", [autocast(torch.bfloat16), autocast(torch.float16), torch.no_grad])
@each("made_inside", [False, True])
def test_a_mode_changes_no_bit_of_this_step_or_the_next(
    make: Make, lr: Callable, mode: Mode, made_inside: bool
) -> None:
    plain = trained(make, lr(), *[nullcontext] * 3)
    with mode() if made_inside else nullcontext():
        rate = lr()
    for modes in ([mode] * 3, [mode, nullcontext, mode]):
        assert all(map(torch.equal, plain, trained(make, rate, *modes)))


@every_optimizer
@each("closure", [None, lambda: 0.0])
def test_a_step_in_inference_mode_is_refused_and_the_next_is_as_if_it_had_not_been(make: Make, closure: Any) -> None:
    model, plain = a_model(), a_model()
    opts = make(model, 1e-2), make(plain, 1e-2)
    for step in range(2):
        draw_gradients(model, step)
        draw_gradients(plain, step)
        before = [p.detach().clone() for p in model.parameters()]
        with torch.inference_mode(), pytest.raises(RuntimeError, match=r"step was called in torch.inference_mode"):
            opts[0].step(closure)
        assert all(map(torch.equal, model.parameters(), before))
        for opt in opts:
            opt.step()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@our_optimizers
@each(("dtype", "of_gradients"), DTYPES)
@each("mixed", [False, True])
def test_gradients_of_another_dtype_step_as_if_converted(
    make: Make, dtype: torch.dtype, of_gradients: torch.dtype, mixed: bool
) -> None:
    converted, as_they_are = a_model(dtype), a_model(dtype)
    opts = make(converted, 1e-2), make(as_they_are, 1e-2)
    for step in range(2):
        draw_gradients(converted, step)
        for i, (p, q) in enumerate(zip(converted.parameters(), as_they_are.parameters(), strict=True)):
            g = p.grad.to(of_gradients)
            p.grad = g.to(dtype)
            set_gradient(q, g if not mixed or i % 2 else g.to(dtype))
        entries = [q.grad.clone() for q in as_they_are.parameters()]
        for opt in opts:
            opt.step()
        assert all(torch.equal(q.grad, g) for q, g in zip(as_they_are.parameters(), entries, strict=True))
    assert all(map(torch.equal, converted.parameters(), as_they_are.parameters()))
