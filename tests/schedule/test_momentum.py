"""``momentum=``: the momentum of the groups goes with the rate."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD
from autowarm.optim import Together
from tests.schedule.schedule_runs import PEAK, falling, run, saved

T = 60
MAKERS: dict[str, tuple[Callable[..., Any], str]] = {
    "Muon": (Muon, "momentum"), "NormSGD": (NormSGD, "momentum"), "SGD": (torch.optim.SGD, "momentum"),
    "Lion": (Lion, "betas"), "AdamW": (torch.optim.AdamW, "betas"),
    "both": (lambda params, lr: Together(torch.optim.Muon(params, lr), torch.optim.AdamW([torch.ones(2)])), "momentum"),
}  # fmt: skip


def made(name: str = "Muon", **options: Any) -> tuple[AdaptiveWarmup, Callable[[], float]]:
    make, key = MAKERS[name]
    optimizer = make([nn.Parameter(torch.zeros(4, 4))], lr=PEAK)
    scheduler = AdaptiveWarmup(optimizer, T, **options)
    group = optimizer.param_groups[0]
    return scheduler, lambda: group[key] if key == "momentum" else group[key][0]


@pytest.mark.parametrize("last", [(), (0.8,)])
@pytest.mark.parametrize("name", MAKERS)
def test_it_goes_with_the_rate(name: str, last: tuple[float, ...]) -> None:
    scheduler, momentum = made(name, momentum=(0.85, 0.95, *last))
    second = scheduler.optimizer.param_groups[0].get("betas", (0, 0))[1]
    for t in range(T):
        share = scheduler.get_last_lr()[0] / PEAK
        if scheduler.phase == "warmup":
            expected = 0.85 + 0.1 * (10 * share - 1) / 9
        else:
            expected = 0.95 - 0.15 * (1 - share) if last else 0.95
        assert momentum() == pytest.approx(expected)
        assert scheduler.metrics()["momentum"] == momentum()
        run(scheduler, falling(), [t])
    assert scheduler.phase == "decay"
    assert scheduler.optimizer.param_groups[0].get("betas", (0, 0))[1] == second
    assert name != "both" or scheduler.optimizer.param_groups[1]["betas"] == (0.9, 0.999)


def test_a_loss_above_the_first_one_leaves_it_at_its_start() -> None:
    scheduler, momentum = made("SGD", momentum=(0.0, 0.95), max_warmup=None, target_loss=1.0, smoothing=0.0)
    run(scheduler, lambda t: 5.0 + t, range(20))
    assert scheduler.get_last_lr()[0] < PEAK / 10
    assert momentum() == 0.0


def test_resumed_it_is_the_same_and_without_it_nothing_is_written() -> None:
    straight, momentum = made(momentum=(0.85, 0.95))
    run(straight, falling(), range(20))
    resumed, other = made(momentum=(0.85, 0.95))
    resumed.load_state_dict(saved(straight))
    assert other() == momentum() > 0.85
    plain, untouched = made()
    before = untouched()
    run(plain, falling(), range(20))
    assert untouched() == before
    assert "momentum" not in plain.metrics()
    with pytest.raises(ValueError, match="momentum: saved .0.85, 0.95., here None"):
        plain.load_state_dict(saved(straight))
