"""The paper's settings as data, and every preset against them, at every scale."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from autowarm import Muon
from autowarm.lab.config import ModelConfig, RunConfig, ScheduleConfig, SweepConfig
from autowarm.lab.config.build import SCALES, build, presets, read_yaml
from autowarm.lab.paper.costs import describe
from autowarm.lab.paper.published import Published, points
from autowarm.lab.paper.settings import ASSUMPTION, EVERY, MAIN, SWIN, Setting, deviations
from autowarm.lab.tasks.models import llama
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import read_metrics
from autowarm.lab.training.schedules import make_scheduler, wsd_tenth
from autowarm.orthogonalize import orthogonalize
from autowarm.schedule import Profile, calibrate

DOCS = Path(__file__).parents[3] / "docs"
EXPERIMENTS = [name for name in presets("sweep") if name.split("/")[0] in SCALES and not name.endswith("base")]
SWEEPS = [name for name in EXPERIMENTS if name.startswith("paper/")]
TRAIN = list(presets("train"))
SMOOTHNESS = [f"{scale}/smoothness" for scale in SCALES]
# What an ablation varies is no deviation.
VARIED = {
    "as-the-authors": {"schedule.peak_gap"},  # what their search takes
    "normsgd-tuning": {"optimizer.lr", "optimizer.options.momentum", "schedule.div"},
    "ablation-target-loss": {"schedule.target_loss"},
    "ablation-variance": {"schedule.sigma_f2"},
    "ablation-schedule": {"schedule.warmup", "schedule.decay"},
    "swin": {"optimizer.lr"},
}


def scale_of(name: str) -> str:
    return next((scale for scale in SCALES if scale in re.split("[/-]", name)), "paper")


@cache
def runs_of(name: str) -> list[tuple[RunConfig, Sequence[Setting]]]:
    """Every run of a preset, with the settings that it is held to."""
    values, source = read_yaml(name)
    if name in presets("train"):
        return [(build(RunConfig, values, str(source)), MAIN)]
    held = ASSUMPTION if name in SMOOTHNESS else SWIN if name.endswith("/swin") else MAIN
    return [(point.run, held) for point in build(SweepConfig, values, str(source)).points()]


def found(name: str) -> list[tuple[str, str]]:
    """Where a preset differs from those settings, but for what it varies."""
    varied = VARIED.get(name.rpartition("/")[2], set())
    return [
        one
        for run, settings in runs_of(name)
        for one in deviations(run, settings, scale_of(name))
        if one[0] not in varied
    ]


@pytest.mark.parametrize("name", [*EXPERIMENTS, *TRAIN, *SMOOTHNESS])
def test_a_preset_is_the_papers_but_for_what_stand_ins_change(name: str) -> None:
    assert runs_of(name)
    assert list(dict.fromkeys(found(name))) == []


# What no key of a run sets, and where it is.
FIXED: dict[str, Callable[[], Any]] = {
    "share of WSD's decay that falls": lambda: round(0.01 / wsd_tenth(0.99), 9),
    "ρ": lambda: inspect.signature(calibrate).parameters["rho"].default,
    "candidates": lambda: inspect.signature(calibrate).parameters["candidates"].default,
    "dropout": lambda: max([module.p for module in tiny_llama().modules() if isinstance(module, torch.nn.Dropout)]
                           + [tiny_llama().config.attention_dropout]),
    "Newton–Schulz iterations": lambda: usual_iterations(),
    "the loss at x^t sets the rate of update": lambda: "t + 1",  # a test of its own, below
    "Muon's Nesterov momentum": lambda: inspect.signature(Muon).parameters["nesterov"].default,
    "weight decay of embeddings and norms": lambda: max(
        group["weight_decay"]
        for group in Muon.from_model(tiny_llama(), weight_decay=0.1).param_groups
        if group["algorithm"] == "adamw"
    ),
}  # fmt: skip


def usual_iterations() -> int:
    g = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    usual = orthogonalize(g, method="newton-schulz")
    return next(n for n in range(1, 9) if torch.equal(orthogonalize(g, method="newton-schulz", steps=n), usual))


def tiny_llama() -> Any:
    return llama(ModelConfig(layers=1, width=8, heads=2, ff=8, vocab_size=300, seq_len=8), seed=0)


@pytest.mark.parametrize("setting", EVERY, ids=lambda setting: setting.key)
def test_what_no_key_sets_is_the_papers(setting: Setting) -> None:
    assert FIXED[setting.key]() == setting.value


def test_the_loss_sets_the_next_updates_rate(run: RunConfig, tmp_path: Path) -> None:
    schedule = ScheduleConfig(kind="paper", target_loss=1.0, peak_gap=0.1, div=4.0)
    train(dataclasses.replace(run, steps=4, schedule=schedule), tmp_path)
    steps = read_metrics(tmp_path)
    profile = Profile(run.optimizer.lr, 4.0, steps[0]["loss"] - 1.0, 0.1)
    rates = [run.optimizer.lr / 4, *(profile(step["loss"] - 1.0) for step in steps[:-1])]
    assert [step["lr"] for step in steps] == pytest.approx(rates)


@pytest.mark.parametrize("name", [*SWEEPS, *TRAIN, "paper/smoothness"])
def test_a_preset_of_paper_scale_has_the_papers_data_is_compiled_and_dry_runs(name: str, tmp_path: Path) -> None:
    for run, *_ in runs_of(name):
        assert run.engine.eval_every > 0
        if run.model.sees_images:
            assert run.data.images == "hfds/ILSVRC/imagenet-1k"
        else:
            assert run.data.corpus == "data/fineweb"
            assert run.engine.compile == (name != "paper/smoothness")  # a probe is to see plain arithmetic
    for run in {(run.model, run.optimizer.name, run.batch_size): run for run, *_ in runs_of(name)}.values():
        text = "\n".join(describe(run, tmp_path))
        assert re.search(r"^parameters   [\d,]{10,}", text, re.MULTILINE)


@pytest.mark.parametrize("size", ["124M", "210M"])
def test_the_hand_set_lengths_of_a_sweep_are_those_of_the_authors_figure(size: str) -> None:
    hand, _ = points()
    lengths: dict[Published, list[int | None]] = {}
    for run, _ in runs_of(f"paper/warmup-sweep-{size}"):
        if run.schedule.kind == "linear":
            setting = Published(size, run.batch_size, run.steps, run.optimizer.name)
            lengths.setdefault(setting, []).append(run.schedule.warmup_steps)
    assert lengths == {one: [at for at, _ in some] for one, some in hand.items() if one.size == size}
    assert len(lengths) == 12


@pytest.mark.parametrize("name", ["target-loss", "variance", "schedule"])
def test_an_ablation_has_the_hand_set_lengths_and_the_wsd_of_the_authors(name: str) -> None:
    wanted = [at for at, _ in points()[0][Published("124M", 32, 64_000, "muon")]]
    runs = [run for run, _ in runs_of(f"paper/ablation-{name}")]
    lengths = [run.schedule.warmup_steps for run in runs if run.schedule.kind == "linear"]
    assert lengths == wanted * (len(lengths) // len(wanted)) != []
    assert {run.schedule.decay for run in runs} <= {"cosine", "linear", "wsd-tenth", "wso"}
    scheduler = make_scheduler(Muon([torch.nn.Parameter(torch.eye(2))], lr=1.0),
                               ScheduleConfig("linear", 0, decay="wsd-tenth"), 100)  # fmt: skip
    assert [round(scheduler.lr_lambdas[0](step), 6) for step in (0, 90, 95, 99)] == [1.0, 1.0, 0.5, 0.1]
