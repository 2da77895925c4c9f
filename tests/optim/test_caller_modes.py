"""The modes that a caller steps in: autocast, inference mode and gradients of another dtype change no step."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from autowarm import LMO, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Spectral
from tests.cases import each
from tests.optim import makers
from tests.optim.makers import Make, draw_gradients, unmoved

OURS: dict[str, Make] = makers.OURS | {
    "muon, newton-schulz": lambda m, lr: Muon.from_model(m, lr, method="newton-schulz"),
    "muon, bfloat16": lambda m, lr: Muon.from_model(m, lr, dtype=torch.bfloat16),
    "muon, blocks": lambda m, lr: Muon.from_model(m, lr, blocks={"0": 4}, adamw_lr=1e-3),
    "columns": lambda m, lr: LMO.from_model(m, lr, geometry="columns"),
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
@each("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_bit_of_a_step(make: Make, lr: Callable, dtype: torch.dtype) -> None:
    plain = trained(make, lr(), *[nullcontext] * 3)
    for modes in ([autocast(dtype)] * 3, [autocast(dtype), nullcontext, autocast(dtype)]):
        assert all(map(torch.equal, plain, trained(make, lr(), *modes)))


@our_optimizers  # PyTorch's make their state in the mode that they are in
@every_lr
@each("made_inside", [False, True])
def test_inference_mode_changes_no_bit_of_this_step_or_the_next(make: Make, lr: Callable, made_inside: bool) -> None:
    plain = trained(make, lr(), *[nullcontext] * 3)
    with torch.inference_mode(made_inside):
        rate = lr()
    for modes in ([torch.inference_mode] * 3, [torch.inference_mode, nullcontext, torch.inference_mode]):
        assert all(map(torch.equal, plain, trained(make, rate, *modes)))


@our_optimizers
def test_a_state_loaded_in_inference_mode_can_be_stepped_outside(make: Make) -> None:
    model = a_model()
    opt = make(model, 1e-2)
    draw_gradients(model, 0)
    opt.step()
    other = copy.deepcopy(model)
    loaded = make(other, 1e-2)
    with torch.inference_mode():
        loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for one in (model, other):
        draw_gradients(one, 1)
    opt.step()
    loaded.step()
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@pytest.mark.parametrize("make", [Muon, Lion, SignSGD, NormSGD, LMO])
def test_a_tensor_made_in_inference_mode_is_refused_by_name(make: type[LMO]) -> None:
    with torch.inference_mode():
        weight = torch.ones(4, 4)
    with pytest.raises(ValueError, match=r"w was made in torch.inference_mode"):
        make([("w", weight)], lr=0.1)


@pytest.mark.filterwarnings("ignore:.*ran no backward pass")
@every_optimizer
@pytest.mark.parametrize("mode", [autocast(torch.bfloat16), torch.inference_mode, torch.no_grad])
def test_a_closure_runs_in_the_mode_of_the_caller(make: Make, mode: Mode) -> None:
    model, seen = a_model(), []

    def closure() -> float:
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        return 0.0

    with mode():
        expected = torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), True
        make(model, 1e-2).step(closure)
    assert seen == [expected]


@pytest.mark.long
@pytest.mark.parametrize(
    "make", [lambda m, lr: Muon.from_model(m, lr, dtype=torch.float32, steps=1), MAKERS["rows"]], ids=["muon", "rows"]
)
def test_a_compiled_step_ignores_autocast_in_one_graph(make: Make) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    model = a_model()
    opt = make(model, torch.tensor(1e-2))
    torch._dynamo.reset()
    step = torch.compile(opt.step, fullgraph=True, backend=backend)
    for number in range(3):
        draw_gradients(model, number)
        with torch.autocast("cpu", torch.bfloat16):
            step()
    torch._dynamo.reset()
    assert len(graphs) == 1
    for p, q in zip(model.parameters(), trained(make, torch.tensor(1e-2), *[nullcontext] * 3), strict=True):
        torch.testing.assert_close(p.detach(), q, atol=1e-5, rtol=1e-5)


def give(p: Tensor, grad: Tensor) -> None:
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


PAIRS = [
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float64, torch.float32),
]


@our_optimizers
@each(("dtype", "of_gradients"), PAIRS)
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
            give(q, g if not mixed or i % 2 else g.to(dtype))
        kept = [q.grad.clone() for q in as_they_are.parameters()]
        for opt in opts:
            opt.step()
        assert all(torch.equal(q.grad, g) for q, g in zip(as_they_are.parameters(), kept, strict=True))
    assert all(map(torch.equal, converted.parameters(), as_they_are.parameters()))


@every_optimizer
def test_gradients_of_whole_numbers_are_refused_before_anything_moves(make: Make) -> None:
    for last in (False, True):
        model = a_model()
        opt = make(model, 1e-2)
        draw_gradients(model, 0)
        group = next(g for g in opt.param_groups[:: -1 if last else 1] if "geometry" in g)  # of one of ours
        p = group["params"][-1 if last else 0]
        give(p, torch.ones(p.shape, dtype=torch.int32))
        with unmoved(model.parameters()), pytest.raises(ValueError, match=r"numbers \(torch.int32\): convert it"):
            opt.step()


@our_optimizers
@each("dtype", [torch.bfloat16, torch.float64])
def test_a_model_converted_between_steps_takes_its_momenta_along(make: Make, dtype: torch.dtype) -> None:
    model = a_model()
    opt = make(model, 1e-2)
    for step in range(2):
        draw_gradients(model, step)
        opt.step()
        opt.zero_grad()
        model.to(dtype)
    kept = [(name, v.dtype) for state in opt.state.values() for name, v in state.items() if name != "step"]
    wide = torch.float32 if dtype is torch.bfloat16 else dtype  # what AdamW averages in
    assert {found for name, found in kept if name == "momentum_buffer"} <= {dtype}
    assert {found for name, found in kept if name != "momentum_buffer"} <= {wide}
    assert kept


@every_optimizer
def test_groups_in_another_order_keep_their_state(make: Make) -> None:
    models = a_model(), a_model()
    opts = [make(model, 1e-2) for model in models]
    for step in range(4):
        for model, opt in zip(models, opts, strict=True):
            draw_gradients(model, step)
            opt.step()
        opts[1].param_groups.reverse()
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))
