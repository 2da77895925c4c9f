"""What holds on a GPU as it does on the processor; `make gpu` runs this file on one.

Without a GPU each test runs on the processor alone, which shows that the test itself is sound.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autowarm import AdaptiveWarmup, Lion, Muon
from autowarm.losses import AT_ONCE, LATE
from autowarm.orthogonalize import nuclear_norm, orthogonalize, spectral_norm
from autowarm.schedule import core
from tests.optim.makers import OURS
from tests.schedule.recovery.recovery_runs import Run, lost, quiet

GPU = torch.cuda.is_available()
on_each_device = pytest.mark.parametrize("device", ["cpu", *(["cuda"] if GPU else [])])
needs_a_gpu = pytest.mark.skipif(not GPU, reason="captures CUDA graphs: needs a GPU")

OPTIMIZERS = {name: make for name, make in OURS.items() if name != "lmo"}
with_each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def network(device: str) -> nn.Module:
    torch.manual_seed(0)
    sizes = [96, 192, 192, 80]
    layers = [nn.Linear(m, n) for m, n in itertools.pairwise(sizes)]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]).to(device)


def set_gradients(model: nn.Module, step: int) -> None:
    """The same on every device, in memory that stays where it is, as a captured graph needs it."""
    draw = torch.Generator().manual_seed(step)
    for p in model.parameters():
        grad = torch.randn(p.shape, generator=draw).to(p)
        p.grad = grad if p.grad is None else p.grad.copy_(grad)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().cpu().clone() for p in model.parameters()]


def trained(
    make: Callable, device: str, steps: int = 4, compiled: Callable = lambda opt: opt.step, **options: Any
) -> list[Tensor]:
    """The weights after these steps, the same on every device."""
    model = network(device)
    step = compiled(make(model, **options))
    for turn in range(steps):
        set_gradients(model, turn)
        step()
    return weights(model)


@on_each_device
@with_each_optimizer
def test_a_state_loaded_by_way_of_the_processor_goes_on_to_the_bit(make: Callable, device: str, tmp_path: Path) -> None:
    """As trainers load it. PyTorch leaves step counts on the processor, where a fused AdamW does not look for them."""
    model = network(device)
    opt = make(model, lr=0.01)
    for step in range(6):
        if step == 3:
            torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "saved.pt")
        set_gradients(model, step)
        opt.step()
    saved = torch.load(tmp_path / "saved.pt", map_location="cpu", weights_only=True)
    again = network(device)
    again.load_state_dict(saved["model"])
    resumed = make(again, lr=0.01)
    resumed.load_state_dict(saved["optimizer"])
    for step in range(3, 6):
        set_gradients(again, step)
        resumed.step()
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(again), strict=True))


@on_each_device
@with_each_optimizer
def test_an_optimizer_steps_as_on_the_processor(make: Callable, device: str) -> None:
    options = {"dtype": torch.float32} if make is OPTIMIZERS["muon"] else {}
    here, there = (trained(make, where, lr=0.01, **options) for where in ("cpu", device))
    torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-4)


@on_each_device
@pytest.mark.parametrize("method", ["newton-schulz", "polar-express", "svd"])
@pytest.mark.parametrize("shape", [(4, 64, 64), (3, 200, 700), (2, 700, 200), *([(1, 1100, 1030)] if GPU else [])])
def test_a_polar_factor_is_one_in_the_dtype_that_is_fastest(
    shape: tuple[int, int, int], method: str, device: str
) -> None:
    # Singular values from 1/4 to 1: a Gaussian square matrix has some below what few iterations can lift.
    draw = torch.Generator().manual_seed(0)
    U, S, Vh = torch.linalg.svd(torch.randn(shape, generator=draw), full_matrices=False)
    G = (U * torch.linspace(1.0, 0.25, S.shape[-1])) @ Vh
    out = orthogonalize(G.to(device), method=method).cpu()
    values = torch.linalg.svdvals(out)
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert torch.cosine_similarity(out.flatten(), (U @ Vh).flatten(), dim=0) > 0.97


@on_each_device
@pytest.mark.parametrize("shape", [(2, 40, 90), (1, 300, 100), (3, 1, 5)])
def test_norms_are_those_of_the_singular_values(shape: tuple[int, int, int], device: str) -> None:
    G = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(G)
    torch.testing.assert_close(nuclear_norm(G.to(device)).cpu(), values.sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(spectral_norm(G.to(device)).cpu(), values.amax(-1), rtol=1e-4, atol=1e-4)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Makes every wait for the GPU an error."""
    if not GPU:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_each_device
@with_each_optimizer
@pytest.mark.parametrize("tensor_rate", [False, True])
def test_optimizer_and_scheduler_wait_for_nothing_and_follow_the_rule_four_updates_late(
    make: Callable, device: str, tensor_rate: bool
) -> None:
    total, plan, late = 40, core.Plan(40), 0 if device in AT_ONCE else LATE
    losses = torch.tensor([1.0 + 2.0 * 0.9**step for step in range(total)])
    model, state = network(device), core.settle(plan, core.begin(plan), False)
    opt = make(model, lr=torch.tensor(0.01, device=device) if tensor_rate else 0.01)
    scheduler = AdaptiveWarmup(opt, total)
    on_device = losses.to(device)
    for step in range(total):
        set_gradients(model, step)
        assert float(opt.param_groups[0]["lr"]) == pytest.approx(0.01 * state.share, rel=1e-6)
        with no_waiting() if step else nullcontext():  # the first update looks at the weights
            opt.step()
            scheduler.step(on_device[step])
        state = core.advance(plan, state, step + 1, float(losses[step - late]) if step >= late else None)
    assert scheduler.phase == "decay"


@needs_a_gpu
@with_each_optimizer
def test_a_hundred_replays_are_a_hundred_steps_to_the_bit(make: Callable) -> None:
    first, total = 3, 103
    eager = network("cuda")
    captured = copy.deepcopy(eager)
    models = (eager, captured)
    rates = [torch.tensor(0.01, device="cuda") for _ in models]
    opts = [make(model, lr=rate, capturable=True) for model, rate in zip(models, rates, strict=True)]
    schedulers = [AdaptiveWarmup(opt, total) for opt in opts]
    replay = None
    for step in range(total):
        for model in models:
            set_gradients(model, step)
        torch.cuda.synchronize()
        opts[0].step()
        if step < first:  # on a stream of its own, as PyTorch asks for
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                opts[1].step()
            torch.cuda.current_stream().wait_stream(stream)
        else:
            if replay is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):  # notes the step and does not make it
                    opts[1].step()
                replay = graph.replay
            replay()
        loss = torch.tensor(1.0 + 2.0 * 0.9**step, device="cuda")
        for scheduler in schedulers:
            scheduler.step(loss)
    assert torch.equal(*rates)
    assert all(map(torch.equal, weights(eager), weights(captured)))
    assert not torch.equal(weights(eager)[0], weights(network("cuda"))[0])


@pytest.mark.long
@on_each_device
@pytest.mark.parametrize("make", [Muon.from_model, Lion.from_model], ids=["muon", "lion"])
def test_a_compiled_step_is_the_step(make: Callable, device: str) -> None:
    def compiled(opt: torch.optim.Optimizer) -> Callable:
        how = {"backend": "eager"} if device == "cpu" else {"options": {"loop_ordering_after_fusion": False}}
        return torch.compile(opt.step, fullgraph=True, **how)  # docs/optimizers.md says what the option is for

    torch.compiler.reset()
    plain = trained(make, device, 3, lr=torch.tensor(0.01, device=device))
    ended = trained(make, device, 3, compiled, lr=torch.tensor(0.01, device=device))
    # Muon's products run in bfloat16, in which a fused kernel rounds less often.
    torch.testing.assert_close(ended, plain, rtol=1e-2, atol=1e-3)


@pytest.fixture
def group(device: str, tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """A group of one rank, by NCCL alone on a GPU."""
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@on_each_device
@with_each_optimizer
@pytest.mark.parametrize("tensor_rate", [False, True])
def test_a_group_of_one_rank_changes_nothing(
    make: Callable, device: str, tensor_rate: bool, group: dist.ProcessGroup
) -> None:
    ended = []
    for process_group in (None, group):
        model = network(device)
        # Only oracles that are dear are shared out.
        options = {"process_group": process_group} if make in (OPTIMIZERS["muon"], OPTIMIZERS["rows"]) else {}
        opt = make(model, lr=torch.tensor(0.01, device=device) if tensor_rate else 0.01, **options)
        scheduler = AdaptiveWarmup(opt, 6, process_group=process_group)
        for step in range(6):
            set_gradients(model, step)
            opt.step()
            scheduler.step(torch.tensor(3.0 - 0.2 * step, device=device))
        ended.append(weights(model))
    torch.testing.assert_close(*ended, rtol=1e-2, atol=1e-3)


@on_each_device
def test_an_update_with_a_gradient_that_is_not_finite_is_skipped_without_a_wait(device: str) -> None:
    model = network(device)
    opt = Muon.from_model(model, lr=0.01)
    set_gradients(model, 0)
    opt.step()
    before = weights(model)
    set_gradients(model, 1)
    model[0].weight.grad[0, 0] = float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with no_waiting():
            opt.step()
        assert opt.skipped_updates == 1
    assert all(map(torch.equal, weights(model), before))


@on_each_device
@pytest.mark.parametrize("tensor_rate", [False, True] if GPU else [True])  # tests/schedule/recovery has the other
def test_a_run_recovers_from_a_bad_batch_and_is_the_same_without_one(device: str, tensor_rate: bool) -> None:
    def run(**options: Any) -> Run:
        return quiet(Run("lion", tensor=tensor_rate, device=device, **options))

    healthy, watched = run(), run(recover=True)
    assert watched.scheduler.recoveries == []
    assert all(torch.equal(a, b) for a, b in zip(healthy.weights(), watched.weights(), strict=True))
    bad, recovered = run(faults={250: "bad"}), run(faults={250: "bad"}, recover=True)
    assert len(recovered.scheduler.recoveries) == 1
    assert lost(recovered, healthy) < 0.08 < 0.12 < lost(bad, healthy)
