"""Steps inside `torch.inference_mode` and `torch.autocast`, in turns with steps outside, are the same steps."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import every_lr, falling, made, make_optimizer, rate

MODES: dict[str, Any] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@every_lr
@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_schedule_that_is_made_stepped_or_changed_in_a_mode_has_the_same_rates(
    mode: str, turn: int, tensor: bool
) -> None:
    """What is inside changes from turn to turn, at every so many updates."""
    plain = made(tensor)

    def inside(t: int) -> AbstractContextManager[object]:
        return MODES[mode]() if t // 5 % (turn + 1) else nullcontext()

    with inside(5 * (turn > 1)):
        lr = rate(tensor)
    opt = make_optimizer(lr)
    with inside(5 * (turn != 2)):
        scheduler = AdaptiveWarmup(opt, 100)
    for t in range(60):
        for one, where in ((plain, nullcontext()), (scheduler, inside(t))):
            with where:
                if t in (5, 10, 15):
                    one.load_state_dict(copy.deepcopy(one.state_dict()))
                if t in (20, 25, 30):
                    one.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
                if t in (35, 40, 45):
                    one.extend(100 + t)
                one.optimizer.step()
                one.step(torch.tensor(falling()(t), dtype=torch.float64))
        assert [float(x) for x in scheduler.get_last_lr()] == [float(x) for x in plain.get_last_lr()]
        assert float(opt.param_groups[0]["lr"]) == float(plain.get_last_lr()[0])
