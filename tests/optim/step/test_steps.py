"""Each optimizer against a plain reference or the package people know it from."""

import copy
import io
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Spectral


def model_and_data(seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 12))
    return model, torch.randn(32, 12)


def train(model: nn.Module, x: torch.Tensor, opt: torch.optim.Optimizer, steps: int = 15) -> list[torch.Tensor]:
    for _ in range(steps):
        opt.zero_grad()
        (model(x) - x).square().mean().backward()
        opt.step()
    return [p.detach().clone() for p in model.parameters()]


def against(ours: Callable, theirs: Callable, only_matrices: bool = False, **tolerance: float) -> None:
    results = []
    for make in (ours, theirs):
        model, x = model_and_data()
        params = [p for p in model.parameters() if p.ndim == 2 or not only_matrices]
        results.append(train(model, x, make(params)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("radius", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_torchs_muon(radius: str, nesterov: bool) -> None:
    options = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "nesterov": nesterov}
    against(
        lambda ps: Muon(ps, radius=radius, method="newton-schulz", **options),
        lambda ps: torch.optim.Muon(ps, adjust_lr_fn=radius, **options),
        only_matrices=True,
        # Batched products in bfloat16 may round otherwise than single ones.
        rtol=1e-2,
        atol=1e-2,
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: Muon(ps, lr=0.1, momentum=0.8, radius=1.0),
        lambda ps: Muon(ps, lr=0.1, momentum=0.8, radius=1.0, method="newton-schulz"),
        lambda ps: NormSGD(ps, lr=0.1, momentum=0.8),
        lambda ps: LMO(ps, lr=0.1, momentum=0.8, geometry="rows"),
    ],
    ids=["muon", "newton-schulz", "normsgd", "rows"],
)
def test_a_layer_that_gets_no_gradients_any_more_comes_to_rest(make: Callable) -> None:
    """An idle expert's: its momentum decays through every magnitude, where squares of it underflow, too."""
    torch.manual_seed(0)
    shapes = [(12, 30), (80, 80), (70, 200)]
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    opt = make(params)
    for step in range(500):  # 0.8^500 is 1e-48
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.randn_like(p) if step < 3 else torch.zeros_like(p)
        opt.step()
        for p, was in zip(params, before, strict=True):
            longest = 1.0 if isinstance(opt, NormSGD) else 1.3 * min(p.shape) ** 0.5
            assert (p - was).norm() <= 0.1 * longest + 1e-3, step
    for p, was in zip(params, before, strict=True):
        assert torch.equal(p, was)


@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float32), (torch.bfloat16, torch.float16)])
def test_zero_gradients_of_several_dtypes_move_nothing(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    params = [nn.Parameter(torch.ones(3, 4, dtype=dtype)) for dtype in dtypes]
    for p in params:
        p.grad = torch.zeros_like(p)
    NormSGD(params, lr=0.1).step()
    for p in params:
        assert torch.equal(p, torch.ones_like(p))


def test_lion_is_lion_pytorchs() -> None:
    lion_pytorch = pytest.importorskip("lion_pytorch")
    options = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.99)}
    against(lambda ps: Lion(ps, **options), lambda ps: lion_pytorch.Lion(ps, **options), rtol=0, atol=1e-7)


class PlainNormSGD(torch.optim.Optimizer):
    """normSGD written out: the reference."""

    def __init__(self, params, lr, momentum, weight_decay, start):
        super().__init__(params, {"lr": lr})
        self.momentum, self.weight_decay, self.start = momentum, weight_decay, start

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", self.start(p))
                m.copy_(self.momentum * m + (1 - self.momentum) * p.grad)
                p.copy_(p * (1 - group["lr"] * self.weight_decay) - group["lr"] * m / m.norm())


def test_normsgd_is_the_plain_one() -> None:
    against(
        lambda ps: NormSGD(ps, lr=0.05, momentum=0.9, weight_decay=0.1),
        lambda ps: PlainNormSGD(ps, 0.05, 0.9, 0.1, torch.zeros_like),
    )


def test_signsgd_without_momentum_is_the_formula() -> None:
    model, x = model_and_data()
    before = [p.detach().clone() for p in model.parameters()]
    opt = SignSGD(model.parameters(), lr=0.01, momentum=0.0, weight_decay=0.5)
    train(model, x, opt, steps=1)
    for p, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old * (1 - 0.005) - 0.01 * p.grad.sign())


def test_the_adamw_part_is_torchs_adamw() -> None:
    against(
        lambda ps: Muon([{"params": ps, "algorithm": "adamw"}], lr=1e-3, weight_decay=0.1, adamw_betas=(0.8, 0.99)),
        lambda ps: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.1, betas=(0.8, 0.99)),
        rtol=1e-6,
        atol=1e-7,
    )


MAKERS = {
    "muon": lambda m, **kw: Muon.from_model(m, **kw),
    "lion": lambda m, **kw: Lion.from_model(m, **kw),
    "signsgd": lambda m, **kw: SignSGD.from_model(m, **kw),
    "normsgd": lambda m, **kw: NormSGD.from_model(m, **kw),
    "lmo": lambda m, **kw: LMO.from_model(m, geometry=Spectral(), **kw),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every_optimizer
def test_gradients_are_left_alone(make: Callable) -> None:
    model, x = model_and_data()
    opt = make(model, lr=1e-2)
    for _ in range(3):
        opt.zero_grad()
        (model(x) - x).square().mean().backward()
        before = [p.grad.clone() for p in model.parameters()]
        opt.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


@every_optimizer
def test_training_learns(make: Callable) -> None:
    model, x = model_and_data()
    first = (model(x) - x).square().mean().item()
    train(model, x, make(model, lr=0.01, weight_decay=0.0), steps=60)
    assert (model(x) - x).square().mean().item() < 0.7 * first


@every_optimizer
def test_a_tensor_rate_is_the_same_step_and_is_looked_up(make: Callable) -> None:
    (a, x), (b, _) = model_and_data(), model_and_data()
    rate = torch.tensor(0.02)
    opt_a, opt_b = make(a, lr=0.02), make(b, lr=rate)
    train(a, x, opt_a, 2), train(b, x, opt_b, 2)
    for group in opt_a.param_groups:
        group["lr"] = 0.005
    rate.fill_(0.005)
    assert all(group["lr"] is rate for group in opt_b.param_groups)
    for p, q in zip(train(a, x, opt_a, 3), train(b, x, opt_b, 3), strict=True):
        # A tensor rate multiplies the step first; what it rounds otherwise, later steps in bfloat16 may see.
        torch.testing.assert_close(p, q, rtol=1e-3, atol=5e-4)


@every_optimizer
def test_resumed_equals_straight_to_the_bit(make: Callable) -> None:
    straight, x = model_and_data()
    opt = make(straight, lr=1e-2)
    train(straight, x, opt, 4)
    resumed = copy.deepcopy(straight)
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    again = make(resumed, lr=123.0)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    for p, q in zip(train(straight, x, opt, 4), train(resumed, x, again, 4), strict=True):
        assert torch.equal(p, q)


@every_optimizer
def test_tensors_without_a_gradient_stay(make: Callable) -> None:
    model, _ = model_and_data()
    before = [p.detach().clone() for p in model.parameters()]
    make(model, lr=1.0).step()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


@every_optimizer
def test_a_closure_gives_its_loss(make: Callable) -> None:
    model, x = model_and_data()

    def closure() -> torch.Tensor:
        model.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        return loss

    assert make(model, lr=1e-3).step(closure).item() > 0


def test_a_hybrid_is_groups() -> None:
    torch.manual_seed(0)
    w, b = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
    w.grad, b.grad = torch.randn(4, 4), torch.randn(4)
    start = w.detach().clone(), b.detach().clone()
    opt = LMO([{"params": [w]}, {"params": [b], "geometry": "sign", "lr": 0.5}], lr=0.1, momentum=0.0)
    opt.step()
    torch.testing.assert_close(w.detach(), start[0] + 0.1 * Spectral().lmo(w.grad))
    torch.testing.assert_close(b.detach(), start[1] - 0.5 * b.grad.sign())


def test_every_matrix_is_orthogonalised() -> None:
    """Three layers, a convolution and two experts: each moves by a step with equal singular values."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.conv = nn.Conv2d(2, 3, 2)
            self.experts = nn.Parameter(torch.randn(2, 4, 5))

    torch.manual_seed(0)
    net = Net()
    opt = Muon.from_model(net, lr=1.0, weight_decay=0.0, radius=1.0)
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    opt.step()
    moved = {name: p.detach() - start[name] for name, p in net.named_parameters()}
    matrices = [moved[f"layers.{i}.weight"] for i in range(3)] + [moved["conv.weight"].flatten(1), *moved["experts"]]
    assert len(matrices) == 6
    for step in matrices:
        s = torch.linalg.svdvals(step)
        assert s.min() > 0.6
        assert s.max() < 1.3
    # Biases take AdamW's first step, of entries ±lr.
    assert moved["layers.0.bias"].abs().sub(1).abs().max() < 1e-3


def test_muon_refuses_vectors_and_keeps_its_groups() -> None:
    with pytest.raises(ValueError, match=r"got tensors of shape \[\(20,\)\].*Muon.from_model"):
        Muon([nn.Parameter(torch.zeros(20))])
    opt = Muon([nn.Parameter(torch.zeros(2, 2))])
    with pytest.raises(ValueError, match="from_model"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ps: Muon(ps, lr=0.0), "lr must be positive and finite, got 0.0"),
        (lambda ps: Lion(ps, lr=float("nan")), "lr must be positive and finite, got nan"),
        (lambda ps: LMO(ps, lr=torch.ones(2)), r"lr must be positive and finite, got \[1.0, 1.0\]"),
        (lambda ps: LMO(ps, momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (lambda ps: LMO(ps, weight_decay=-1), "weight_decay must be finite and not negative, got -1"),
        (lambda ps: LMO(ps, geometry="spektral"), "unknown geometry 'spektral'"),
        (lambda ps: Lion(ps, betas=(0.9, 1.0)), "betas must be two numbers"),
        (lambda ps: Muon(ps, adamw_betas=(0.9,)), "adamw_betas must be two numbers"),
        (lambda ps: NormSGD(ps, momentum_init="ones"), "unknown momentum_init 'ones': use 'zeros' or 'weights'"),
        (lambda ps: Muon([{"params": ps, "algorithm": "adam"}]), "unknown algorithm 'adam'"),
    ],
)
def test_bad_options(make: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([nn.Parameter(torch.zeros(2, 2))])


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="LMO has no option 'nesterof'"):
        LMO([nn.Parameter(torch.zeros(2, 2))], nesterof=True)


def test_loading_under_another_geometry_lists_the_difference() -> None:
    params = [nn.Parameter(torch.zeros(2, 2))]
    saved = LMO(params, geometry="sign").state_dict()
    with pytest.raises(ValueError, match=r"group 0: saved Sign\(radius=1.0\), here Frobenius"):
        LMO(params, geometry="frobenius").load_state_dict(saved)


def test_a_copy_goes_on_alike() -> None:
    model, x = model_and_data()
    opt = Muon.from_model(model, lr=1e-2)
    train(model, x, opt, 2)
    twin, twin_opt = copy.deepcopy((model, opt))
    for p, q in zip(train(model, x, opt, 2), train(twin, x, twin_opt, 2), strict=True):
        assert torch.equal(p, q)


def test_building_prints_and_warns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = repr(Muon.from_model(model_and_data()[0], lr=1e-3))
    assert capsys.readouterr().out == ""
    assert "matrices (2; 640 parameters): algorithm=muon, lr=0.001" in text
