"""The rule on tensors against its plain reference, and that it never waits."""

import copy
import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_runs import PEAK, every_mode, falling, make_optimizer, run, saved
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from autowarm import LMO, AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD, devices
from autowarm.devices import HostCopy, collective_device

# On a GPU each of these makes the host wait for the device.
WAITS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::allclose"}


def tensor_rate() -> torch.Tensor:
    return torch.tensor(PEAK, dtype=torch.float64)


class Waits(TorchDispatchMode):
    """Counts the operators that would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func._schema.name
        if name in WAITS:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


losses = st.one_of(
    st.floats(0.01, 20.0), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -3.0, 1e6, 1e300]), st.none()
)


@settings(max_examples=60, deadline=None)
@given(
    first=st.floats(0.5, 20.0),
    rest=st.lists(
        st.tuples(losses, st.sampled_from([1.0, 0.25, 8.0]), st.sampled_from([1, 1, 1, 1, 2, 0])),
        min_size=1,
        max_size=40,
    ),
    mode=st.sampled_from(
        [
            {},
            {"max_warmup": None, "peak_gap": 0.1},
            {"max_warmup": 0.3, "smoothing": 0.0, "decay": "wsd"},
            {"max_warmup": 1.0, "smoothing": 0.2, "warmup": "cosine", "final_ratio": 0.1, "decay": "linear"},
            {"div": 100.0, "decay": "wso"},
            {"chance_loss": 12.0},
        ]
    ),
    order=st.sampled_from(["after", "before"]),
)
def test_as_the_plain_reference(first: float, rest: list, mode: dict, order: str) -> None:
    plain = AdaptiveWarmup(make_optimizer(), 30, max_nonfinite=None, **mode)
    on_device = AdaptiveWarmup(make_optimizer(tensor_rate()), 30, max_nonfinite=None, **mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for loss, weight, updates in [(first, 1.0, 1), *rest]:
            for scheduler in (plain, on_device):
                if order == "after":
                    for _ in range(updates):
                        scheduler.optimizer.step()
                if loss is not None:
                    scheduler.observe(torch.tensor(loss, dtype=torch.float64), weight)
                scheduler.step()
                if order == "before":
                    for _ in range(updates):
                        scheduler.optimizer.step()
            assert float(on_device.get_last_lr()[0]) == pytest.approx(plain.get_last_lr()[0], rel=1e-12, abs=0)
            assert (on_device.phase, on_device.ended_by) == (plain.phase, plain.ended_by)
            assert on_device.warmup_steps == plain.warmup_steps
    a, b = on_device.state_dict()["rule"], plain.state_dict()["rule"]
    assert {k: v if isinstance(v, str | None) else pytest.approx(v, rel=1e-12) for k, v in b.items()} == a


@every_mode
@pytest.mark.parametrize("order", ["after", "before"])
def test_only_the_opening_and_the_last_step_wait(make: Callable, order: str) -> None:
    opt = make_optimizer(tensor_rate())
    T = 60
    scheduler = make(opt, T)

    def step(t: int) -> None:
        loss = torch.tensor(math.nan if t in (17, 30) else falling()(t), dtype=torch.float64)
        with warnings.catch_warnings(), Waits() as waits:
            warnings.simplefilter("ignore")
            scheduler.observe(loss, weight=2.0)
            scheduler.step()
        waited.append(len(waits.found))

    waited: list[int] = []
    for t in range(T):
        if order == "before":
            step(t)
        opt.step()
        if order == "after":
            step(t)
    opening = scheduler._plan.opening
    assert sum(waited[opening:-1]) == 0
    assert all(waited[:opening])  # the calibration: the mode does see what waits


def test_a_float_rate_does_wait() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    scheduler.optimizer.step()
    with Waits() as waits:
        scheduler.step(torch.tensor(3.0))
    assert waits.found


def test_a_compiled_update_is_compiled_once() -> None:
    from torch._dynamo.testing import CompileCounter

    w = torch.nn.Parameter(torch.zeros(4, 4))
    opt = torch.optim.AdamW([w], lr=torch.tensor(PEAK))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = AdaptiveWarmup(opt, 30, geometry="sign")
    counter = CompileCounter()
    torch._dynamo.reset()

    @torch.compile(backend=counter)
    def update() -> None:
        opt.step()

    rates = set()
    for t in range(30):
        w.grad = torch.ones(4, 4) * (1 + t)
        update()
        scheduler.step(torch.tensor(falling()(t)))
        rates.add(float(opt.param_groups[0]["lr"]))
        if t == 3:
            compiled = counter.frame_count
    assert counter.frame_count == compiled > 0
    assert len(rates) > 20


@every_mode
@pytest.mark.parametrize("at", [0, 1, 5, 10, 20, 21, 60, 99])
def test_resumed_equals_straight_to_the_bit(make: Callable, at: int) -> None:
    T = 100
    rates = run(make(make_optimizer(tensor_rate()), T), falling(), range(T))
    first = make(make_optimizer(tensor_rate()), T)
    head = run(first, falling(), range(at))
    second = make(make_optimizer(tensor_rate()), T)
    second.load_state_dict(saved(first))
    assert saved(first) == saved(second)
    assert head + run(second, falling(), range(at, T)) == rates


def test_states_of_float_and_tensor_rates_are_exchangeable() -> None:
    first = AdaptiveWarmup(make_optimizer(), 60)
    head = run(first, falling(), range(25))
    second = AdaptiveWarmup(make_optimizer(tensor_rate()), 60)
    second.load_state_dict(saved(first))
    straight = run(AdaptiveWarmup(make_optimizer(), 60), falling(), range(60))
    assert head + run(second, falling(), range(25, 60)) == pytest.approx(straight, rel=1e-12)


def test_a_copy_goes_on_alike() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(tensor_rate()), 60)
    run(scheduler, falling(), range(7))
    twin = copy.deepcopy((scheduler.optimizer, scheduler))[1]
    assert run(twin, falling(), range(7, 60)) == run(scheduler, falling(), range(7, 60))


def test_bad_losses_are_told_a_little_late() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(tensor_rate()), 100, max_nonfinite=4)
    run(scheduler, falling(), range(5))
    rate = float(scheduler.get_last_lr()[0])
    with pytest.warns(UserWarning, match="was NaN or infinite at step"):
        run(scheduler, lambda t: math.nan, range(2))
    assert float(scheduler.get_last_lr()[0]) == rate
    with pytest.raises(RuntimeError, match="not finite 4 times in a row"):
        run(scheduler, lambda t: math.nan, range(6))


def test_a_run_that_ends_in_warmup_is_told() -> None:
    scheduler = AdaptiveWarmup.paper(make_optimizer(tensor_rate()), 12, target_loss=0.5)
    with pytest.warns(UserWarning, match="total_steps=12 ends still in warm-up"):
        run(scheduler, lambda t: 5.0, range(12))


def test_a_step_without_a_loss_is_told_in_warmup_alone() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(tensor_rate()), 20)
    run(scheduler, lambda t: 5.0, range(3))
    scheduler.optimizer.step()
    with pytest.warns(UserWarning, match="without a loss"):
        scheduler.step()
    ended = AdaptiveWarmup(make_optimizer(tensor_rate()), 20)
    run(ended, lambda t: 5.0, range(15))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ended.optimizer.step()
        ended.step()


def test_a_decay_of_ones_own_must_take_tensors() -> None:
    def by_floats(p: float) -> float:
        return 1.0 - math.sqrt(float(p)) if isinstance(p, float) else math.nan

    scheduler = AdaptiveWarmup(make_optimizer(tensor_rate()), 20, decay=by_floats)
    scheduler.optimizer.step()
    with pytest.raises(ValueError, match=r"is given the share p as a 0-dim tensor.*for p = 0.5 it returned nan"):
        scheduler.step(5.0)
    # This returns the number where it is the larger.
    scheduler = AdaptiveWarmup(make_optimizer(tensor_rate()), 20, decay=lambda p: max(0.0, 1 - 1.5 * p))
    scheduler.optimizer.step()
    with pytest.raises(ValueError, match=r"for p = 1 it returned 0.0"):
        scheduler.step(5.0)


def test_a_decay_of_ones_own_may_be_written_for_both() -> None:
    def for_both(p: float) -> torch.Tensor:
        return torch.cos(torch.as_tensor(p) * (math.pi / 2)) ** 2

    rates = [run(AdaptiveWarmup(make_optimizer(lr), 20, decay=for_both), falling(), range(20))
             for lr in (PEAK, tensor_rate())]  # fmt: skip
    assert rates[0] == pytest.approx(rates[1], rel=1e-5)


def test_a_rate_that_becomes_a_float_is_followed() -> None:
    opt = make_optimizer(tensor_rate())
    scheduler = AdaptiveWarmup(opt, 60)
    head = run(scheduler, falling(), range(20))
    opt.param_groups[0]["lr"] = float(opt.param_groups[0]["lr"])
    rates = head + run(scheduler, falling(), range(20, 60))
    assert rates == pytest.approx(run(AdaptiveWarmup(make_optimizer(), 60), falling(), range(60)), rel=1e-12)
    assert isinstance(opt.param_groups[0]["lr"], float)


class Copies(TorchDispatchMode):
    """Notes, of each copy between devices, whether it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func._schema.name == "aten::_to_copy":
            self.waited.append(not (kwargs or {}).get("non_blocking", False))
        return func(*args, **(kwargs or {}))


def test_a_loss_that_comes_to_the_host_is_waited_for() -> None:
    """Where the rate is on the host and the loss on a GPU: a copy that is not waited for is read before it is there."""
    scheduler = AdaptiveWarmup(make_optimizer(tensor_rate()), 30)
    run(scheduler, falling(), range(12))
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss = torch.empty((), device="cuda:0")
        with Copies() as copies:
            scheduler._phase._here(loss)  # type: ignore[union-attr]
    assert copies.waited == [True]


@pytest.mark.parametrize("cls", [Muon, Lion, SignSGD, NormSGD, LMO])
def test_replays_are_counted(cls: type[LMO]) -> None:
    """Python sees none of a captured graph's updates; each call of the scheduler then stands for one."""
    w = torch.nn.Parameter(torch.zeros(4, 4))
    w.grad = torch.ones(4, 4)
    opt = cls([w], lr=tensor_rate(), capturable=True)
    scheduler = AdaptiveWarmup(opt, 50)
    for t in range(50):
        if t < 3:
            opt.step()
        scheduler.step(torch.tensor(falling()(t), requires_grad=True))
    assert scheduler.last_epoch == 50
    assert scheduler.phase == "decay"


class Arrivals:
    """Stands in for `torch.cuda`: one event, which has happened when this says so."""

    def __init__(self) -> None:
        self.happened = False
        self.streams: list[torch.device] = []
        outer = self

        class Event:
            def record(self, stream: torch.device) -> None:
                outer.streams.append(stream)

            def query(self) -> bool:
                return outer.happened

        self.Event = Event

    def current_stream(self, device: torch.device) -> torch.device:
        return device


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a driver that does not know these devices")
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "xpu:0"])
def test_values_are_read_when_their_copy_has_arrived_and_not_before(device, monkeypatch) -> None:
    arrivals = Arrivals()
    monkeypatch.setattr(devices, "_module", lambda device: arrivals)
    with FakeTensorMode(allow_non_fake_inputs=True):
        copy = HostCopy(torch.zeros(2, device=device))
        copy.send(1)
        copy.send(2)  # one at a time: the event of the first is still awaited
        assert copy.read() is None
    assert arrivals.streams == [torch.device(device)]
    copy._letter = torch.tensor([3.0, 4.0])
    arrivals.happened = True
    assert copy.read() == ((1,), [3.0, 4.0])
    assert copy.read() is None


def test_a_device_without_events_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(devices, "_module", lambda device: object())
    copies: list[bool] = []

    class Copied(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func._schema.name == "aten::copy_":
                copies.append(bool(args[2]) if len(args) > 2 else (kwargs or {}).get("non_blocking", False))
            return func(*args, **(kwargs or {}))

    with FakeTensorMode(allow_non_fake_inputs=True):
        content = torch.zeros(2, device="mps:0")
        with Copied():
            HostCopy(content).send()
    assert copies == [False]


@pytest.mark.parametrize(
    ("backends", "preferred", "expected"),
    [
        ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
        ("cpu:gloo,cuda:nccl", "cuda:1", "cuda:1"),
        ("cuda:nccl", "cpu", "cuda:3"),
        ("xpu:xccl", "cpu", "xpu:3"),
        ("hpu:hccl", "cpu", "hpu:3"),
        ("cpu:gloo", "cuda:0", "cpu"),
    ],
)
def test_numbers_travel_on_a_device_that_the_group_serves(backends, preferred, expected, monkeypatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group=None: backends)
    monkeypatch.setattr(devices, "_module", lambda kind: SimpleNamespace(current_device=lambda: 3))
    assert collective_device(None, preferred) == torch.device(expected)


def test_a_group_made_without_a_backend_is_asked_what_it_serves(tmp_path) -> None:
    dist.init_process_group(init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        expected = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        assert collective_device(None).type == expected.type
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_is_not_waited_for() -> None:
    w = torch.nn.Parameter(torch.zeros(4, 4, device="cuda"))
    opt = torch.optim.AdamW([w], lr=torch.tensor(PEAK, device="cuda"), capturable=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = AdaptiveWarmup(opt, 50, geometry="sign")
    values = torch.tensor([falling()(t) for t in range(50)], device="cuda")
    for t in range(50):
        w.grad = torch.ones_like(w)
        opt.step()
        torch.cuda.set_sync_debug_mode("error" if scheduler._plan.opening <= t < 49 else "default")
        try:
            scheduler.step(values[t])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert scheduler.phase == "decay"
