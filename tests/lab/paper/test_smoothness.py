"""Curvature is logged by runs of any task, without disturbing them; fits and figures read the runs."""

import csv
import dataclasses
import json
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.commands import main
from autowarm.lab.config import RunConfig
from autowarm.lab.paper.gallery import Sources
from autowarm.lab.paper.smoothness import Measured, studies
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import read_metrics

from ..helpers import LINE, resumed

DOCS = Path(__file__).parents[3] / "docs"
OWN = LINE.replace("Linear(8, 1)", "Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))")
OWN += "    defaults = {'rates': {'muon': [0.01], 'plain': [0.01]}, 'run.steps': 30}\n"


def curvatures(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    names = ("curvature", "curvature_l2", "sharpness")
    return [(row["step"], found) for row in read_metrics(folder)
            if (found := {name: row[name] for name in names if name in row})]  # fmt: skip


def test_a_measured_run_ends_with_the_same_bits_and_resumes_to_the_bit(run: RunConfig, tmp_path: Path) -> None:
    plain = train(run, tmp_path / "plain")
    measured = dataclasses.replace(run, engine=dataclasses.replace(run.engine, curvature_every=3, sharpness_every=6))
    probed = train(measured, tmp_path / "probed")
    resumed(measured, tmp_path / "cut", 5)
    assert probed["val_loss"] == plain["val_loss"]
    weights = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "probed", "cut")}
    assert len(weights) == 1
    found = curvatures(tmp_path / "probed")
    assert [(step, len(numbers)) for step, numbers in found] == [(1, 3), (4, 2), (7, 3), (10, 2)]
    assert all(numbers["curvature"] > 0 for _, numbers in found)
    assert curvatures(tmp_path / "cut") == found
    assert curvatures(tmp_path / "plain") == []
    assert "curvature_above" in probed.keys() - plain.keys()


@pytest.mark.usefixtures("jobs_here")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--run.task", "line.py:Line", "--rates.muon", "[0.02]"], ["muon-lr0.02", "plain-lr0.01"]),
        (["--run.task", "mlp", "--rates", "{lion: [0.001]}", "--run.steps", "30"], ["lion-lr0.001"]),
    ],
)
def test_any_task_has_its_curvature_measured(
    words: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.py").write_text(OWN)
    assert main(["smoothness", *words, "--out", "out"]) == 0
    said = capsys.readouterr().out
    for name in names:
        assert f"**{name}**" in said
        assert "| steps 3–30, trimmed |" in said
        assert (tmp_path / "out" / f"smoothness-{name}.png").stat().st_size > 1000
    assert (tmp_path / "out" / "smoothness.md").read_text() in said
    assert len(list((tmp_path / "out").glob("smoothness-*.svg"))) == len(names)


@pytest.mark.usefixtures("jobs_here")
def test_a_sweeps_curvature_is_that_of_its_cells(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(steps: int, every: int = 1) -> tuple[int, str, str]:
        keys = small | {"schedule.warmup_steps": 2, "steps": steps, "engine.curvature_every": every}
        words = ["smoothness", "--only", "[lion]", "--override", json.dumps(keys), "--out", str(tmp_path)]
        return main(words), *capsys.readouterr()

    status, said, _ = measure(12)
    assert status == 0
    assert "| full run | 12 |" in said
    for steps, every, message in (
        (3, 1, "no fit for lion, full run: 3 of 3 points are left"),
        (3, 0, "no fit for any run: set engine.curvature_every"),
    ):
        status, _, error = measure(steps, every)
        assert status == 1
        assert message in error


def test_the_pages_numbers_say_how_far_the_curvature_falls_and_rises_and_fits_have_the_authors_windows(
    tmp_path: Path,
) -> None:
    sources = Sources(runpy.run_path(str(DOCS / "figures.py"))["laid_out"](tmp_path), "horizon")
    runs: dict[str, Measured] = {name: sources.measured(name) for name in ("lion", "muon", "normsgd")}
    falls, rises, ends = {}, [], []
    for name, run in runs.items():
        points = [p for p in run.points if p.step < 1000]
        assert min(p.loss for p in points) > run.target_loss
        smooth = [statistics.median(p.smoothness for p in points[max(0, i - 2) : i + 3]) for i in range(len(points))]
        lowest = min(range(len(smooth)), key=smooth.__getitem__)
        falls[name] = smooth[0] / smooth[lowest]
        rises.append(max(smooth[lowest:]) / smooth[lowest])
        ends.append(points[lowest].step)
    with (DOCS / "figures" / "paper-numbers.csv").open(encoding="utf-8", newline="") as file:
        stored = dict(csv.reader(file))
    for name, end, rise in zip(runs, ends, rises, strict=True):
        assert stored[f"{name}: K falls until update"] == str(end)
        assert stored[f"{name}: by a factor of"] == f"{falls[name]:.0f}"
        assert stored[f"{name}: K then rises in warm-up by a factor of"] == f"{rise:.0f}"
    sharp = dict(runs["muon"].sharpness)
    along = [
        statistics.median(x for at, x in runs["muon"].along if step <= at < step + 100) / value
        for step, value in runs["muon"].sharpness[1:]
    ]
    assert stored["muon: curvature along the steps, % of λ_max"] == f"{100 * statistics.median(along):.0f}"
    for step in (0, 1000, 3000, 14_000):
        assert stored[f"muon: λ_max at update {step:,}"] == f"{sharp[step]:.0f}"
    text = " ".join((DOCS / "paper.md").read_text(encoding="utf-8").split())
    assert "it rises while the loss falls, also in the windows that the paper chooses for its fits" in text
    for name, (first, last) in {"lion": (150, 5150), "muon": (250, 900), "normsgd": (1000, 6000)}.items():
        fits = studies(runs[name])
        verdict = fits[f"the authors' window, steps {first}–{last}, trimmed"].verdict
        assert "K rises as the gap falls" in verdict
    short = dataclasses.replace(runs["muon"], steps=600, points=[p for p in runs["muon"].points if p.step < 600],
                                warmup_steps=60)  # fmt: skip
    assert not any("window" in label for label in studies(short))
