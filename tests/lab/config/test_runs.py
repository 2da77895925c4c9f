from typing import Any

import pytest

from autowarm.lab.config import LabError, OptimizerConfig, RunConfig, ScheduleConfig
from autowarm.lab.config.build import build


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": 3}, "cells.x: 'model' is a group of options and must hold keys and values, got 3"),
        ({"model.widht": 1}, "cells.x: unknown key 'model.widht'; did you mean 'model.width'?"),
        ({"steps": "many"}, "cells.x: steps: expected a whole number, got 'many'"),
        ({"optimizer.lr": "fast"}, "cells.x: optimizer.lr: expected a number, got 'fast'"),
        ({"steps": 0}, "cells.x: steps must be at least 1, got 0"),
        ({"schedule.kind": "paper"}, "needs schedule.target_loss"),
        ({"schedule.kind": "linear"}, "from 0 to steps − 1 = 9, got None"),
        ({"schedule.kind": "linear", "schedule.warmup_steps": 10}, "from 0 to steps − 1 = 9, got 10"),
        ({"schedule.kind": "linear", "schedule.warmup_steps": -1}, "from 0 to steps − 1 = 9, got -1"),
        ({"schedule.kind": "adaptive", "schedule.warmup_steps": 10}, "belongs to kind linear"),
        ({"schedule.kind": "wsd", "schedule.div": 1.0}, "div must be above 1"),
    ],
)
def test_what_does_not_suit_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError) as raised:
        build(RunConfig, {"steps": 10, **values}, "cells.x")
    assert message in str(raised.value)


def test_a_run_has_a_label_that_tells_ramps_apart() -> None:
    shapes = (ScheduleConfig("linear", 0), ScheduleConfig("linear", 5), ScheduleConfig("linear", 5, div=100))
    labels = [RunConfig(schedule=shape, steps=10).label for shape in shapes]
    assert [label.split("-", 2)[2] for label in labels] == ["linear0-seed0", "linear5-seed0", "linear5-div100-seed0"]


def test_a_runs_folder_is_one_folder_whatever_its_optimizer_is_called() -> None:
    run = RunConfig(task="mine@1", optimizer=OptimizerConfig(name="ours/v2 [a]"))
    assert run.label.startswith("ours_v2__a_-lr")
