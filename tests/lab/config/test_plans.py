import dataclasses
import inspect
from typing import Any

import pytest

from autowarm import AdaptiveWarmup
from autowarm.lab.config import (
    CompareConfig,
    LabError,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    SweepConfig,
)
from autowarm.lab.config.build import SCALES, leaves, presets
from autowarm.lab.config.plans import read_by

SWEEPS = [name for name in presets("sweep") if not name.endswith("base")]


def test_cells_override_base_and_the_grid_overrides_cells() -> None:
    config = SweepConfig(
        base={"steps": 10, "model": {"width": 32}, "optimizer.name": "lion"},
        cells={"a": {"set": {"model.layers": 1, "steps": 20}}, "b": None, "c": {"grid": [{"steps": [40]}]}},
        grid=[{"schedule.kind": "linear", "schedule.warmup_steps": [0.5, 3]}],
        seeds=[0, 1],
    )
    points = config.points()
    assert [point.name for point in points] == [
        "a, warm-up 10, seed 0", "a, warm-up 3, seed 0", "c, default, steps 40, seed 0",
        "a, warm-up 10, seed 1", "a, warm-up 3, seed 1", "c, default, steps 40, seed 1",
    ]  # fmt: skip
    first = points[0].run
    assert (first.model.width, first.model.layers, first.steps, first.optimizer.name) == (32, 1, 20, "lion")
    over = dataclasses.replace(config, override={"steps": 6}, only=["a"])
    assert {point.run.steps for point in over.points()} == {6}
    over = dataclasses.replace(config, override={"steps": 6}, only=["c"], seeds=[0])
    assert [(point.name, dict(point.varied)) for point in over.points()] == [("c, default, seed 0", {})]


def test_every_sweep_is_there_at_every_scale() -> None:
    scales = {scale: {name.split("/")[1] for name in SWEEPS if name.startswith(scale)} for scale in SCALES}
    assert scales["tiny"] == scales["horizon"] == scales["paper"]


def test_the_grid_is_every_optimizer_rate_schedule_and_seed_once() -> None:
    config = CompareConfig(
        run=RunConfig(steps=100),
        rates={"muon": [1e-3, 2e-3], "lion": [1e-4]},
        schedules=["adaptive", "wsd", "linear"],
        warmups=[1, 0.0001, 0.2, 50],
        seeds=[0, 1, 2],
    )
    runs = [point.run for point in config.points()]
    lengths = [run.schedule.warmup_steps for run in runs[:5]]
    assert lengths == [None, None, 1, 20, 50]  # a share above 0 is at least one update: made once
    assert len(runs) == 3 * 5 * 3
    assert {run.seed for run in runs[:15]} == {0}


def test_hand_set_ramps_start_where_the_default_does_unless_told_otherwise() -> None:
    div = inspect.signature(AdaptiveWarmup).parameters["div"].default
    for given, expected in ((None, {"linear": div, "adaptive": None}), (100.0, {"linear": 100.0, "adaptive": 100.0})):
        config = CompareConfig(run=RunConfig(schedule=ScheduleConfig(div=given)), schedules=["adaptive", "linear"])
        assert {run.schedule.kind: run.schedule.div for run in (point.run for point in config.points())} == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1000, [0, 50, 100, 200, 400, 800]), (20, [0, 1, 2, 4, 8, 16]), (3, [0, 1, 2]), (2, [0, 1]), (1, [0])],
)
def test_without_lengths_the_grid_doubles_up_to_80_percent_of_any_run(steps: int, expected: list[int]) -> None:
    config = CompareConfig(run=RunConfig(steps=steps), rates={"muon": [0.01]}, schedules=["linear"], seeds=[0])
    assert [point.run.schedule.warmup_steps for point in config.points()] == expected


def test_options_reach_their_optimizer_alone() -> None:
    config = CompareConfig(rates={"lion": [1e-3], "muon": [1e-2]}, options={"lion": {"betas": [0.9, 0.95]}})
    actual = {run.optimizer.name: run.optimizer.options for run in (point.run for point in config.points())}
    assert actual == {"lion": {"betas": [0.9, 0.95]}, "muon": {}}
    with pytest.raises(LabError, match="options: unknown optimizer 'lyon'; did you mean 'lion'"):
        CompareConfig(options={"lyon": {}}).points()


PAPER = {"schedule.kind": "paper", "schedule.target_loss": 0.1}
LINEAR = {"schedule.kind": "linear"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"grid": [PAPER | {"schedule.sigma_f2": [1, 2]}], "override": {"schedule.sigma_f2": 5}},
         "cells.a: schedule.sigma_f2 1 and 2 give the same paper run"),
        ({"grid": [{"schedule.kind": ["adaptive"], "schedule.sigma_f2": [1, 2]}]},
         "cells.a: schedule.sigma_f2 1 and 2 give the same adaptive run"),
        ({"grid": [PAPER | {"schedule.sigma_f2": [1000, 2000]}], "override": {"schedule.peak_gap": 0.5}},
         "schedule.peak_gap gives Δ': set one of them"),
        ({"grid": [{"optimizer.lr": 0.001}, {"optimizer.lr": 0.01}]}, "differ in optimizer.lr: 0.001 → 0.01"),
        ({"grid": [LINEAR | {"schedule.warmup_steps": [5, 10]},
                   LINEAR | {"schedule.warmup_steps": [5, 20], "schedule.div": 10.0}]},
         "two runs like 'a, warm-up 5, seed 0' differ in schedule.div: None → 10.0: give both"),
        ({"grid": [{"seed": [1, 2]}]}, "cells.a: seed is set by the sweep's seeds"),
        ({"grid": [{"optimizer.lr": []}]}, "the plan has no runs"),
        ({"rates": {"muon": [0.0012345671, 0.0012345679]}}, "differ in optimizer.lr"),
        ({"rates": {"muon": []}}, "the plan has no runs"),
    ],
)  # fmt: skip
def test_a_plan_leaves_out_no_run_in_silence(values: dict[str, Any], message: str) -> None:
    with pytest.raises((LabError, ValueError)) as raised:
        (CompareConfig(**values) if "rates" in values else SweepConfig(**{"cells": {"a": {}}} | values)).points()
    assert message in str(raised.value)


def test_a_report_shows_the_settings_that_a_run_read() -> None:
    def shown(run: RunConfig, **more: Any) -> set[str]:
        return {*leaves(read_by(dataclasses.asdict(CompareConfig(run=run, **more)))["run"], RunConfig, "")}

    text = shown(RunConfig())
    assert {"model.ff", "data.corpus", "batch_size", "optimizer.weight_decay", "clip"} < text
    assert not text & {"data.images", "schedule.sigma_f2", "seed", "optimizer.lr", "schedule.warmup_steps"}
    assert "schedule.sigma_f2" in shown(RunConfig(), schedules=["paper"])
    images = shown(RunConfig(model=ModelConfig(name="swin")))
    assert images - text == {"data.images", "data.workers"}
    assert not images & {"model.vocab_size", "data.corpus"}
    own = shown(RunConfig(task="Mine@0123"), rates={"mine": [0.1]})
    assert own == {name for name in text if name.partition(".")[0] in ("task", "steps", "order", "clip", "schedule",
                   "checkpoint_every", "engine")} - {"engine.accumulate"}  # fmt: skip
    assert read_by(dataclasses.asdict(CompareConfig(run=RunConfig(task="Mine@0123"))))["run"]["task"] == "Mine"
    assert read_by({"base": {"steps": 3}}) == {"base": {"steps": 3}}


def test_a_run_has_a_label_that_tells_ramps_apart_and_is_a_folders_name() -> None:
    shapes = (ScheduleConfig("linear", 0), ScheduleConfig("linear", 5), ScheduleConfig("linear", 5, div=100))
    labels = [RunConfig(schedule=shape, steps=10).label for shape in shapes]
    assert [label.split("-", 2)[2] for label in labels] == ["linear0-seed0", "linear5-seed0", "linear5-div100-seed0"]
    run = RunConfig(task="mine@1", optimizer=OptimizerConfig(name="ours/v2 [a]"))
    assert run.label.startswith("ours_v2__a_-lr")
