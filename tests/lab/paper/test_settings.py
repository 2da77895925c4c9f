"""The paper's settings as data, and every preset of paper scale against them."""

import dataclasses
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from autowarm.lab.calibration import CalibrateConfig
from autowarm.lab.config import LLAMA_124M, RunConfig, SmoothnessConfig, SweepConfig
from autowarm.lab.config.build import build
from autowarm.lab.config.yaml_files import presets, read_yaml
from autowarm.lab.paper.costs import forecast, memory
from autowarm.lab.paper.dry_run import describe
from autowarm.lab.paper.settings import ASSUMPTION, MAIN, SWIN, Setting, deviations
from autowarm.lab.tasks.models import parameters

DOCS = Path(__file__).parents[3] / "docs"
SWEEPS = [name for name in presets("sweep") if name.startswith("paper/") and not name.endswith("base")]
TRAIN = [name for name in presets("train") if name in ("llama-124m", "llama-210m")]
# Beyond the paper: the benchmark's models and optimizers.
BENCHMARK = [name for name in presets("sweep") if name.startswith("benchmark/")]
LARGER = [name for name in presets("train") if name not in TRAIN]
# What an ablation varies is no deviation.
VARIED = {
    "paper/ablation-target-loss": {"schedule.target_loss"},
    "paper/ablation-variance": {"schedule.sigma_f2"},
    "paper/ablation-schedule": {"schedule.decay"},
    "paper/swin": {"optimizer.lr"},
}


@cache
def runs_of(name: str) -> list[tuple[RunConfig, Sequence[Setting]]]:
    """Every run of a preset, with the settings that it is held to."""
    values, source = read_yaml(name)
    if name in presets("train"):
        return [(build(RunConfig, values, str(source)), MAIN)]
    if name == "smoothness-paper":
        config = build(SmoothnessConfig, values, str(source))
        return [(config.run_of(optimizer), ASSUMPTION) for optimizer in config.rates]
    held = SWIN if name == "paper/swin" else MAIN
    return [(point.run, held) for point in build(SweepConfig, values, str(source)).points()]


@pytest.mark.parametrize("name", [*SWEEPS, *TRAIN, "smoothness-paper"])
def test_a_preset_of_paper_scale_is_the_papers(name: str) -> None:
    runs = runs_of(name)
    assert runs
    for run, settings in runs:
        found = [str(one) for one in deviations(run, settings) if one.setting.key not in VARIED.get(name, set())]
        assert found == [], run.label


@pytest.mark.parametrize("name", [*SWEEPS, *BENCHMARK, *TRAIN, *LARGER, "smoothness-paper"])
def test_a_preset_of_paper_scale_names_the_papers_data(name: str) -> None:
    for run, _ in runs_of(name):
        if run.model.sees_images:
            assert run.data.images == "hfds/ILSVRC/imagenet-1k"
        else:
            assert run.data.corpus == "data/fineweb"


@pytest.mark.parametrize("name", [*SWEEPS, *BENCHMARK, *TRAIN, *LARGER, "smoothness-paper"])
def test_a_preset_of_paper_scale_fits_80_gb_and_is_compiled(name: str) -> None:
    for run, _ in runs_of(name):
        assert run.engine.eval_every > 0
        if not run.model.sees_images:
            assert 1.2 * sum(memory(run).values()) < 80e9  # measured over arithmetic, see `memory`
            assert forecast(run, 989e12).total > 0
            assert run.engine.compile == (name != "smoothness-paper")  # a probe is to see plain arithmetic


def first_of_each_kind(name: str) -> list[RunConfig]:
    """A preset's runs, one for each model, optimizer and batch size."""
    return list({(run.model, run.optimizer.name, run.batch_size): run for run, _ in runs_of(name)}.values())


@pytest.mark.parametrize("name", [*SWEEPS, *BENCHMARK, *LARGER, "smoothness-paper"])
def test_a_preset_of_paper_scale_dry_runs(name: str, tmp_path: Path) -> None:
    for run in first_of_each_kind(name):
        text = "\n".join(describe(run, tmp_path))
        assert re.search(r"^parameters   [\d,]{10,}", text, re.MULTILINE)
        for word in ("memory", "step", "evaluations", "checkpoints", "whole run"):
            assert f"\n{word}" in text, (run.label, text)


def test_the_benchmarks_models_have_the_sizes_of_their_names() -> None:
    for name, count in {"124M": 124e6, "210M": 210e6, "moe-520M": 520e6, "720M": 720e6}.items():
        [model] = {run.model for run, _ in runs_of(f"benchmark/{name}")}
        assert parameters(model) == pytest.approx(count, rel=0.01)
    for name, sweep in {"llama-720m": "benchmark/720M", "moe-520m": "benchmark/moe-520M"}.items():
        [(run, _)] = runs_of(name)
        assert dataclasses.asdict(run.optimizer) in [dataclasses.asdict(other.optimizer) for other, _ in runs_of(sweep)]
        [other] = {(one.model, one.batch_size, one.steps) for one, _ in runs_of(sweep)}
        assert (run.model, run.batch_size, run.steps) == other


@pytest.mark.long
@pytest.mark.parametrize("name", ["paper/warmup-sweep-124M", "paper/warmup-sweep-210M"])
def test_a_sweep_as_the_authors_ran_it_is_still_the_papers(name: str) -> None:
    values, source = read_yaml(name)
    config = build(SweepConfig, values, str(source))
    points = dataclasses.replace(config, override={"as_the_authors": True}).points()
    assert len(points) == len(config.points())
    for point in points:
        assert point.run.model.fused_qkv
        assert [str(one) for one in deviations(point.run, MAIN)] == []


def test_every_setting_belongs_to_a_run_of_a_preset() -> None:
    """A row that no run meets would hold nothing: with its value changed, some run must deviate."""
    held = [pair for name in [*SWEEPS, "smoothness-paper"] for pair in runs_of(name)]
    for settings in (MAIN, ASSUMPTION, SWIN):
        runs = [run for run, own in held if own is settings]
        for setting in settings:
            changed = [dataclasses.replace(setting, value="another")]
            assert any(deviations(run, changed) for run in runs), setting


def test_the_calibration_preset_is_the_main_tables() -> None:
    values, source = read_yaml("calibrate-124m")
    config = build(CalibrateConfig, values, str(source))
    run = RunConfig(steps=64_000, batch_size=32, model=dataclasses.replace(LLAMA_124M, init_scale=0.554))
    chosen = {"target_loss": config.target_loss, "div": config.div, "sigma_f2": config.sigma_f2}
    run = dataclasses.replace(
        run,
        schedule=dataclasses.replace(run.schedule, kind="paper", **chosen),
        optimizer=dataclasses.replace(run.optimizer, name=config.optimizer, lr=config.lr),
    )
    keys = {one.setting.key for one in deviations(run, MAIN)}
    assert not keys & {"optimizer.lr", *(f"schedule.{name}" for name in chosen)}


def test_the_page_lists_every_setting() -> None:
    shown = "../src/autowarm/lab/paper/settings.csv"
    assert f":file: {shown}\n" in (DOCS / "paper.md").read_text(encoding="utf-8")
    rows = (DOCS / shown).read_text(encoding="utf-8").splitlines()[1:]
    assert len(rows) == len(MAIN) + len(ASSUMPTION) + len(SWIN)
