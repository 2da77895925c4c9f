"""Curvature is logged by runs of any task, without disturbing them; fits and figures read the runs."""

import dataclasses
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.commands import main
from autowarm.lab.config import RunConfig
from autowarm.lab.paper.gallery import Sources
from autowarm.lab.paper.smoothness import studies
from autowarm.lab.training.loop import train
from autowarm.lab.training.metrics import read_metrics

from ..helpers import LINE, resumed

DOCS = Path(__file__).parents[3] / "docs"
OWN = LINE.replace("Linear(8, 1)", "Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))")
OWN += "    defaults = {'rates': {'muon': [0.01], 'plain': [0.01]}, 'run.steps': 30}\n"


def curvatures(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    names = {"curvature", "curvature_l2", "sharpness"}
    return [(row["step"], {name: row[name] for name in names & row.keys()})
            for row in read_metrics(folder) if names & row.keys()]  # fmt: skip


def test_a_measured_run_ends_with_the_same_bits_and_resumes_to_the_bit(run: RunConfig, tmp_path: Path) -> None:
    plain = train(run, tmp_path / "plain")
    measured = dataclasses.replace(run, engine=dataclasses.replace(run.engine, curvature_every=3, sharpness_every=6))
    probed = train(measured, tmp_path / "probed")
    resumed(measured, tmp_path / "cut", 5)
    assert probed["val_loss"] == plain["val_loss"]
    weights = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "probed", "cut")}
    assert len(weights) == 1
    logged = curvatures(tmp_path / "probed")
    assert [(step, len(numbers)) for step, numbers in logged] == [(1, 3), (4, 2), (7, 3), (10, 2)]
    assert all(numbers["curvature"] > 0 for _, numbers in logged)
    assert curvatures(tmp_path / "cut") == logged
    assert curvatures(tmp_path / "plain") == []


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
    shown = capsys.readouterr().out
    for name in names:
        assert f"**{name}**" in shown
        assert "| steps 3–30, trimmed |" in shown
        assert (tmp_path / "out" / f"smoothness-{name}.png").stat().st_size > 1000
    assert (tmp_path / "out" / "smoothness.md").read_text() in shown
    assert len(list((tmp_path / "out").glob("smoothness-*.svg"))) == len(names)


@pytest.mark.usefixtures("jobs_here")
def test_a_sweeps_curvature_is_that_of_its_cells(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(steps: int, every: int = 1) -> tuple[int, str, str]:
        keys = small | {"schedule.warmup_steps": 2, "steps": steps, "engine.curvature_every": every}
        words = ["smoothness", "--only", "[lion]", "--override", json.dumps(keys), "--out", str(tmp_path)]
        return main(words), *capsys.readouterr()

    status, shown, _ = measure(12)
    assert status == 0
    assert "| full run | 12 |" in shown
    for steps, every, message in (
        (3, 1, "no fit for lion, full run: 3 of 3 points are left"),
        (3, 0, "no fit for any run: set engine.curvature_every"),
    ):
        status, _, error = measure(steps, every)
        assert status == 1
        assert message in error


def test_fits_have_the_authors_windows(tmp_path: Path) -> None:
    sources = Sources(runpy.run_path(str(DOCS / "figures.py"))["laid_out"](tmp_path), "horizon")
    for name, (first, last) in {"lion": (150, 5150), "muon": (250, 900), "normsgd": (1000, 6000)}.items():
        fits = studies(sources.measured(name))
        assert "K rises as the gap falls" in fits[f"the authors' window, steps {first}–{last}, trimmed"].verdict
    muon = sources.measured("muon")
    short = dataclasses.replace(muon, steps=600, points=[p for p in muon.points if p.step < 600], warmup_steps=60)
    assert not any("window" in label for label in studies(short))
