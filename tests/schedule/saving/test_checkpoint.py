"""Saved by `torch.distributed.checkpoint`, which loads a state only into one with the same entries."""

from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tests.schedule.recovery.recovery_runs import Run
from tests.schedule.schedule_runs import every_lr

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
    for made in (0, 34):  # into a fresh run, and into one in another phase
        resumed = make(tensor).train(made)
        model, optimizer = get_state_dict(resumed.model, resumed.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=tmp_path)
        set_state_dict(resumed.model, resumed.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        dcp.load({"scheduler": resumed.scheduler}, checkpoint_id=tmp_path)  # it loads itself
        assert repr(resumed.scheduler.state_dict()) == kept
        resumed.data.set_state(drawn)
        assert resumed.train(26).rates[made:] == rates


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
        if t == 70:
            run.scheduler.rewarm(120)
        run.train(1)
    assert phases == {"warmup", "decay"}
    assert len(entries) == 1
