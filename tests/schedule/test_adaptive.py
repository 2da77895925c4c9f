"""The scheduler as a PyTorch user meets it."""

import io
import math
import warnings
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR, SequentialLR

from autowarm import AdaptiveWarmup, Lion, Muon

PEAK = 0.01


def make_optimizer(lr: float | torch.Tensor = PEAK) -> Lion:
    p = nn.Parameter(torch.zeros(4, 4))
    p.grad = torch.ones(4, 4)
    return Lion([p], lr=lr)


def falling(start: float = 10.0, end: float = 1.0, pace: float = 30.0) -> Callable[[int], float]:
    return lambda t: end + (start - end) * math.exp(-t / pace)


def run(
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    losses: Callable[[int], float],
    steps: Iterable[int],
    order: str = "after",
) -> list[float]:
    """Train; returns the rate of every update."""
    opt, rates = scheduler.optimizer, []
    for t in steps:
        if order == "before":
            scheduler.step(torch.tensor(losses(t), dtype=torch.float64))
        rates.append(float(opt.param_groups[0]["lr"]))
        opt.step()
        if order == "after":
            scheduler.step(torch.tensor(losses(t), dtype=torch.float64))
    return rates


MODES = {
    "default": lambda opt, T, **kw: AdaptiveWarmup(opt, T, **kw),
    "paper": lambda opt, T, **kw: AdaptiveWarmup.paper(opt, T, **({"target_loss": 0.5, "peak_gap": 4.0} | kw)),
    "no floor": lambda opt, T, **kw: AdaptiveWarmup(opt, T, **({"floor": None, "peak_gap": 4.0} | kw)),
}
every_mode = pytest.mark.parametrize("make", MODES.values(), ids=MODES)


@every_mode
@pytest.mark.parametrize("order", ["after", "before"])
@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd", "wso", lambda p: 1 - p**2])
def test_a_whole_run(make: Callable, order: str, decay: str) -> None:
    T = 200
    scheduler = make(make_optimizer(), T, decay=decay)
    rates = run(scheduler, falling(), range(T), order)
    assert rates[0] == pytest.approx(PEAK / 100, rel=1e-12)
    assert all(0 < rate <= PEAK for rate in rates)
    assert scheduler.phase == "decay"
    switch = scheduler.warmup_steps
    assert 1 < switch < T
    # Warm-up rises, decay starts at the peak and is the named shape over exactly what is left.
    assert rates[:switch] == sorted(rates[:switch])
    assert rates[switch] == PEAK
    from autowarm.schedule.shapes import decay_shape

    left = T - switch
    expected = [PEAK * float(decay_shape(decay)(k / left)) for k in range(left)]
    assert rates[switch:] == pytest.approx(expected)


def test_both_orders_are_the_same_schedule_one_update_apart() -> None:
    T, options = 100, {"target_loss": 0.5, "peak_gap": 2.0}
    before = run(AdaptiveWarmup.paper(make_optimizer(), T, **options), falling(), range(T), "before")
    # Called after the step, update t rests on the loss of update t − 1: handed each loss one update early, it agrees.
    early = lambda t: falling()(t + 1 if t else 0)  # noqa: E731
    after = run(AdaptiveWarmup.paper(make_optimizer(), T, **options), early, range(T), "after")
    assert before[0] == after[0]
    assert before[2:] == after[2:]
    assert before[1] != after[1]


@every_mode
@pytest.mark.parametrize("order", ["after", "before"])
def test_no_pytorch_warning_in_either_order(make: Callable, order: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(make(make_optimizer(), 150), falling(), range(150), order)


def test_the_paper_is_algorithm_1_line_by_line() -> None:
    T, fstar, losses = 300, 0.5, falling(pace=60.0)
    opt = make_optimizer()
    scheduler = AdaptiveWarmup.paper(opt, T, target_loss=fstar, kappa=1e3)
    rates = run(scheduler, losses, range(T), "before")

    profile, warmup_steps, expected = scheduler.profile, 0, []
    decaying = False
    for t in range(T):
        gap = losses(t) - fstar
        if gap >= profile.peak_gap and not decaying:
            warmup_steps += 1
            expected.append(gap / (profile.K0 + profile.K1 * gap + profile.K2 * gap**2))
        else:
            decaying = True
            k, left = t - warmup_steps, T - warmup_steps
            expected.append(PEAK * (1 + math.cos(math.pi * k / left)) / 2)
    assert profile.gap0 == losses(0) - fstar
    assert rates == pytest.approx(expected, rel=1e-9)
    assert scheduler.warmup_steps == warmup_steps > 10


def test_the_papers_setup_switches_where_it_was_worked_out() -> None:
    """LLaMA-124M's κ, f(x0) = 10.98 and f* = 3.3 make Δ' ≈ 2.470 for Muon."""
    opt = Muon([nn.Parameter(torch.zeros(4, 4))], lr=1e-3)
    scheduler = AdaptiveWarmup.paper(opt, 64_000, target_loss=3.3, kappa=46848)
    scheduler.step(10.98)
    assert scheduler.profile.peak_gap == pytest.approx(2.470, abs=0.008)


@pytest.mark.parametrize("T", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("loss", [3.0, 0.0, -2.0, 1e-30, 1e30])
def test_the_default_never_stalls_even_if_the_loss_never_falls(T: int, loss: float) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rates = run(scheduler, lambda t: loss, range(T))
    assert scheduler.phase == "decay"
    assert scheduler.warmup_steps <= max(1, math.ceil(0.2 * T))
    assert all(0 < rate <= PEAK for rate in rates)


def test_without_a_floor_a_stalled_run_is_told_why() -> None:
    scheduler = AdaptiveWarmup.paper(make_optimizer(), 30, target_loss=0.5)
    with pytest.warns(
        UserWarning, match=r"total_steps=30 ends still in warm-up: the gap to target_loss=0.5 never fell"
    ):
        run(scheduler, lambda t: 5.0, range(30))
    assert scheduler.phase == "warmup"
    assert scheduler.warmup_steps == 30


def test_smoothing_withstands_one_lucky_batch() -> None:
    def lucky(t: int) -> float:
        return 1.2 if t == 5 else 10.0

    T = 1000
    raw = AdaptiveWarmup(make_optimizer(), T, smoothing=0.0, floor=0.5)
    smooth = AdaptiveWarmup(make_optimizer(), T, floor=0.5)
    run(raw, lucky, range(100))
    run(smooth, lucky, range(100))
    assert (raw.phase, smooth.phase) == ("decay", "warmup")


def test_auto_target_loss_on_the_papers_setup() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    assert scheduler.target_loss is None
    scheduler.step(10.98)
    assert scheduler.target_loss == pytest.approx(3.294)


def test_group_ratios_are_kept() -> None:
    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    opt = Lion([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.02}])
    scheduler = AdaptiveWarmup(opt, 50)
    for t in range(60):
        assert opt.param_groups[0]["lr"] == pytest.approx(5 * opt.param_groups[1]["lr"])
        opt.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step(5.0 - 0.01 * t)


def test_a_tensor_rate_is_filled_in_place() -> None:
    rate = torch.tensor(PEAK, dtype=torch.float64)
    opt = make_optimizer(rate)
    scheduler = AdaptiveWarmup(opt, 100)
    tensor_rates = run(scheduler, falling(), range(100))
    assert opt.param_groups[0]["lr"] is rate
    assert tensor_rates == pytest.approx(run(AdaptiveWarmup(make_optimizer(), 100), falling(), range(100)))
    assert scheduler.get_last_lr()[0] is not rate


# Losses in parts.


def test_micro_batches_are_averaged_by_weight() -> None:
    parts, whole = AdaptiveWarmup(make_optimizer(), 40), AdaptiveWarmup(make_optimizer(), 40)
    for t in range(30):
        loss = falling()(t)
        parts.observe(torch.tensor(loss + 3.0), weight=1)
        parts.observe(loss - 1.0, weight=3)
        parts.optimizer.step()
        parts.step()
        whole.optimizer.step()
        whole.step(loss)
        assert parts.get_last_lr() == pytest.approx(whole.get_last_lr(), rel=1e-6)


def test_a_step_without_a_loss_keeps_the_warmup_rate_and_warns_once() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 100)
    run(scheduler, falling(), range(3))
    rate = scheduler.get_last_lr()
    scheduler.optimizer.step()
    with pytest.warns(UserWarning, match=r"without a loss.*call step\(loss\)"):
        scheduler.step()
    scheduler.optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    assert scheduler.get_last_lr() == rate
    assert scheduler.last_epoch == 5


def test_decay_needs_no_loss() -> None:
    with_loss, without = AdaptiveWarmup(make_optimizer(), 60), AdaptiveWarmup(make_optimizer(), 60)
    run(with_loss, falling(), range(20)), run(without, falling(), range(20))
    assert without.phase == "decay"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(20, 60):
            with_loss.optimizer.step(), without.optimizer.step()
            with_loss.step(falling()(t)), without.step()
            assert with_loss.get_last_lr() == without.get_last_lr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_losses_of_any_dtype_and_one_element(dtype: torch.dtype) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    scheduler.optimizer.step()
    scheduler.step(torch.full((1, 1), 4, dtype=dtype))
    assert scheduler.profile.gap0 == pytest.approx(2.8)


def test_the_graph_is_let_go() -> None:
    x = torch.ones(3, requires_grad=True)
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    scheduler.observe(x.sum())
    assert not any(seen.loss.requires_grad for seen in scheduler._pending)


# Losses that are not numbers.


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_loss_is_left_out_and_the_step_counts(bad: float) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 100)
    scheduler.optimizer.step()
    with pytest.warns(UserWarning, match="it is left out, and the step counts"):
        scheduler.step(bad)
    assert scheduler.get_last_lr() == pytest.approx([PEAK / 100])  # no finite loss yet
    run(scheduler, falling(), range(3))
    rate = scheduler.get_last_lr()
    scheduler.optimizer.step()
    scheduler.step(torch.tensor(bad))
    assert scheduler.get_last_lr() == rate
    assert scheduler.last_epoch == 5
    run(scheduler, falling(), range(3, 30))
    assert scheduler.phase == "decay"
    before = scheduler.get_last_lr()[0]
    scheduler.optimizer.step()
    scheduler.step(bad)
    assert scheduler.get_last_lr()[0] < before


def test_a_bad_micro_batch_does_not_spoil_the_others() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 100)
    scheduler.observe(math.nan)
    scheduler.observe(6.0)
    scheduler.optimizer.step()
    scheduler.step()
    assert scheduler.profile.gap0 == pytest.approx(4.2)


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_has_an_end(patience: int) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 100, patience=patience)
    run(scheduler, falling(), range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(patience - 1):
            scheduler.optimizer.step()
            scheduler.step(math.nan)
        scheduler.optimizer.step()
        with pytest.raises(RuntimeError, match=rf"not finite {patience} times in a row, up to step"):
            scheduler.step(math.nan)


@pytest.mark.parametrize("spike", [1e6, -1e6, 1e300])
@every_mode
def test_spikes_leave_the_rate_in_bounds(make: Callable, spike: float) -> None:
    scheduler = make(make_optimizer(), 100)
    rates = run(scheduler, lambda t: spike if t == 4 else falling()(t), range(60))
    assert all(0 < rate <= PEAK and math.isfinite(rate) for rate in rates)


def test_a_loss_above_the_first_one() -> None:
    scheduler = AdaptiveWarmup.paper(make_optimizer(), 100, target_loss=0.5)
    rates = run(scheduler, lambda t: 5.0 + t, range(50))
    assert all(0 < rate <= PEAK / 100 for rate in rates[1:])


# The optimizer's own clock.


def test_a_skipped_update_counts_neither_as_step_nor_as_observation() -> None:
    """A real GradScaler whose first scale overflows, then one overflow in the middle."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    opt = Lion(model.parameters(), lr=PEAK)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    scheduler = AdaptiveWarmup(opt, 100)
    seen, updates = [], 0
    for t in range(20):
        opt.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        overflow = t in (0, 1, 7)
        if overflow:
            model.weight.grad[0, 0] = math.inf
        scaler.step(opt)
        scaler.update()
        updates += not overflow
        before = scheduler.get_last_lr(), scheduler.last_epoch
        scheduler.step(loss)
        # Before the first update ever, a loss may be taken: Algorithm 1's order looks the same. It moves nothing.
        if overflow:
            assert (scheduler.get_last_lr(), scheduler.last_epoch) == before
        seen.append(scheduler.last_epoch)
    assert seen[-1] == updates == 17


def test_a_dry_run_without_gradients_advances() -> None:
    opt = Lion([nn.Parameter(torch.zeros(3, 3))], lr=PEAK)
    scheduler = AdaptiveWarmup(opt, 30)
    rates = []
    for t in range(30):
        scheduler.step(falling()(t))
        rates.append(scheduler.get_last_lr()[0])
    assert rates[0] == pytest.approx(PEAK / 100)
    assert max(rates) == PEAK
    assert scheduler.phase == "decay"


def test_replayed_updates_are_counted_for_capturable_optimizers() -> None:
    opt = make_optimizer()
    opt.param_groups[0]["capturable"] = True
    scheduler = AdaptiveWarmup(opt, 30)
    for t in range(10):
        scheduler.step(falling()(t))  # the graph's replay made the update, and no Python saw it
    assert scheduler.last_epoch == 10


def test_past_the_horizon_the_rate_stays() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 20, final_ratio=0.1)
    run(scheduler, falling(), range(20))
    last = scheduler.get_last_lr()
    scheduler.optimizer.step()
    with pytest.warns(UserWarning, match="more than total_steps=20"):
        scheduler.step(1.0)
    assert scheduler.get_last_lr() == last
    assert last[0] >= 0.1 * PEAK


# With PyTorch's own schedulers.


def test_in_sequence_it_starts_at_its_milestone() -> None:
    opt = make_optimizer()
    first = ConstantLR(opt, factor=0.5, total_iters=100)
    ours = AdaptiveWarmup(opt, 20, peak_gap=1.0, target_loss=0.5)
    sequence = SequentialLR(opt, [first, ours], milestones=[5])
    rates = []
    for t in range(25):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        if t >= 5:
            ours.observe(falling()(t - 5))
        sequence.step()
    assert rates[:5] == [PEAK / 2] * 5
    alone = run(AdaptiveWarmup(make_optimizer(), 20, peak_gap=1.0, target_loss=0.5), falling(), range(20))
    assert rates[5:] == pytest.approx(alone)


def test_chained_it_multiplies() -> None:
    opt = make_optimizer()
    ours = AdaptiveWarmup(opt, 50)
    chain = ChainedScheduler([ours, ExponentialLR(opt, 0.5)], optimizer=opt)
    opt.step()
    ours.observe(5.0)
    chain.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(0.5 * ours.get_last_lr()[0])


# Saving.


def saved(scheduler: AdaptiveWarmup) -> dict:
    buffer = io.BytesIO()
    torch.save(scheduler.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@every_mode
@pytest.mark.parametrize("at", [0, 1, 5, 9, 10, 11, 20, 21, 60, 99])
def test_resumed_equals_straight_to_the_bit(make: Callable, at: int) -> None:
    T = 100
    straight = make(make_optimizer(), T)
    rates = run(straight, falling(), range(T))
    first = make(make_optimizer(), T)
    head = run(first, falling(), range(at))
    state = saved(first)
    second = make(make_optimizer(), T)
    second.load_state_dict(state)
    assert state == saved(second)  # loading changes neither
    assert second.phase == first.phase
    assert head + run(second, falling(), range(at, T)) == rates


def test_construct_then_load_and_load_then_construct_agree() -> None:
    opt = make_optimizer()
    scheduler = AdaptiveWarmup(opt, 50)
    run(scheduler, falling(), range(7))
    opt_state, state = opt.state_dict(), saved(scheduler)

    a = make_optimizer()
    sched_a = AdaptiveWarmup(a, 50)
    a.load_state_dict(opt_state)
    sched_a.load_state_dict(state)
    b = make_optimizer()
    b.load_state_dict(opt_state)
    sched_b = AdaptiveWarmup(b, 50)
    sched_b.load_state_dict(state)
    expected = opt.param_groups[0]["lr"]
    assert a.param_groups[0]["lr"] == b.param_groups[0]["lr"] == expected
    more = range(7, 50)
    assert run(sched_a, falling(), more) == run(sched_b, falling(), more) == run(scheduler, falling(), more)


def test_another_schedule_is_refused_by_its_differences() -> None:
    state = AdaptiveWarmup(make_optimizer(), 50).state_dict()
    with pytest.raises(ValueError, match="total_steps: saved 50, here 60; div: saved 100.0, here 10.0"):
        AdaptiveWarmup(make_optimizer(), 60, div=10.0).load_state_dict(state)
    muon = Muon([nn.Parameter(torch.zeros(2, 2))], lr=PEAK)
    with pytest.raises(
        ValueError, match=r"optimizer: saved 'Lion', here 'Muon'; geometry: saved 'Sign.*here .Spectral"
    ):
        AdaptiveWarmup(muon, 50).load_state_dict(state)
    with pytest.raises(ValueError, match="no AdaptiveWarmup state of version 1: its version is None"):
        AdaptiveWarmup(make_optimizer(), 50).load_state_dict({"last_epoch": 3})


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_steps": 0}, "total_steps must be a whole number ≥ 1, got 0"),
        ({"total_steps": 10.5}, "total_steps must be a whole number ≥ 1, got 10.5"),
        ({"div": 1.0}, "div must be greater than 1 and finite, got 1.0"),
        ({"sigma_f2": 0.0}, "sigma_f2 must be positive and finite, got 0.0"),
        ({"kappa": -1.0}, "kappa must be positive and finite, got -1.0"),
        ({"peak_gap": 0.0}, "peak_gap must be positive and finite, got 0.0"),
        ({"target_loss": math.nan}, "target_loss must be finite, got nan"),
        ({"final_ratio": 1.5}, r"final_ratio must be in \[0, 1\], got 1.5"),
        ({"floor": 2.0}, r"floor is a share of the run, in \[0, 1\], or None, got 2.0"),
        ({"smoothing": 1.0}, r"smoothing is a share of the run, in \[0, 1\), got 1.0"),
        ({"patience": 0}, "patience must be at least 1, or None, got 0"),
        ({"warmup": "quadratic"}, "unknown warmup 'quadratic'"),
        ({"decay": "exponential"}, "unknown decay 'exponential'"),
        ({"geometry": "spektral"}, "unknown geometry 'spektral'"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveWarmup(make_optimizer(), **({"total_steps": 10} | arguments))


def test_a_peak_rate_of_zero() -> None:
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(2, 2))], lr=0.0)
    with pytest.raises(ValueError, match=r"every group's lr must be positive and finite, got \[0.0\]"):
        AdaptiveWarmup(opt, 10, geometry="frobenius")


def test_an_unknown_optimizer_names_the_choices() -> None:
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(2, 2))], lr=0.1)
    with pytest.raises(ValueError, match="pass geometry='spectral', 'sign', 'frobenius'.*or pass kappa="):
        AdaptiveWarmup(opt, 10)
    AdaptiveWarmup(opt, 10, kappa=10.0)
    AdaptiveWarmup(opt, 10, peak_gap=1.0)  # neither needs a geometry
    AdaptiveWarmup(opt, 10, geometry="frobenius")


@pytest.mark.parametrize("loss", [0.5, 0.2])
def test_a_first_loss_that_is_not_above_the_target(loss: float) -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10, target_loss=0.5)
    scheduler.optimizer.step()
    with pytest.raises(ValueError, match=rf"f\(x0\) = {loss} is not above the target loss f\* = 0.5"):
        scheduler.step(loss)


def test_a_peak_gap_beyond_the_first_gap() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10, target_loss=0.5, peak_gap=3.0)
    with pytest.raises(ValueError, match="peak_gap must lie between 0 and the first gap 1.5, got 3.0"):
        scheduler.step(2.0)


@pytest.mark.parametrize("epoch", [0, 3, True])
def test_an_epoch_is_no_loss(epoch: int) -> None:
    with pytest.raises(TypeError, match=rf"step takes a loss, not an epoch, and got the int {epoch}"):
        AdaptiveWarmup(make_optimizer(), 10).step(epoch)


def test_bad_observations() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    with pytest.raises(ValueError, match=r"a loss has one element, got a tensor of shape \(3,\)"):
        scheduler.observe(torch.ones(3))
    with pytest.raises(TypeError, match="a loss is a number or a one-element tensor, got list"):
        scheduler.observe([1.0])
    with pytest.raises(ValueError, match="weight must be finite and not negative, got -1.0"):
        scheduler.observe(1.0, weight=-1)


def test_the_picture() -> None:
    scheduler = AdaptiveWarmup(make_optimizer(), 10)
    with pytest.raises(RuntimeError, match="no profile to draw before the first finite loss"):
        scheduler.plot()
    scheduler.step(5.0)
    ax = scheduler.plot()
    assert ax.get_xlabel() == "loss"
    assert max(ax.lines[0].get_ydata()) == pytest.approx(PEAK, rel=1e-3)
