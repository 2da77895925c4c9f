"""Gradients that are not finite, or too large: the whole update is skipped and counted, and training goes on."""

import copy
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Spectral
from autowarm.optim import Together
from autowarm.optim.step import nonfinite
from tests.cases import each

MAKERS = {
    "muon": lambda m, **kw: Muon.from_model(m, dtype=torch.float32, **kw),
    "muon, newton-schulz": lambda m, **kw: Muon.from_model(m, method="newton-schulz", dtype=torch.float32, **kw),
    "lion": lambda m, **kw: Lion.from_model(m, **kw),
    "signsgd": lambda m, **kw: SignSGD.from_model(m, **kw),
    "signsgd, no momentum": lambda m, **kw: SignSGD.from_model(m, momentum=0.0, **kw),
    "normsgd": lambda m, **kw: NormSGD.from_model(m, **kw),
    "normsgd, from weights": lambda m, **kw: NormSGD.from_model(m, momentum_init="weights", **kw),
    "svd": lambda m, **kw: LMO.from_model(m, geometry=Spectral(), **kw),
    "svd, nesterov": lambda m, **kw: LMO.from_model(m, geometry=Spectral(), nesterov=True, **kw),
    "columns": lambda m, **kw: LMO.from_model(m, geometry="columns", **kw),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
every_lr = pytest.mark.parametrize("lr", [0.02, torch.tensor(0.02)], ids=["float lr", "tensor lr"])


@pytest.fixture(params=["host", "device"])
def flags(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a device flags are never read, so that masks are always in effect; here the same is done on the host."""
    if request.param == "device":
        monkeypatch.setattr(nonfinite, "read_on_host", lambda device: False)
    return request.param


def model_and_data() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(20, 12)), torch.randn(32, 12)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x).square().mean()


def train(model: nn.Module, x: torch.Tensor, opt: LMO, steps: int, spoil: Callable[[int], None]) -> float:
    for step in range(steps):
        opt.zero_grad()
        loss_of(model, x).backward()
        spoil(step)
        opt.step()
    return loss_of(model, x).item()


def snapshot(opt: LMO) -> dict[torch.Tensor, list[torch.Tensor]]:
    """Of each tensor, itself and all of its state."""
    params = [p for group in opt.param_groups for p in group["params"]]
    return {p: [p.detach().clone(), *(copy.deepcopy(t) for t in opt.state[p].values())] for p in params}


def is_as_before(opt: LMO, p: torch.Tensor, before: list[torch.Tensor]) -> bool:
    now = [p, *opt.state[p].values()]
    return len(now) == len(before) and all(torch.equal(a, b) for a, b in zip(now, before, strict=True))


@every_lr
@every_optimizer
@each("value", [math.nan, math.inf, -math.inf, 1e21, -1e30])
def test_one_skips_the_whole_update_and_the_next_is_made(
    make: Callable, lr: float | torch.Tensor, value: float, flags: str
) -> None:
    """1e21 is finite, and its square is not: AdamW's second moment would stay infinite, and Muon's momentum huge."""
    model, x = model_and_data()
    opt = make(model, lr=lr, weight_decay=0.1)
    train(model, x, opt, 3, lambda step: None)
    opt.zero_grad()
    twin, twin_opt = copy.deepcopy((model, opt))
    loss_of(model, x).backward()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for hit in (model[2].weight, model[4].bias):
            kept = hit.grad.clone()
            hit.grad.view(-1)[3] = value
            before = snapshot(opt)
            opt.step()
            assert all(is_as_before(opt, p, was) for p, was in before.items())
            hit.grad.copy_(kept)
    assert [str(one.message).partition(",")[0] for one in said] == [f"{type(opt).__name__}: a gradient is not finite"]
    assert opt.skipped_updates == 2
    loss_of(twin, x).backward()
    opt.step()
    twin_opt.step()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, msg=name)
        assert not torch.equal(p, before[p][0])
    other = make(copy.deepcopy(model), lr=lr, weight_decay=0.1)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))  # what is saved can be loaded


def spoilt_step(opt: LMO, p: torch.Tensor, value: float = math.nan) -> None:
    p.grad = torch.full_like(p, value)
    opt.step()


@pytest.mark.parametrize("make", [SignSGD, Lion, NormSGD, LMO, Muon], ids=lambda cls: cls.__name__)
def test_it_is_said_once_and_too_many_in_a_row_are_an_error(make: Callable, flags: str) -> None:
    p = nn.Parameter(torch.ones(3, 3))
    opt = make([p], lr=0.1, max_nonfinite=3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for value in (math.nan, math.inf, 1.0, math.nan, math.nan):
            spoilt_step(opt, p, value)
    assert len(said) == 1
    assert "autowarm" not in said[0].filename
    assert opt.skipped_updates == 4
    if flags == "device":  # of which the host learns an update later
        spoilt_step(opt, p)
    with pytest.raises(RuntimeError, match="gradients were not finite in 3 updates in a row"):
        spoilt_step(opt, p)
    assert p.isfinite().all()


def test_the_error_can_be_at_once_or_never() -> None:
    p = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="in 1 updates"), pytest.warns(UserWarning, match="not finite"):
        spoilt_step(Lion([p], lr=0.1, max_nonfinite=1), p)
    patient = Lion([p], lr=0.1, max_nonfinite=None)
    with pytest.warns(UserWarning, match="not finite"):
        spoilt_step(patient, p)
    for _ in range(59):
        spoilt_step(patient, p)
    assert patient.skipped_updates == 60
    for wrong in (0, 2.5, True):
        with pytest.raises(ValueError, match="max_nonfinite must be a whole number of at least 1"):
            Lion([p], lr=0.1, max_nonfinite=wrong)


def test_an_update_without_gradients_is_none() -> None:
    p = nn.Parameter(torch.ones(2, 2))
    opt = Lion([p], lr=0.1, max_nonfinite=2)
    with pytest.warns(UserWarning, match="not finite"):
        spoilt_step(opt, p)
    p.grad = None
    opt.step()
    with pytest.raises(RuntimeError, match="2 updates in a row"):
        spoilt_step(opt, p)


def test_counts_are_kept_on_the_device_and_arrive_by_themselves() -> None:
    """As on a GPU, with a processor for the device: what was counted is told one update later."""
    skipped = nonfinite.SkippedUpdates(None)
    skipped.prepare(torch.device("cpu"))
    good, bad = torch.tensor(True), torch.tensor(False)
    told = [tuple(skipped._count_on_device(flag, flag)) for flag in (good, bad, bad, good, bad)]
    assert told == [(0, 0), (0, 0), (1, 1), (2, 2), (0, 2)]
    assert skipped.counts.tolist() == [1, 3]


@pytest.mark.parametrize("wrap", [lambda opt: opt, Together, lambda opt: Together(Together(opt))])
def test_the_warning_points_to_the_line_that_steps(wrap: Callable) -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.full((2,), math.nan)
    opt = wrap(Lion([p]))
    with pytest.warns(UserWarning, match="a gradient is not finite") as caught:
        opt.step()
    assert [warning.filename for warning in caught] == [__file__]
