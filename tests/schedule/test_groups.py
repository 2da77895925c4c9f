"""Parameter groups of every kind, and others who change their rates."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from autowarm import AdaptiveWarmup, Lion
from tests.schedule.schedule_runs import PEAK, every_lr, falling, group, rate, saved


def train(scheduler: AdaptiveWarmup, first: int, last: int) -> list[list[float]]:
    """By update, the rates of all groups."""
    rates = []
    for t in range(first, last):
        scheduler.optimizer.step()
        rates.append([float(group["lr"]) for group in scheduler.optimizer.param_groups])
        scheduler.step(falling()(t))
    return rates


@every_lr
def test_resumed_with_a_group_that_was_added_on_the_way(tensor: bool) -> None:
    def make() -> AdaptiveWarmup:
        return AdaptiveWarmup(Lion([group(tensor)]), 60)

    first, second, third = make(), make(), make()
    train(first, 0, 7)
    first.optimizer.add_param_group(group(tensor, PEAK / 5))
    train(first, 7, 20)
    with pytest.raises(ValueError, match="parameter groups: saved 2, here 1"):
        second.load_state_dict(saved(first))
    second.optimizer.add_param_group(group(tensor, PEAK / 3))  # its saved peak holds
    second.load_state_dict(saved(first))
    # A group that the state does not know follows the common share.
    third.optimizer.add_param_group(group(tensor))
    third.optimizer.add_param_group(group(tensor, PEAK / 2))
    third.load_state_dict(saved(first))
    rates = train(first, 20, 60)
    assert train(second, 20, 60) == rates
    assert [c for *_, c in train(third, 20, 60)] == pytest.approx([a / 2 for a, _ in rates])


def test_groups_that_share_one_tensor_have_rates_of_their_own() -> None:
    """PyTorch puts one tensor lr into all groups and the defaults, from which later groups take theirs."""

    def rates(lr: float | torch.Tensor) -> list[list[float]]:
        first, second, third = (list(nn.Linear(4, 4).parameters()) for _ in range(3))
        opt = Lion([{"params": first}, {"params": second, "warmup": False}], lr=lr)
        sched, found = AdaptiveWarmup(opt, 100), []
        for step in range(60):
            if step == 10:
                opt.add_param_group({"params": third})
            found.append([float(one["lr"]) for one in opt.param_groups])
            opt.step()
            sched.step(5.0)
        return found

    expected = rates(PEAK)
    assert expected[9][0] < expected[9][1] == PEAK
    assert expected[20][2] == expected[20][0]
    for one, other in zip(rates(torch.tensor(PEAK, dtype=torch.float64)), expected, strict=True):
        assert one == pytest.approx(other, rel=1e-12)


MOVES: dict[str, Callable[[list[dict]], object]] = {
    "the first goes": lambda groups: groups.pop(0),
    "the last goes": lambda groups: groups.pop(),
    "the order turns": lambda groups: groups.reverse(),
    "an empty one goes": lambda groups: groups.__setitem__(slice(None), [g for g in groups if g["params"]]),
    "an empty one comes": lambda groups: groups.insert(1, dict(groups[-1], lr=7.0)),
}


@every_lr
@pytest.mark.parametrize("move", MOVES)
def test_groups_that_go_or_move_keep_their_rates(move: str, tensor: bool) -> None:
    groups = [group(tensor, 1.0), group(tensor, 2.0), group(tensor, 3.0, warmup=False), {"params": [], "lr": 9.0}]
    scheduler = AdaptiveWarmup(torch.optim.SGD(groups), 60)
    train(scheduler, 0, 7)
    first = {id(g["params"][0]): float(g["lr"]) for g in scheduler.optimizer.param_groups if g["params"]}
    MOVES[move](scheduler.optimizer.param_groups)
    scheduler.optimizer.step()
    rows = zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), scheduler.base_lrs, strict=True)
    for g, written, peak in rows:
        assert float(g["lr"]) == written
        if g["params"]:
            assert float(g["lr"]) == first[id(g["params"][0])]
            assert peak == float(g["initial_lr"])


WRITERS: dict[str, Callable[[int, float], float]] = {
    "own warm-up": lambda t, lr: PEAK * (t + 1) / 500 if t < 500 else lr,
    "a factor": lambda t, lr: 0.9 * lr,
    "a rate once": lambda t, lr: 3 * PEAK if t == 300 else lr,
    "batches skipped by a rate of 0": lambda t, lr: 0.0 if t in (40, 41, 90) else lr,
}


@every_lr
@pytest.mark.parametrize("writer", WRITERS)
def test_rates_that_others_set_are_overwritten_and_said_so_after_three_in_a_row(writer: str, tensor: bool) -> None:
    plain = [a for (a,) in train(AdaptiveWarmup(Lion([group(tensor)]), 600), 0, 600)]
    opt = Lion([group(tensor)])
    scheduler, ours, row, rows = AdaptiveWarmup(opt, 600), [], 0, [0]
    with warnings.catch_warnings(record=True, action="always") as said:
        for t in range(600):
            ours.append(lr := float(opt.param_groups[0]["lr"]))
            row = row + 1 if (other := WRITERS[writer](t, lr)) != lr else 0
            if row:
                opt.param_groups[0]["lr"] = rate(tensor, other)
            rows.append(row)
            opt.step()
            scheduler.step(falling()(t))
    assert ours == plain
    assert [float(peak) for peak in scheduler.base_lrs] == [PEAK]
    assert len(said) == (max(rows) >= 3)
    assert all("from outside in 3 updates in a row" in str(one.message) for one in said)


@every_lr
@pytest.mark.parametrize("at", [0, 9, 40])
def test_base_lrs_are_the_peaks_and_saved(tensor: bool, at: int) -> None:
    def make() -> AdaptiveWarmup:
        return AdaptiveWarmup(Lion([group(tensor), group(tensor, PEAK / 5)]), 60)

    plain, changed, resumed = train(make(), 0, 60), make(), make()
    head = train(changed, 0, at)
    changed.base_lrs[1] = 3 * PEAK
    assert [row["peak"] for row in changed.state_dict()["groups"]] == [PEAK, 3 * PEAK]
    rates = head + train(changed, at, at + 10)
    resumed.load_state_dict(saved(changed))
    rates += (tail := train(changed, at + 10, 60))
    assert train(resumed, at + 10, 60) == tail
    assert resumed.base_lrs == [PEAK, 3 * PEAK]
    assert [a for a, _ in rates] == [a for a, _ in plain]
    assert [b for _, b in rates[at + 1 :]] == pytest.approx([15 * b for _, b in plain[at + 1 :]])
    for wrong in ([PEAK], [PEAK, float("nan")], [PEAK, -1.0]):
        changed.base_lrs = wrong
        changed.optimizer.step()
        with pytest.raises(ValueError, match="base_lrs must hold a finite peak rate, 0 or more, for each of the 2"):
            changed.step(1.0)


# A schedule on an optimizer that has had one


def cosine_before(opt: torch.optim.Optimizer) -> None:
    scheduler = CosineAnnealingLR(opt, 20)
    for _ in range(7):
        opt.step()
        scheduler.step()


def ours_before(opt: torch.optim.Optimizer) -> None:
    train(AdaptiveWarmup(opt, 20), 0, 7)


@every_lr
@pytest.mark.parametrize("by_hand", [None, PEAK / 10, 2 * PEAK])
@pytest.mark.parametrize("before", [cosine_before, ours_before])
def test_a_second_schedule_takes_the_rate_set_by_hand_or_says_which_it_took(
    before: Callable, by_hand: float | None, tensor: bool
) -> None:
    opt = Lion([group(tensor)])
    before(opt)
    if by_hand is not None:
        opt.param_groups[0]["lr"] = rate(tensor, by_hand)
    scheduler = AdaptiveWarmup(opt, 60, trained=False, peak_limit=None)  # which weights that began at 0 do not bear
    with warnings.catch_warnings(record=True, action="always") as given:
        rates = [a for (a,) in train(scheduler, 0, 60)]
    assert max(rates) == pytest.approx(by_hand if before is ours_before and by_hand else PEAK, rel=1e-6)
    assert [f"{PEAK:g} is the peak, as" in str(one.message) for one in given] == [True] * (before is not ours_before)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, Lion])
def test_one_tensor_as_the_rate_of_two_optimizers_is_refused(kind: Callable) -> None:
    lr = torch.tensor(PEAK)
    first, second = (kind(group()["params"], lr=lr) for _ in range(2))
    scheduler = AdaptiveWarmup(first, 20)
    with pytest.raises(ValueError, match="tensor that another optimizer's schedule fills.*lr.clone"):
        AdaptiveWarmup(second, 60)
    assert AdaptiveWarmup(first, 30).base_lrs == scheduler.base_lrs  # a second schedule of the same optimizer
