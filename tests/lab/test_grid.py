import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import PRESETS, LabError, RunConfig, check_keys, merged, read_yaml
from autowarm.lab.config.grid import SweepConfig, combinations, run_of

SWEEPS = sorted(path.relative_to(PRESETS).with_suffix("").as_posix() for path in PRESETS.glob("*/*.yaml")
                if path.stem != "base")  # fmt: skip


def sweep(name: str) -> SweepConfig:
    values, source = read_yaml(name)
    check_keys(values, SweepConfig, str(source))
    return SweepConfig(**values)


def test_a_block_stands_for_all_its_combinations() -> None:
    grid: list[dict[str, Any]] = [
        {"schedule.kind": "adaptive"},
        {"schedule": {"kind": "paper"}, "schedule.target_loss": [1, 2], "seed": 0},
        {"schedule.kind": "linear", "schedule.warmup_steps": [5, 10]},
    ]
    found = list(combinations(grid))
    assert [settings["schedule.kind"] for settings, _ in found] == ["adaptive", "paper", "paper", "linear", "linear"]
    assert [varied for _, varied in found] == [{}, {"schedule.target_loss": 1}, {"schedule.target_loss": 2}, {}, {}]


def test_cells_override_base_and_the_grid_overrides_cells() -> None:
    config = SweepConfig(
        base={"steps": 10, "model": {"width": 32}, "optimizer.name": "lion"},
        cells={"a": {"set": {"model.layers": 1, "steps": 20}}, "b": None, "c": {"grid": [{"steps": [40]}]}},
        grid=[{"schedule.kind": "linear", "schedule.warmup_steps": [0.5, 3]}],
        seeds=[0, 1],
    )
    points = config.points()
    assert [point.name for point in points] == [
        "a linear10 seed0", "a linear3 seed0", "c adaptive steps=40 seed0",
        "a linear10 seed1", "a linear3 seed1", "c adaptive steps=40 seed1",
    ]  # fmt: skip
    first = points[0].run
    assert (first.model.width, first.model.layers, first.steps, first.optimizer.name) == (32, 1, 20, "lion")
    over = dataclasses.replace(config, override={"steps": 6}, only=["a"])
    assert {point.run.steps for point in over.points()} == {6}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model.widht": 1}, "cells.x: unknown key 'model.widht'; did you mean 'model.width'?"),
        ({"optimizer.name": "moun"}, "unknown 'moun'; did you mean 'muon'?"),
        ({"steps": "many"}, "cells.x: steps: must be int, got 'many'"),
        ({"optimizer.lr": "fast"}, "cells.x: optimizer.lr: must be float, got 'fast'"),
        ({"steps": 0}, "cells.x: steps must be at least 1, got 0"),
    ],
)
def test_what_does_not_suit_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError) as raised:
        run_of(values, "cells.x")
    assert message in str(raised.value)


def test_yaml_text_and_whole_numbers_become_rates() -> None:
    run = run_of({"optimizer.lr": "1e-3", "clip": 1, "optimizer.options": {"betas": [0.9, 0.9]}}, "x")
    assert run == dataclasses.replace(
        RunConfig(), clip=1.0, optimizer=dataclasses.replace(run.optimizer, lr=1e-3, options={"betas": [0.9, 0.9]})
    )


def test_a_file_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "under.yaml").write_text("a: {x: 1, y: 2}\nb: 3\n")
    (tmp_path / "over.yaml").write_text(f"extends: {tmp_path}/under.yaml\nlists: [&l [1]]\na: {{y: 4}}\n")
    assert read_yaml(str(tmp_path / "over.yaml"))[0] == {"a": {"x": 1, "y": 4}, "b": 3}
    assert merged({"a": {"x": 1}}, {"a": 2}) == {"a": 2}


def test_every_sweep_is_there_at_both_scales() -> None:
    scales = {scale: {name.split("/")[1] for name in SWEEPS if name.startswith(scale)} for scale in ("tiny", "paper")}
    assert scales["tiny"] == scales["paper"]


@pytest.mark.parametrize("name", SWEEPS)
def test_presets_name_every_run_once(name: str) -> None:
    points = sweep(name).points()
    assert len({point.name for point in points}) == len(points) > 1


@pytest.mark.parametrize(("size", "layers"), [("124M", 12), ("210M", 24)])
def test_the_cells_of_the_main_table(size: str, layers: int) -> None:
    """The paper's Table "main_hyperparams", cell by cell."""
    points = sweep(f"paper/warmup-sweep-{size}").points()
    paper = {point.cell: point.run for point in points if point.run.schedule.kind == "paper"}
    assert len(paper) == 12
    rates = {"muon-256": 2e-3 if size == "124M" else 3e-3, "muon-32": 1e-3, "lion": 1e-3, "normsgd": 1e-2}
    targets = {"muon": (3.3, 3.2), "lion": (3.4, 3.3), "normsgd": (4.3, 4.1)}
    for name, run in paper.items():
        optimizer, batch, tokens = name.split("-")
        assert run.model.layers == layers
        assert run.batch_size == int(batch)
        assert run.steps * run.batch_size * 512 == (1_048_576_000 if tokens == "1B" else 2_097_152_000)
        assert run.optimizer.lr == rates.get(f"{optimizer}-{batch}", rates.get(optimizer))
        assert run.schedule.target_loss == targets[optimizer][tokens != "1B"]
        assert run.schedule.div == ({"32": 2, "256": 5}[batch] if optimizer == "normsgd" else None)
        assert (run.clip, run.optimizer.weight_decay, run.model.seq_len, run.schedule.sigma_f2) == (0.5, 0.1, 512, 1e3)
    lengths = {
        name: [p.run.schedule.warmup_steps for p in points if p.cell == name and p.run.schedule.kind == "linear"]
        for name in paper
    }
    ends = {"muon-32": (50, 6000), "muon-256": (100, 4000), "lion-32": (1000, 16000), "normsgd-32": (50, 5000),
            "normsgd-256": (50, 5000)}  # fmt: skip
    for start, (low, high) in ends.items():
        for name in (name for name in paper if name.startswith(start)):
            assert (lengths[name][0], lengths[name][-1]) == (low, high)
