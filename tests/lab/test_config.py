import dataclasses
import json
from pathlib import Path

import pytest

from autowarm.lab.config.arguments import UsageError, parse
from autowarm.lab.calibration.calibrate import CalibrateConfig
from autowarm.lab.cli import main
from autowarm.lab.config import (
    PRESETS,
    CompareConfig,
    RunConfig,
    ScheduleConfig,
    SmoothnessConfig,
    differences,
    identity,
    run_id,
)


def compare_config(*words: str, preset: str | None = "demo") -> CompareConfig:
    return parse(list(words), CompareConfig, "compare", "about", preset=preset)


def test_overrides_win_over_the_preset_and_the_preset_over_the_defaults() -> None:
    smoke = compare_config("--config", "smoke", "--run.model.width", "32", "--rates.muon", "[0.5, 1]")
    assert smoke.run.model.width == 32
    assert smoke.run.model.vocab_size == 300
    assert smoke.rates["muon"] == [0.5, 1.0]
    assert smoke.run.clip == RunConfig().clip


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_every_preset_is_valid(preset: str) -> None:
    if preset.startswith("smoothness"):
        config = parse(["--config", preset], SmoothnessConfig, "smoothness", "")
        assert all(config.run_of(name).steps for name in config.rates)
    elif preset.startswith("calibrate"):
        assert parse(["--config", preset], CalibrateConfig, "calibrate", "").lr > 0.0
    elif preset.startswith("llama"):
        assert parse(["--config", preset], RunConfig, "train", "").model.vocab_size == 50304
    else:
        assert compare_config("--config", preset).runs()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run.modle.width", "3"], "did you mean 'run.model.width'"),
        (["--run.model.widht=3"], "did you mean 'run.model.width'"),
        (["--run.steps", "many"], 'key "run.steps": Expected a int. Got value: many'),
        (["--config", "smok"], "did you mean 'smoke'"),
        (["--config"], "--config needs a value"),
        (["--rates", "{lyon: [1e-3]}"], "did you mean 'lion'"),
        (["--run.model.heads", "5"], "width must be a multiple of 2·heads"),
        (["--run.optimizer.lr", "-1"], "lr must be positive"),
        (["stray"], "unrecognized arguments: stray"),
    ],
)
def test_wrong_words_get_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: {setps: 3}", "unknown key 'run.setps'; did you mean 'run.steps'?"),
        ("run: {steps: [", "not valid YAML"),
        ("- just\n- a list", "expected keys and values, got list"),
        ("run: 3", "'run' must hold keys and values, got 3"),
        ("run: {steps: few}", 'key "run.steps": Expected a int. Got value: few'),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        compare_config("--config", str(path))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_the_grid_is_every_optimizer_rate_schedule_and_seed_once() -> None:
    config = CompareConfig(
        run=RunConfig(steps=100),
        rates={"muon": [1e-3, 2e-3], "lion": [1e-4]},
        warmups=[1, 0.01, 0.2, 50],
        seeds=[0, 1, 2],
    )
    runs = config.runs()
    lengths = [run.schedule.warmup_steps for run in runs[:5]]
    assert lengths == [None, None, 1, 20, 50]  # 1 % of 100 steps is 1 step: made once
    assert len(runs) == 3 * 5 * 3
    assert {run.seed for run in runs[:15]} == {0}


def test_a_schedule_is_held_to_what_its_kind_needs() -> None:
    with pytest.raises(ValueError, match=r"needs schedule\.target_loss"):
        RunConfig(schedule=ScheduleConfig(kind="paper"))
    with pytest.raises(ValueError, match="from 1 to steps − 1 = 9, got 10"):
        RunConfig(steps=10, schedule=ScheduleConfig(kind="linear", warmup_steps=10))
    with pytest.raises(ValueError, match="belongs to kind linear"):
        RunConfig(schedule=ScheduleConfig(kind="adaptive", warmup_steps=10))


def test_an_id_follows_from_all_that_decides_the_numbers() -> None:
    run = RunConfig()
    who = identity(run, "corpus")
    assert run_id(who) == run_id(json.loads(json.dumps(who)))
    assert run_id(who) != run_id(identity(dataclasses.replace(run, seed=1), "corpus"))
    assert run_id(who) != run_id(identity(run, "another"))
    changed = identity(dataclasses.replace(run, steps=7), "corpus")
    assert differences(who, changed) == [f"config.steps: {run.steps} → 7"]


def test_options_reach_their_optimizer_alone() -> None:
    config = CompareConfig(rates={"lion": [1e-3], "muon": [1e-2]}, options={"lion": {"betas": [0.9, 0.95]}})
    found = {run.optimizer.name: run.optimizer.options for run in config.runs()}
    assert found == {"lion": {"betas": [0.9, 0.95]}, "muon": {}}
    with pytest.raises(ValueError, match="options: unknown optimizer 'lyon'; did you mean 'lion'"):
        CompareConfig(options={"lyon": {}})  # type: ignore[dict-item]
