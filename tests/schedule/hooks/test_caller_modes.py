"""Steps inside `torch.inference_mode` and `torch.autocast`, in any order with steps outside, are the same steps."""

import copy
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autowarm import AdaptiveWarmup
from tests.schedule.schedule_runs import PEAK, falling, make_optimizer

MODES = {
    "outside": nullcontext,
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
modes = st.sampled_from(sorted(MODES))


def inside(mode: str) -> AbstractContextManager[object]:
    return MODES[mode]()


@pytest.mark.parametrize("tensor", [False, True], ids=["float lr", "tensor lr"])
@settings(max_examples=10)
@given(data=st.data())
def test_any_order_of_modes_gives_the_same_rates(tensor: bool, data: st.DataObject) -> None:
    def lr() -> float | torch.Tensor:
        return torch.tensor(PEAK, dtype=torch.float64) if tensor else PEAK

    plain = AdaptiveWarmup(make_optimizer(lr()), 100)
    with inside(data.draw(modes, "the lr is made")):
        rate = lr()
    opt = make_optimizer(rate)
    with inside(data.draw(modes, "the scheduler is made")):
        scheduler = AdaptiveWarmup(opt, 100)
    turns = sorted(data.draw(st.lists(st.integers(1, 59), max_size=4)))
    happenings = {t: data.draw(st.sampled_from(["step", "load", "load the optimizer", "extend"])) for t in turns}
    mode = data.draw(modes)
    for t in range(60):
        if t in turns:
            mode = data.draw(modes)
            if happenings[t] == "extend":
                plain.extend(100 + t)
        with inside(mode):
            if happenings.get(t) == "load":
                state = copy.deepcopy(scheduler.state_dict())
                scheduler.load_state_dict(state)
            elif happenings.get(t) == "load the optimizer":
                opt.load_state_dict(copy.deepcopy(opt.state_dict()))
            elif happenings.get(t) == "extend":
                scheduler.extend(100 + t)
            opt.step()
            scheduler.step(torch.tensor(falling()(t), dtype=torch.float64))
        plain.optimizer.step()
        plain.step(torch.tensor(falling()(t), dtype=torch.float64))
        assert [float(x) for x in scheduler.get_last_lr()] == [float(x) for x in plain.get_last_lr()]
        assert float(opt.param_groups[0]["lr"]) == float(plain.get_last_lr()[0])
