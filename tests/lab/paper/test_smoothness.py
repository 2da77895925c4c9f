import dataclasses
import json
import statistics
from pathlib import Path

import pytest

from autowarm.lab.config import LabError, SmoothnessConfig
from autowarm.lab.config.build import parse
from autowarm.lab.config.yaml_files import read_yaml
from autowarm.lab.paper import smoothness
from autowarm.lab.paper.gallery import GALLERY, Sources
from autowarm.lab.paper.smoothness import measured, report, studies
from autowarm.lab.training.loop import train
from autowarm.smoothness import Probe

DOCS = Path(__file__).parents[3] / "docs"
RATES = {"lion": 1e-3, "muon": 1e-2}


@pytest.fixture
def config(run):
    return SmoothnessConfig(
        run=dataclasses.replace(run, schedule=dataclasses.replace(run.schedule, warmup_steps=6)), rates=RATES
    )


def test_a_watched_run_ends_with_the_same_bits(run, tmp_path):
    plain = train(run, tmp_path / "plain")
    seen = []

    def watch(model, optimizer):
        seen.append(Probe(model, optimizer, every=5))
        return seen[0]

    probed = train(run, tmp_path / "probed", watch=watch)
    assert probed["val_loss"] == plain["val_loss"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "probed")]
    assert weights[0] == weights[1]
    assert [p.step for p in seen[0].points] == [0, 5, 10]


def test_points_are_stored_and_not_measured_again(config, tmp_path, monkeypatch):
    path = tmp_path / "points.json"
    first = measured(config, "lion", path, sharpness_every=6)
    assert [p.step for p in first.points] == list(range(12))
    assert [step for step, _ in first.sharpness] == [0, 6]
    assert all(p.smoothness > 0 for p in first.points)
    monkeypatch.setattr(smoothness, "train", None)
    assert measured(config, "lion", path, sharpness_every=6) == first
    changed = dataclasses.replace(config, run=dataclasses.replace(config.run, batch_size=8))
    with pytest.raises(LabError, match=r"run.batch_size: 4 → 8"):
        measured(changed, "lion", path, sharpness_every=6)


def test_a_run_that_diverges_is_stored_as_strict_json(config, tmp_path):
    wild = dataclasses.replace(config, rates={"lion": 1e25}, steps={"lion": 40})
    found = measured(wild, "lion", tmp_path / "points.json")
    json.loads((tmp_path / "points.json").read_text(), parse_constant=pytest.fail)
    assert found.val_loss is None


def test_tables_and_figures(config, tmp_path):
    runs = [measured(config, name, tmp_path / f"smoothness-{name}.json") for name in RATES]
    assert next(iter(studies(runs[0]))) == "full run"
    for run in runs:
        assert "| full run | 12 |" in report(run)
    figure = GALLERY["smoothness-lion"].make(Sources(tmp_path, config))
    titles = [title for axes in figure.axes if (title := axes.get_title("left"))]
    assert titles == ["lion, 1st–99th percentile", "lion, warm-up, steps 0–6, trimmed"]


@pytest.mark.parametrize("preset", ["smoothness-tiny", "smoothness-horizon", "smoothness-paper"])
def test_presets_are_whole(preset, monkeypatch):
    config = parse([], SmoothnessConfig, "smoothness", "", preset=preset)
    assert set(read_yaml(preset)[0]["rates"]) == set(config.rates) >= {"lion", "muon", "normsgd"}
    for name in config.rates:
        first, last = config.window_of(name)
        assert 0 < first < last == config.run_of(name).steps
    if preset == "smoothness-paper":  # the paper's Table "assumption_hyperparams"
        assert {name: config.run_of(name).steps for name in config.rates} == {
            "lion": 10_000, "signsgd": 10_000, "muon": 15_000, "normsgd": 10_000,
        }  # fmt: skip
        assert config.run_of("normsgd").optimizer.lr == 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rates": {}}, "rates must not be empty"),
        ({"every": 0}, "every must be at least 1"),
        ({"windows": {"lion": [5, 5]}}, "windows.lion must be two steps"),
        ({"steps": {"lionn": 5}}, "did you mean 'lion'"),
    ],
)
def test_bad_configs(config, changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **changes)


def test_the_page_says_how_far_the_curvature_falls_and_rises():
    config = parse([], SmoothnessConfig, "smoothness", "", preset="smoothness-horizon")
    falls, rises, ends = {}, [], []
    for name in ("lion", "muon", "normsgd"):
        points = [p for p in measured(config, name, DOCS / "data" / f"smoothness-{name}.json").points if p.step < 1000]
        assert min(p.loss for p in points) > config.target_loss
        smooth = [statistics.median(p.smoothness for p in points[max(0, i - 2) : i + 3]) for i in range(len(points))]
        lowest = min(range(len(smooth)), key=smooth.__getitem__)
        falls[name] = smooth[0] / smooth[lowest]
        rises.append(max(smooth[lowest:]) / smooth[lowest])
        ends.append(points[lowest].step)
    text = " ".join((DOCS / "paper.md").read_text(encoding="utf-8").split())
    assert f"In the first {min(ends)} to {max(ends)} updates K falls with the loss" in text
    lion, muon, normsgd = (round(falls[name]) for name in ("lion", "muon", "normsgd"))
    assert f"by a factor of {lion} for Lion, {normsgd} for normSGD and {muon} for Muon" in text
    edge = measured(config, "muon", DOCS / "data" / "edge-of-stability.json", sharpness_every=1000)
    sharp = dict(edge.sharpness)
    along = [
        statistics.median(p.curvature_l2 for p in edge.points if step <= p.step < step + 100) / value
        for step, value in edge.sharpness[1:]
    ]
    assert f"about {100 * statistics.median(along):.0f}% of the Hessian" in text
    assert f"from {sharp[0]:.0f} to {sharp[1000]:.0f}, falls to {sharp[3000]:.0f} near the peak rate" in text
    assert f"while the rate decays, to {sharp[14_000]:.0f}." in text
    assert sharp[3000] == min(value for step, value in edge.sharpness if step >= 1000)
    assert f"K rises by a factor of {round(min(rises), -1):.0f} to {round(max(rises), -1):.0f} while" in text
