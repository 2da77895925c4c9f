"""Saved and loaded, it goes on to the bit; pickled and copied, as well, in tests/schedule/test_random_cases.py."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from autowarm import AdaptiveWarmup, Muon, SpikeGuard
from autowarm.schedule.state import STATE_VERSION
from tests.schedule.recovery.recovery_runs import Run
from tests.schedule.schedule_runs import PEAK, every_lr, falling, made, make_optimizer, rate, run, saved


def test_saved_between_micro_batches() -> None:
    first = AdaptiveWarmup(make_optimizer(), 50)
    first.observe(torch.tensor(6.0), weight=2)
    second = AdaptiveWarmup(make_optimizer(), 50)
    second.load_state_dict(saved(first))
    second.observe(3.0)
    second.step()
    assert second.profile.gap0 == pytest.approx(0.7 * 5.0)


def after(updates: int, total_steps: int = 100, lr: object = PEAK, **options: object) -> AdaptiveWarmup:
    scheduler = AdaptiveWarmup(make_optimizer(lr), total_steps, **options)
    run(scheduler, falling(), range(updates))
    return scheduler


def damaged(path: str, value: object) -> dict:
    *outer, last = path.split(".")
    inner = state = saved(after(5))
    for name in outer:
        inner = inner[name]
    if value is KeyError:
        del inner[last]
    else:
        inner[last] = value
    return state


DAMAGES: list[tuple[str, object]] = [
    ("groups", []), ("last_epoch", 6), ("pending", [[1.0, 1.0]]), ("settings.div", 9.0), ("state.ramp", [0, 0.1, 51.0]),
    ("state.opening", KeyError), ("checksum", None), ("checksum", KeyError),
]  # fmt: skip
VERSIONS = (None, STATE_VERSION - 1, STATE_VERSION + 1)
PYTORCHS = (torch.optim.lr_scheduler.CosineAnnealingLR, lambda opt, _: opt)
ANOTHERS = "not the state of AdaptiveWarmup: it is"


def refused() -> Iterator[tuple[dict, str]]:
    """States, and what is said of them."""
    for one in DAMAGES:
        yield damaged(*one), r"AdaptiveWarmup state is damaged: its checksum is .*earlier checkpoint"
    for make in PYTORCHS:
        yield make(make_optimizer(), 10).state_dict(), f"{ANOTHERS} a dictionary of "
    yield SpikeGuard(make_optimizer(), 10).state_dict(), f"{ANOTHERS} that of SpikeGuard"
    for version in VERSIONS:
        yield saved(after(5)) | {"version": version}, f"has version {version}, and this autowarm reads version "
    yield saved(after(5, div=20.0)), "differs from this one: div: saved 20.0, here 10.0"
    signs = saved(after(0, calibration="sign"))
    yield signs, r"geometry: saved 'Sign\(.*\)', here None; kappa: saved 16.0, here None"
    yield saved(AdaptiveWarmup(Muon([nn.Parameter(torch.zeros(2, 2))]), 50)), "optimizer: saved 'Muon', here 'Lion'"
    yield saved(after(101, 110)), "total_steps=100 is over: 101 updates were made already"


@every_lr
def test_a_state_that_is_damaged_anothers_or_of_another_schedule_is_refused_whole(tensor: bool) -> None:
    scheduler = after(3, lr=rate(tensor))
    before = saved(scheduler)
    for state, message in refused():
        with pytest.raises(ValueError, match=message):
            scheduler.load_state_dict(state)
        assert saved(scheduler) == before


@every_lr
def test_loaded_for_another_horizon_it_is_extended_with_one_warning(tensor: bool) -> None:
    first, second, third, back = made(tensor), made(tensor, 160), made(tensor, 160), made(tensor)
    head = run(first, falling(), range(100))
    with pytest.warns(UserWarning, match=r"saved for total_steps=100 and is loaded for total_steps=160") as caught:
        second.load_state_dict(saved(first))
    assert len(caught) == 1
    first.extend(160)
    rates = run(first, falling(), range(100, 130))
    assert rates == run(second, falling(), range(100, 130))
    with warnings.catch_warnings(action="error"):  # it is for 160 now, also for a script that extends on its way
        third.load_state_dict(saved(second))
        back.load_state_dict(saved(first))
        tail = run(third, falling(), range(130, 160))
    assert tail == run(first, falling(), range(130, 160)) == run(back, falling(), range(130, 160))
    assert min(head + rates + tail) > 0
    state = saved(third)
    with pytest.raises(ValueError, match="total_steps=20 is over: 160 updates were made already"):
        third.extend(20)
    assert saved(third) == state


# Saved by `torch.distributed.checkpoint`, which loads a state only into one with the same entries


PHASES = {"fresh": 0, "warm-up": 34, "decay": 90}  # updates made


def make(tensor: bool = False) -> Run:
    return Run("muon", tensor=tensor, max_warmup=60)


@every_lr
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.filterwarnings("ignore")  # that there are no other ranks
def test_a_run_of_every_phase_goes_on_to_the_bit(phase: str, tensor: bool, tmp_path: Path) -> None:
    at = PHASES[phase]
    straight = make(tensor).train(at)
    model, optimizer = get_state_dict(straight.model, straight.optimizer)
    dcp.save({"model": model, "optimizer": optimizer, "scheduler": straight.scheduler}, checkpoint_id=tmp_path)
    kept, drawn = repr(straight.scheduler.state_dict()), straight.data.get_state()
    rates = straight.train(26).rates[at:]
    for before in (0, 34):  # into a fresh run, and into one in another phase
        resumed = make(tensor).train(before)
        model, optimizer = get_state_dict(resumed.model, resumed.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=tmp_path)
        set_state_dict(resumed.model, resumed.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        dcp.load({"scheduler": resumed.scheduler}, checkpoint_id=tmp_path)  # it loads itself
        assert repr(resumed.scheduler.state_dict()) == kept
        resumed.data.set_state(drawn)
        assert resumed.train(26).rates[before:] == rates


def test_a_state_has_the_same_entries_for_life() -> None:
    run, phases, entries = make(), set(), set()
    for t in range(120):
        phases.add(run.scheduler.phase)
        state = run.scheduler.state_dict()
        entries.add(tuple(sorted((name, *sorted(x)) if isinstance(x, dict) else (name,) for name, x in state.items())))
        if t == 50:
            run.scheduler.observe(3.0)
        if t == 60:
            run.scheduler.decay_now(20)
        run.train(1)
    assert phases == {"warmup", "decay"}
    assert len(entries) == 1
