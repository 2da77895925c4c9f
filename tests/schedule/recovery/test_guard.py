"""The guard alone, given losses without a run: what it says and does at each kind of alarm."""

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autowarm.schedule.recovery import Guard
from autowarm.schedule.recovery.guard import Action, History, decide


def watched(loss: Callable[[int, int], float], restores: bool = True) -> tuple[Guard, list[float], list[str]]:
    """A guard of 900 losses, each of an update and the number of warnings so far; its shares, and what it said."""
    guard, share = Guard(restores or "warn", 1000), []
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)
    with warnings.catch_warnings(record=True, action="always") as said:
        for t in range(900):
            guard.after(t, t, loss(t, len(said)), optimizer, 1.0)
            share.append(guard.share(t))
    return guard, share, [str(one.message) for one in said]


def lowered(*bursts: int) -> tuple[Guard, list[float]]:
    """A guard that has seen a falling loss with NaNs from these updates on, and its share after each of 900 updates."""
    bad = {start + more for start in bursts for more in (0, 1)}
    return watched(lambda t, _: math.nan if t in bad else 3.0 * 0.995**t)[:2]


HISTORY = History(True, False, False, False, 0, False, False)
DECISIONS = [
    (Action.TRY, False, {}),
    (Action.RESTORE, True, {}),
    (Action.LOWER, False, {"lowers": True}),
    (Action.LOWER, True, {"lowers": True, "is_lowest": True}),
    (Action.ACQUIT, False, {"lowers": True, "is_lowest": True}),
    (Action.TRY, False, {"is_lowest": True}),
    (Action.TRY, False, {"is_early": True, "on_trial": True, "failures": 3}),
    (Action.ACQUIT, False, {"is_early": True, "on_trial": True, "failures": 4}),
    (Action.TRY, False, {"failures": 4}),
    (Action.RESTORE, True, {"is_early": True, "failures": 9}),
    (Action.ACQUIT, True, {"is_early": True, "failures": 10}),
    (Action.WARN, True, {"has_copy": False}),
    (Action.ACQUIT, False, {"has_copy": False, "on_trial": True}),
    (Action.NOTHING, True, {"has_copy": False, "is_known": True, "on_trial": True}),
    (Action.RESTORE, True, {"is_known": True}),
]


@pytest.mark.parametrize(("action", "broken", "changes"), DECISIONS)
def test_what_is_done_about_an_alarm(action: Action, broken: bool, changes: dict[str, Any]) -> None:
    assert decide(broken, HISTORY._replace(**changes)) == action


def low(t: int) -> float:
    """A loss that falls from 6 to 2."""
    return 2.0 * (1 + 2 * 0.97**t)


def broken(*at: int) -> Callable[[int, int], float]:
    return lambda t, _: math.nan if t in at else low(t)


BACK, UNDO = "weights and optimizer are those of update", 'To undo it, load a checkpoint and pass recover="warn"'
# By what happens: the losses by update and number of warnings, whether weights are restored, and of each warning how it
# begins and what it says at last.
MESSAGES: dict[str, tuple[Callable[[int, int], float], bool, list[tuple[str, str]]]] = {
    "tried": (
        lambda t, said: 4.0 if t >= 300 and not said else low(t), True,
        [("update 30", f"{BACK} .*, for 16 losses on trial at 0.1 of the rate. {UNDO}")],
    ),
    "other data": (
        lambda t, _: 4.0 if t >= 300 else low(t), True,
        [("update 30", f"on trial at 0.1 of the rate. {UNDO}"), ("update 30", "the run has its own weights .* again")],
    ),
    "not finite": (broken(200, 201), True, [("update 201: the last losses were 2", f"{BACK} .* from there. {UNDO}")]),
    "again": (
        broken(200, 201, 240, 241), True,
        [("update 201", UNDO), ("update 241", f"{BACK} .*, at a peak rate of 0.333 in place of 1. {UNDO}")],
    ),
    "nothing is left to lower": (
        lambda t, said: math.nan if t in (200, 201) else 4.0 if 0 < said < 4 and (t - 201) % 30 > 20 else low(t), True,
        [("update 201", UNDO), *(("update", f"at a peak rate of {to} in place of .*") for to in ("0.333", "0.111")),
         ("update", "the data or the objective have changed; nothing was restored")],
    ),
    "no copy": (
        broken(0, 1), True,
        [("update 1: the last losses were nan, nan", "there is no copy yet to go back to; nothing was restored")],
    ),
    "to warn": (broken(200, 201), False, [("update 201", "recover=True would have restored the weights")]),
    "idle": (lambda t, _: 1.0 + t / 100, True, [("recovery is idle: the loss rose from 1", ".* still count")]),
    "below zero": (
        lambda t, _: -0.995 + t / 200, True, [("recovery is idle: a loss of -0.995 is below zero", ".* still count")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "restores", "messages"), MESSAGES.values(), ids=MESSAGES)
def test_each_alarm_is_said_as_it_happens(
    loss: Callable[[int, int], float], restores: bool, messages: list[tuple[str, str]]
) -> None:
    said = watched(loss, restores)[2]
    assert len(said) == len(messages), said
    for one, (begins, ends) in zip(said, messages, strict=True):
        assert re.fullmatch(f"{begins}.*{ends}", one), one


def test_a_lowered_rate_climbs_back_once_the_run_is_healthy() -> None:
    """By one lowering, once the loss has made new lows for as long as the copy was old at the alarm."""
    guard, share = lowered(200, 240)
    first, second = guard.recoveries
    assert (first.peak_after, second.peak_after) == (1.0, pytest.approx(1 / 3))
    assert min(share[262:290]) == pytest.approx(1 / 3)
    assert share[-1] == 1.0
    assert share[290:] == sorted(share[290:])


def test_after_two_wrong_alarms_only_what_is_not_finite_counts() -> None:
    """The loss rises for good, whatever the weights are: the data have changed."""
    noise = torch.randn(900, generator=torch.Generator().manual_seed(0)).tolist()
    guard, _, _ = watched(lambda t, _: 1 + t // 300 + math.exp(-(t % 300) / 30) + 0.02 * noise[t])
    assert [found.restored for found in guard.recoveries] == [None, None]
    assert guard.recoveries[1].reason.endswith("from now on, only losses that are not finite count")


def test_a_new_warm_up_forgets_the_lowerings() -> None:
    guard, share = lowered(200, 240, 300, 340)
    assert share[-1] < 1.0
    guard.restart(1000)
    assert guard.share(900) == 1.0
