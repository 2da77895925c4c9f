import copy
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD, find_rate
from autowarm.smoothness import Probe
from tests.closures import backward_of

OPTIMIZERS = {"muon": (Muon, 3e-3), "lion": (Lion, 1e-3), "normsgd": (NormSGD, 3e-2)}


def batches(count=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(12, 6, generator=generator), torch.randn(12, 3, generator=generator)) for _ in range(count)]


def closure_for(model, x, y, parts=1):
    def closure():
        total = 0.0
        for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = nn.functional.mse_loss(model(xs), ys) / parts
            loss.backward()
            total = total + loss.detach()
        return total

    return closure


class Noise(nn.Module):
    """Draws from Python's and numpy's generators, as some augmentations do, and counts in a buffer that it replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x * (1 + 0.01 * random.random() + 0.01 * np.random.rand())  # noqa: NPY002


def network(*, noisy=True):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), Noise(), nn.Linear(16, 3)]
    return nn.Sequential(*(layers if noisy else [layers[0], nn.Tanh(), layers[-1]]))


def seed_all():
    random.seed(5)
    np.random.seed(6)  # noqa: NPY002
    torch.manual_seed(7)


def run(name, *, probed, parts):
    cls, lr = OPTIMIZERS[name]
    model = network()
    opt = cls.from_model(model, lr=lr)
    probe = Probe(model, opt) if probed else None
    seed_all()
    for x, y in batches():
        closure = closure_for(model, x, y, parts)
        with probe(closure) if probe else nullcontext(closure()):
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            opt.step()
            left = [(p, p.grad, p.grad.clone()) for p in model.parameters()]
            modes = [m.training for m in model.modules()]
        assert all(p.grad is tensor and torch.equal(tensor, content) for p, tensor, content in left)
        assert [m.training for m in model.modules()] == modes
        opt.zero_grad()
    return model, probe


def measured(model, opt, closure, **options):
    """The point of one step."""
    probe = Probe(model, opt, **options)
    with probe(closure):
        opt.step()
    [point] = probe.points
    return point


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("parts", [1, 3])
def test_training_is_bit_equal_with_and_without_the_probe(name, parts):
    with_it, probe = run(name, probed=True, parts=parts)
    drawn = random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002
    without, _ = run(name, probed=False, parts=parts)
    assert drawn == (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
    for (key, a), b in zip(with_it.state_dict().items(), without.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    assert len(probe.points) == 8


def test_both_passes_see_the_same_dropout_masks():
    """At a step that goes nowhere nothing changes, so any difference would be noise of the passes."""
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    probe = Probe(model, opt, geometry="sign")
    seed_all()
    for x, y in batches(3):
        with probe(closure_for(model, x, y)):
            opt.step()
        opt.zero_grad()
    assert [p.gradient_change for p in probe.points] == [0.0] * 3
    assert all(p.loss == p.loss_after and np.isnan(p.smoothness) for p in probe.points)


def naive(model, opt, x, y, geometry):
    """K and slopes in float64 by the plainest means: two deep copies and full singular value decompositions."""
    before = copy.deepcopy(model).double()
    opt_step = copy.deepcopy(model)
    closure_for(opt_step, x, y)()
    moved = type(opt)(opt_step.parameters(), lr=opt.param_groups[0]["lr"], **geometry_options(opt))
    moved.step()
    after = copy.deepcopy(opt_step).double()
    after.zero_grad()
    for net in (before, after):
        closure_for(net, x.double(), y.double())()
    pairs = list(zip(before.parameters(), after.parameters(), strict=True))
    matrices = [(a, b) for a, b in pairs if a.ndim == 2]
    order = {"spectral": ("nuc", 2), "frobenius": ("fro", "fro")}.get(geometry)

    def norm(t, which):
        if geometry == "sign":
            return t.abs().sum() if which == 0 else t.abs().max()
        return torch.linalg.matrix_norm(t, ord=order[which])

    change = sum(norm(b.grad - a.grad, 0) for a, b in matrices)
    size = max(norm((b - a).detach(), 1) for a, b in matrices)
    slope = sum((a.grad * (b - a).detach()).sum() for a, b in pairs)
    return (change / size).item(), slope.item()


def geometry_options(opt):
    return {"momentum": 0.0} if isinstance(opt, NormSGD) else {}


@pytest.mark.parametrize(("cls", "lr", "geometry"), [(Lion, 1e-2, "sign"), (NormSGD, 0.3, "frobenius")])
@pytest.mark.parametrize("by", ["sign", "spectral", "frobenius"])
def test_agreement_with_a_naive_double_precision_implementation(cls, lr, geometry, by):
    model = network(noisy=False).double()
    opt = cls(model.parameters(), lr=lr, **({"momentum": 0.0} if cls is NormSGD else {}))
    x, y = (t.double() for t in batches(1)[0])
    expected, slope = naive(model, opt, x, y, by)
    point = measured(model, opt, closure_for(model, x, y), geometry=None if by == geometry else by)
    assert point.smoothness == pytest.approx(expected, rel=1e-6)
    assert point.slope == pytest.approx(slope, rel=1e-6)


def test_curvature_along_the_step_of_a_quadratic():
    """f(x) = ½·xᵀAx: the second difference, the slopes and η⋆ are known."""
    torch.manual_seed(3)
    A = torch.randn(5, 5, dtype=torch.float64)
    A = A @ A.T
    x = nn.Parameter(torch.randn(5, dtype=torch.float64))
    start = x.detach().clone()
    point = measured(nn.ParameterList([x]), Lion([x], lr=0.01), backward_of(lambda: 0.5 * x @ A @ x))
    δ = x.detach() - start
    assert point.step_norm == pytest.approx(0.01)
    assert point.curvature_by_slopes == pytest.approx((δ @ A @ δ / 0.01**2).item(), rel=1e-8)
    assert point.curvature_l2 == pytest.approx((δ @ A @ δ / (δ @ δ)).item(), rel=1e-8)
    d = δ / 0.01
    assert point.best_rate == pytest.approx((-(A @ start) @ d / (d @ A @ d)).item(), rel=1e-8)
    assert point.curvature_by_slopes <= point.smoothness * (1 + 1e-9)  # both are δᵀAδ/‖δ‖² here
    assert replace(point, slope=1.0).best_rate is None  # uphill


def test_probed_steps_have_their_number_and_the_rate_of_a_schedule():
    model = network()
    opt = Lion(model.parameters(), lr=1e-2)
    sched = AdaptiveWarmup(opt, total_steps=8)
    probe, rates = Probe(model, opt, every=3), []
    for x, y in batches():
        rates.append(opt.param_groups[0]["lr"])
        with probe(closure_for(model, x, y)) as loss:
            opt.step()
        sched.step(loss)
        opt.zero_grad()
    assert [(p.step, p.rate) for p in probe.points] == [(step, rates[step]) for step in (0, 3, 6)]


def test_bad_input():
    model = network()
    with pytest.warns(UserWarning, match="RMSprop is no norm-constrained optimizer"):
        Probe(model, torch.optim.RMSprop(model.parameters()))
    closure = closure_for(model, *batches(1)[0])
    with pytest.raises(TypeError, match="returns a float: let it return the loss as a tensor"):
        Probe(model, Lion(model.parameters()))(lambda: float(closure())).__enter__()


def test_gradients_of_an_earlier_step_are_found_out():
    model = nn.Linear(3, 2)
    probe = Probe(model, torch.optim.SGD(model.parameters(), lr=0.1), geometry="spectral")
    closure = backward_of(lambda: model(torch.ones(4, 3)).square().mean())
    with probe(closure):
        pass
    with pytest.raises(RuntimeError, match="those of an earlier step are still there: call optimizer.zero_grad"):
        probe(closure).__enter__()
    model.zero_grad(set_to_none=False)
    with probe(closure):
        pass
    assert len(probe.points) == 2


@pytest.mark.parametrize("optimizer", [Lion, torch.optim.AdamW])
@pytest.mark.parametrize(
    ("closure", "error", "message"),
    [
        (lambda model: None, TypeError, "returns nothing: let it return the loss"),
        (lambda model: model(torch.ones(2, 4)).sum(), ValueError, "ran no backward pass"),
        (
            lambda model: nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward() or torch.ones(()),
            ValueError,
            "no tensor has",
        ),
        (lambda model: model(torch.ones(2, 4)).sum().backward(), TypeError, "returns nothing"),
    ],
)
def test_a_closure_that_measures_nothing_is_told_so(
    closure: Callable[[nn.Module], Any], error: type[Exception], message: str, optimizer: Any
) -> None:
    """Also by `find_rate`, whose closure is of the same kind."""
    model = nn.Linear(4, 4)
    opt = optimizer(model.parameters(), lr=0.1)
    with pytest.raises(error, match=message), Probe(model, opt)(lambda: closure(model)):
        opt.step()
    opt.zero_grad()
    with pytest.raises(error, match=message):
        find_rate(model, opt, lambda: closure(model), total_steps=100)
