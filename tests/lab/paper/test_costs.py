import dataclasses

import pytest

from autowarm.lab.config import LLAMA_124M
from autowarm.lab.config.build import build, read_yaml
from autowarm.lab.config.runs import RunConfig
from autowarm.lab.paper.costs import hours, operations
from autowarm.lab.tasks.models import flops_per_token


def test_costs_count_what_is_known() -> None:
    values, _ = read_yaml("paper/warmup-sweep-124M")
    run = build(RunConfig, values["base"], "x")
    # Six operations a parameter and token, and 6 % of attention; Muon's share is small at this batch.
    assert operations(run) == pytest.approx(flops_per_token(LLAMA_124M) * 32 * 512, rel=0.25)
    assert hours(dataclasses.replace(run, steps=2 * run.steps), "paper") == pytest.approx(2 * hours(run, "paper"))
