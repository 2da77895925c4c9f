"""Two optimizers under one scheduler step as they would alone."""

import copy
import io
from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import SGD, AdamW

from autowarm import LMO, AdaptiveWarmup, Lion
from autowarm.optim import Together
from tests.cases import each


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def make_pair(model: nn.Module) -> Together:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return Together(torch.optim.Muon(matrices, lr=0.02), AdamW(vectors, lr=0.002))


def parts() -> tuple[nn.Module, Together, AdaptiveWarmup]:
    model = make_model()
    opt = make_pair(model)
    return model, opt, AdaptiveWarmup(opt, 20)


def loss_of(model: nn.Module, t: int) -> torch.Tensor:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(t))
    return model(x).square().mean() + 1


def train(model: nn.Module, opt: Together, sched: AdaptiveWarmup, steps: Iterable[int]) -> list[list[float]]:
    rates = []
    for t in steps:
        rates.append([group["lr"] for group in opt.param_groups])
        loss = loss_of(model, t)
        loss.backward()
        opt.step()
        sched.step(loss)
        opt.zero_grad()
    return rates


def test_it_steps_as_the_two_would_alone_and_resumes_to_the_bit() -> None:
    straight, twin = parts(), make_model()
    rates = train(*straight, range(20))
    assert straight[2].phase == "decay"
    assert all(muon == pytest.approx(10 * adamw) for muon, adamw in rates)
    pair = make_pair(twin).optimizers
    for t in range(20):
        loss_of(twin, t).backward()
        for one, rate in zip(pair, rates[t], strict=True):
            one.param_groups[0]["lr"] = rate
            one.step()
            one.zero_grad()
    file, stopped, resumed = io.BytesIO(), parts(), parts()
    first = train(*stopped, range(7))
    torch.save([one.state_dict() for one in stopped], file)
    file.seek(0)
    for one, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
        one.load_state_dict(state)
    assert first + train(*resumed, range(7, 20)) == rates
    for other in (twin, resumed[0]):
        assert all(map(torch.equal, other.parameters(), straight[0].parameters()))


def test_checkpointing_tools_that_read_groups_and_state_can() -> None:
    model, opt, _ = parts()
    weight = model[0].weight
    assert opt.state.get(weight) is None  # which does not make one
    assert not opt.state
    loss_of(model, 0).backward()
    opt.step()
    assert set(opt.state) == set(model.parameters())
    assert opt.state[weight] is opt.optimizers[0].state[weight]
    saved = copy.deepcopy(get_optimizer_state_dict(model, opt))
    before = opt.state[weight]["momentum_buffer"].clone()
    loss_of(model, 1).backward()
    opt.step()
    assert not torch.equal(opt.state[weight]["momentum_buffer"], before)
    set_optimizer_state_dict(model, opt, saved)
    assert torch.equal(opt.state[weight]["momentum_buffer"], before)


def test_a_closure_is_called_once_and_a_scaler_can_skip() -> None:
    (model, opt, _), calls = parts(), []

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = loss_of(model, len(calls))
        loss.backward()
        calls.append(loss)
        return loss

    assert opt.step(closure) is calls[0]
    assert len(calls) == 1
    sched, scaler = AdaptiveWarmup(opt, 20), torch.amp.GradScaler("cpu", init_scale=2.0)
    for t in range(3):
        loss = loss_of(model, t)
        scaler.scale(loss * (float("inf") if t == 1 else 1)).backward()
        scaler.step(opt)
        scaler.update()
        sched.step(loss)
        opt.zero_grad()
    assert sched.last_epoch == 2


def test_misuse() -> None:
    model, opt, _ = parts()
    with pytest.raises(ValueError, match="at least one"):
        Together()
    with pytest.raises(ValueError, match=r"shape \(8, 6\) is in two optimizers, SGD and AdamW"):
        Together(SGD(model.parameters()), AdamW([model[0].weight]))
    with pytest.raises(TypeError, match="one of Together's optimizers"):
        opt.add_param_group({"params": []})
    with pytest.raises(ValueError, match=r"saved \[4\], here \[2, 2\]"):
        opt.load_state_dict(Together(AdamW(model.parameters())).state_dict())


def test_its_state_hooks_are_called() -> None:
    (_, both, _), said = parts(), []
    both.register_state_dict_pre_hook(lambda opt: said.append("before saving"))
    both.register_state_dict_post_hook(lambda opt, state: {**state, "more": 1})
    both.register_load_state_dict_pre_hook(lambda opt, state: {k: v for k, v in state.items() if k != "more"})
    both.register_load_state_dict_post_hook(lambda opt: said.append("after loading"))
    state = both.state_dict()
    assert state["more"] == 1
    both.load_state_dict(state)
    assert said == ["before saving", "after loading"]


@each("place", [0, 1])
@each("rate", [float, torch.tensor])
def test_a_group_added_to_either_optimizer_has_its_own_peak(place: int, rate: type) -> None:
    first, second, late = (nn.Parameter(torch.zeros(4, 4)) for _ in range(3))
    both = Together(Lion([first], lr=rate(0.02)), Lion([second], lr=rate(0.002)))
    sched = AdaptiveWarmup(both, total_steps=20)
    most = [0.0, 0.0, 0.0]
    for t in range(20):
        if t == 3:
            both.optimizers[place].add_param_group({"params": [late], "lr": rate(0.5)})
        both.step()
        sched.step(5.0)
        by_tensor = {id(group["params"][0]): float(group["lr"]) for group in both.param_groups}
        most = [max(known, by_tensor.get(id(p), 0.0)) for known, p in zip(most, (first, second, late), strict=True)]
    assert most == pytest.approx([0.02, 0.002, 0.5])


def test_a_bad_share_of_a_nested_one_loads_nothing() -> None:
    def make(geometry: str) -> tuple[nn.Module, Together]:
        model = make_model()
        inner = Together(LMO([model[0].weight], lr=0.01, geometry=geometry))
        return model, Together(AdamW([model[2].weight], lr=0.01), inner)

    model, saved = make("sign")
    loss_of(model, 0).backward()
    saved.step()
    _, other = make("spectral")
    with pytest.raises(ValueError, match="other geometries"):
        other.load_state_dict(saved.state_dict())
    assert len(other.state) == 0


@each(
    ("kind", "bad"),
    [
        *(("sparse", torch.eye(3).to_sparse()), ("complex", torch.eye(3) + 1j)),
        ("whole", torch.eye(3, dtype=torch.int64)),
    ],
)
@each("nested", [False, True])
def test_whatever_one_of_ours_refuses_is_refused_before_another_steps(
    kind: str, bad: torch.Tensor, nested: bool
) -> None:
    first, second = (nn.Parameter(torch.ones(3, 3)) for _ in range(2))
    last = Lion([second], lr=0.1)
    opt = Together(SGD([first], lr=0.1), Together(last) if nested else last)
    first.grad = torch.ones(3, 3)
    second.grad_dtype = None
    second.grad = bad
    with pytest.raises(ValueError, match=f"Lion needs.*{kind}"):
        opt.step()
    assert torch.equal(first, torch.ones(3, 3))
