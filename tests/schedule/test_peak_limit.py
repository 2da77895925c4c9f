"""How high a peak the weights bear: when it acts, on what, and that nothing changes below it."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from autowarm import LMO, AdaptiveWarmup, Lion, Muon, NormSGD, SignSGD
from autowarm.geometry import Frobenius, Spectral
from autowarm.lab.data.images import scanned_digits
from autowarm.optim import Together
from autowarm.others import known
from tests.programs import Launcher, results
from tests.schedule.ranks.peak_limit_ranks import limit, network
from tests.schedule.schedule_runs import run, saved

T, HOT = 100, 0.1


def weights(*shape: int, scale: float = 0.25) -> nn.Parameter:
    torch.manual_seed(0)
    return nn.Parameter(scale * torch.randn(*shape))


def noise(p: Tensor, t: int) -> Tensor:
    return torch.randn(p.shape, generator=torch.Generator().manual_seed(t))


def train(scheduler: AdaptiveWarmup, updates: range, order: str = "after") -> list[float]:
    """A loss that falls, and gradients of noise; returns the rate of every update."""
    return run(scheduler, lambda t: 1 + 9 * math.exp(-t / 30), updates, order, noise)


def factor(optimizer: Optimizer, updates: int = 1, **options: Any) -> float | None:
    scheduler = AdaptiveWarmup(optimizer, T, **{"peak_limit": 2.5} | options)
    with warnings.catch_warnings(action="ignore"):
        train(scheduler, range(updates))
    return scheduler.metrics().get("peak_limit")


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda ps: Muon(ps, lr=1.0, method="svd"), (6, 4)),
        (lambda ps: Muon(ps, lr=1.0, method="svd", radius="original"), (6, 3, 2, 2)),
        (lambda ps: LMO(ps, lr=1.0, geometry=Spectral(stacked=True, blocks=2)), (3, 8, 5)),
        (lambda ps: LMO(ps, lr=1.0, geometry=Spectral(0.5, blocks=(4, 1, 1))), (12, 5)),
        (lambda ps: LMO(ps, lr=1.0, geometry=Spectral("original", transposed=True)), (4, 9)),
        (lambda ps: Lion(ps, lr=1.0), (6, 4)),
        (lambda ps: SignSGD(ps, lr=1.0), (7,)),
        (lambda ps: NormSGD(ps, lr=1.0), (6, 4)),
        (lambda ps: LMO(ps, lr=1.0, geometry=Frobenius(2.0, stacked=True)), (3, 6, 4)),
        (lambda ps: LMO(ps, lr=1.0, geometry="rows"), (6, 2, 3)),
        (lambda ps: LMO(ps, lr=1.0, geometry="columns"), (6, 4)),
        (lambda ps: torch.optim.Muon(ps, lr=1.0, weight_decay=0.0), (9, 4)),
        (lambda ps: torch.optim.Muon(ps, lr=1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"), (9, 4)),
    ],
)
def test_the_norm_of_a_step_is_known(make: Callable[[list[Tensor]], Optimizer], shape: tuple[int, ...]) -> None:
    p = weights(*shape)
    before, optimizer = p.detach().clone(), make([p])
    p.grad = torch.randn(shape)
    optimizer.step()
    expected = known.step_norm(optimizer, optimizer.param_groups[0], p.shape)
    inexact = 0.2 if isinstance(optimizer, torch.optim.Muon) else 1e-4  # PyTorch's iterations
    assert float((p.detach() - before).norm()) == pytest.approx(expected, rel=inexact)


@pytest.mark.parametrize(
    "make",
    [lambda ps: AdamW(ps, 1e-3), lambda ps: Muon([{"params": ps, "algorithm": "adamw"}], 1e-3)],
    ids=["AdamW", "AdamW of Muon"],
)
def test_the_norm_of_an_adams_step_is_about_right(make: Callable[[list[Tensor]], Optimizer]) -> None:
    p = weights(20, 30)
    optimizer, moved = make([p]), []
    for t in range(200):
        before, p.grad = p.detach().clone(), noise(p, t) + 0.2
        optimizer.step()
        moved.append(float((p.detach() - before).norm()) / 1e-3)
    expected = known.step_norm(optimizer, optimizer.param_groups[0], p.shape)
    assert 0.5 < sum(moved) / len(moved) / expected < 2


@pytest.mark.parametrize("make", [Lion.from_model, Muon.from_model, NormSGD.from_model])
def test_below_the_limit_nothing_changes(make: Callable[..., Optimizer]) -> None:
    runs = []
    for most in (2.5, None):
        model = network()
        scheduler = AdaptiveWarmup(make(model, lr=1e-3), T, peak_limit=most)
        with warnings.catch_warnings(action="error"):
            runs.append((train(scheduler, range(T)), [p.tolist() for p in model.parameters()]))
        assert scheduler.metrics().get("peak_limit") == (most and 1.0)
    assert runs[0] == runs[1]


@pytest.mark.parametrize(("given", "most"), [({}, 2.5), ({"peak_limit": 1.0}, 1.0)])
def test_it_multiplies_the_whole_schedule(given: dict[str, float], most: float) -> None:
    p = weights(8, 8)
    expected = most * float(p.detach().norm()) / (HOT * 8 * math.sqrt(T))
    limited, free = (AdaptiveWarmup(Lion([weights(8, 8)], lr=HOT), T, **one) for one in (given, {"peak_limit": None}))
    with pytest.warns(UserWarning, match="peak_limit=None keeps 0.1"):
        rates = train(limited, range(T))
    assert limited.metrics()["peak_limit"] == pytest.approx(expected)
    whole = train(free, range(T))
    assert rates[0] == whole[0]  # the first update is made before anybody has looked
    assert rates[1:] == pytest.approx([expected * lr for lr in whole[1:]])
    assert limited.base_lrs == [HOT]
    assert f"limited to {expected * HOT:.2g}" in repr(limited)
    assert limited.profile is not None
    assert limited.profile.lr == pytest.approx(expected * HOT)


def test_it_is_said_once_in_these_words() -> None:
    p = weights(10, 10)
    with torch.no_grad():
        p.mul_(2.5 / p.norm())  # 0.03 moves it by 12%
    scheduler = AdaptiveWarmup(Lion([p], lr=0.03), 1000, peak_limit=2.5)
    with pytest.warns(UserWarning, match="moves the weights") as caught:
        train(scheduler, range(20))
    assert [str(one.message) for one in caught] == [
        "the peak rate is lowered from 0.03 to 0.02: at 0.03 one update moves the weights by 12% of their norm, and "
        "1,000 updates bear 7.9% each (peak_limit=None keeps 0.03)"
    ]
    assert Path(caught[0].filename).name == "schedule_runs.py"


def test_algorithm_1s_order_is_limited_from_its_first_update_on() -> None:
    scheduler = AdaptiveWarmup(Lion([weights(8, 8)], lr=HOT), T, peak_limit=2.5)
    with warnings.catch_warnings(action="ignore"):
        rates = train(scheduler, range(3), order="before")
    assert rates[0] == pytest.approx(scheduler.metrics()["peak_limit"] * HOT / 10)


NONE = {
    "SGD": lambda: SGD([weights(4, 4)], HOT),
    "a Muon that scales steps as it likes": lambda: type("Muon", (SGD,), {})([weights(4, 4)], HOT),
    "zero weights": lambda: Lion([weights(4, 4, scale=0.0)], HOT),
    "no values": lambda: Lion([nn.Parameter(torch.ones(4, 4, device="meta")), weights(4, 4)], HOT),
    "not materialised": lambda: AdamW([nn.parameter.UninitializedParameter(), weights(4, 4)], HOT),
    "infinite weights": lambda: Lion([weights(4, 4, scale=math.inf)], HOT),
    "with SGD": lambda: Together(Lion([weights(4, 4)], HOT), SGD([weights(3)], HOT)),
    "frozen": lambda: Lion([weights(4, 4).requires_grad_(False)], HOT),
}


@pytest.mark.parametrize("make", NONE.values(), ids=NONE)
def test_there_is_no_limit(make: Callable[[], Optimizer]) -> None:
    optimizer = make()
    scheduler = AdaptiveWarmup(optimizer, T, trained=False, peak_limit=2.5)
    scheduler._limit.look(optimizer, scheduler._groups.rates)
    scheduler._limit.settle(optimizer, scheduler._groups.rates, T, None)
    assert (scheduler._limit.factor, scheduler.metrics().get("peak_limit")) == (1.0, None)


def test_weights_that_begin_small_count_as_large_as_pytorch_starts_them() -> None:
    step = HOT * math.sqrt(8 * 8 + 6 * 4 + 3)
    small = [weights(8, 8, scale=1e-3), weights(6, 2, 2, scale=1e-3), weights(3, scale=1e-3)]
    assert factor(Lion(small, lr=HOT)) == pytest.approx(2.5 * math.sqrt((8 + 6) / 3) / step / math.sqrt(T))
    usual = math.sqrt(64 / 3)
    linear = nn.Linear(256, 64, bias=False)
    assert float(linear.weight.detach().norm()) == pytest.approx(usual, rel=0.05)


def test_groups_share_one_factor() -> None:
    def groups() -> list[dict[str, Any]]:
        return [{"params": [weights(8, 8)], "lr": 0.1}, {"params": [weights(5)], "lr": 0.3, "lr_scale": 0.5}]

    norm = math.hypot(*(float(group["params"][0].detach().norm()) for group in groups()))
    step = math.hypot(0.1 * 8, 0.15 * math.sqrt(5))
    assert factor(Lion(groups(), lr=1.0)) == pytest.approx(2.5 * norm / step / math.sqrt(T))
    frozen = [*groups(), {"params": [weights(50, 50)], "lr": 0.0}, {"params": [weights(9).requires_grad_(False)]}]
    assert factor(Lion(frozen, lr=0.2)) == factor(Lion(groups(), lr=1.0))
    steady = AdaptiveWarmup(
        Lion([*groups(), {"params": [weights(5)], "lr": 0.2, "warmup": False}], lr=1.0), T, peak_limit=2.5
    )
    with warnings.catch_warnings(action="ignore"):
        train(steady, range(2))
    assert steady.get_last_lr()[2] == pytest.approx(0.2 * steady.metrics()["peak_limit"])


def test_hybrids_count_each_step_as_its_optimizer_makes_it() -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 8))
    step = math.hypot(0.5 * 0.2 * 8, 2.0 * 0.35 * math.sqrt(20 * 8 + 8))

    def expected() -> float:
        return 2.5 * float(nn.utils.parameters_to_vector(model.parameters()).detach().norm()) / step / math.sqrt(T)

    before = expected()
    assert limit(Muon.from_model(model, lr=0.5, adamw_lr=2.0)) == pytest.approx(before)
    before = expected()
    torchs = torch.optim.Muon([model[1].weight], lr=0.5, adjust_lr_fn="match_rms_adamw")
    assert limit(Together(torchs, AdamW([model[0].weight, model[1].bias], lr=2.0))) == pytest.approx(before)


@pytest.mark.parametrize("at", [0, 1, 30])
def test_a_resumed_run_has_the_same_limit(at: int) -> None:
    def made() -> AdaptiveWarmup:
        return AdaptiveWarmup(Lion([weights(8, 8)], lr=HOT), T, peak_limit=2.5)

    first, straight, second = made(), made(), made()
    with warnings.catch_warnings(action="ignore"):
        rates = train(straight, range(T))
        train(first, range(at))
        second.optimizer.load_state_dict(first.optimizer.state_dict())
        second.load_state_dict(saved(first))
        if at:  # other weights now: it does not look again
            with torch.no_grad():
                second.optimizer.param_groups[0]["params"][0].mul_(10)
        assert train(second, range(at, T)) == rates[at:]
    assert second.metrics()["peak_limit"] == straight.metrics()["peak_limit"]


@pytest.mark.parametrize(("total", "ratio"), [(400, 0.5), (50, math.sqrt(2)), (64_000, T**0.5 / 4000**0.5)])
def test_another_length_in_the_warm_up_moves_it(total: int, ratio: float) -> None:
    limits, rates = [], []
    for resumed in (False, True):
        scheduler = AdaptiveWarmup(Lion([weights(8, 8)], lr=HOT), T, peak_limit=2.5)
        with warnings.catch_warnings(action="ignore"):
            train(scheduler, range(5))
        before, state = scheduler.metrics()["peak_limit"], saved(scheduler)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if resumed:
                scheduler = AdaptiveWarmup(Lion([weights(8, 8)], lr=HOT), total, peak_limit=2.5)
                scheduler.load_state_dict(state)
            else:
                scheduler.extend(total)
            train(scheduler, range(5, 6))
        assert sum(f"and {total:,} updates bear" in str(one.message) for one in caught) == 1
        limits.append(scheduler.metrics()["peak_limit"] / before)
        rates.append(scheduler.get_last_lr())
    assert limits == pytest.approx([ratio, ratio])
    assert rates[0] == rates[1]


@pytest.fixture(scope="module")
def ranks(rank_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float | None]]:
    folder = tmp_path_factory.mktemp("ranks")
    rank_launcher.run_ranks(2, [Path(__file__).parent / "ranks" / "peak_limit_ranks.py", folder])
    return results(folder)


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("copies", Lion.from_model),
        ("copies of trained weights", Lion.from_model),
        ("shards, lion", Lion.from_model),
        ("shards, muon", Muon.from_model),
        ("stages", Lion.from_model),
        ("one without values", None),
    ],
)
def test_ranks_share_one_limit(
    what: str, make: Callable[..., Optimizer] | None, ranks: list[dict[str, float | None]]
) -> None:
    assert ranks[0][what] == ranks[1][what]
    assert ranks[0][what] == (None if make is None else pytest.approx(limit(make(network(), lr=0.1)), rel=1e-6))


def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = scanned_digits()
    return torch.as_tensor(pixels).flatten(1).float() / 16, torch.as_tensor(labels).long()


def waves() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 8, generator=generator)
    return x, torch.sin(x @ torch.randn(8, 4, generator=generator))


def held_out_loss(make: Callable[..., Optimizer], lr: float, data: Callable, most: float | None) -> float:
    """A small network's loss on a fifth of the data, after 4,000 updates on the rest."""
    x, y = data()
    loss_of = nn.functional.mse_loss if y.is_floating_point() else nn.functional.cross_entropy
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 48), nn.ReLU(), nn.Linear(48, 4 if y.is_floating_point() else 10))
    optimizer = make(model, lr)
    scheduler = AdaptiveWarmup(optimizer, 4000, peak_limit=most)
    held_out, generator = torch.arange(len(x)) % 5 == 0, torch.Generator().manual_seed(1)
    known, labels = x[~held_out], y[~held_out]
    for _ in range(4000):
        batch = torch.randint(len(known), (32,), generator=generator)
        loss = loss_of(model(known[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        scheduler.step(loss)
        optimizer.zero_grad()
    return float(loss_of(model(x[held_out]), y[held_out]).detach())


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "tuned", "data"),
    [
        (Lion.from_model, 0.003, digits),
        (Muon.from_model, 0.03, waves),
        (lambda model, lr: AdamW(model.parameters(), lr), 0.01, waves),
    ],
    ids=["Lion", "Muon", "AdamW"],
)
def test_a_rate_30_times_too_high_loses_less_than_a_quarter(
    make: Callable[..., Optimizer], tuned: float, data: Callable
) -> None:
    """Of these losses, which no run can lower below 0, so that a tuned run need not be made."""
    with warnings.catch_warnings(action="ignore"):
        limited, free = (held_out_loss(make, 30 * tuned, data, most) for most in (2.5, None))
    assert limited < free / 4
