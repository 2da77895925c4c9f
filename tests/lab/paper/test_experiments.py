"""Every figure and table of the paper from results that are made up, and one from real runs."""

import csv
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from autowarm.lab.analysis.results import write_results
from autowarm.lab.commands import main
from autowarm.lab.config import Point
from autowarm.lab.execution.engine import Planned, write_manifest
from autowarm.lab.paper.experiments import GALLERY, Sources, listing, sweep_config
from autowarm.lab.paper.published import Published, by_target_loss, points

from ..helpers import row

SWEPT = [name for name, entry in GALLERY.items() if entry.sweeps and entry.sweeps != ("smoothness",)]


def row_of(point: Point, loss: float) -> dict[str, Any]:
    run, schedule = point.run, point.run.schedule
    cell = {"name": point.cell, "task": "words", **run.cell, **point.varied}
    more = {"id": f"{abs(hash(point.name)):x}", "cell": cell, "optimizer": run.optimizer.name, "switched_at": 8}
    metric = {"accuracy": loss / 10}
    return row(schedule.kind, schedule.warmup_steps or 7, run.seed, loss, metric=metric, ended_by="loss", **more)


def lay(folder: Path, names: Iterable[str], scale: str = "tiny") -> Sources:
    """Results of these sweeps: the loss falls with each run, but one of Lion's, which diverged."""
    for name in names:
        config = sweep_config(name, scale, folder, {}, None)
        planned = config.points()
        rows = [row_of(point, 5 - index / 1000) for index, point in enumerate(planned)]
        broken = [one for one in rows if one["optimizer"] == "lion" and one["schedule"] == "linear"][:1]
        for one in broken:
            one |= {"diverged": True, "val_loss": None}
        write_results(folder / name, dataclasses.asdict(config), {"name": "w", "sha256": "0", "tokens": 1}, rows)
        write_manifest(folder / name, "", [Planned(point, "id", folder / name) for point in planned])
    return Sources(folder, scale)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return lay(tmp_path_factory.mktemp("sweeps"), dict.fromkeys(x for one in GALLERY.values() for x in one.sweeps))


def test_at_the_papers_scale_its_points_stand_beside_ones_own(tmp_path: Path) -> None:
    hand, adaptive = points()
    found = lay(tmp_path, ["warmup-sweep-124M", "ablation-target-loss"], "paper")
    figure = GALLERY["warmup-sweep-124M"].make(found)
    assert isinstance(figure, Figure)
    muon = Published("124M", 32, 64_000, "muon")
    (panel,) = (
        axes for axes in figure.axes if "Muon, rate 0.001, batch 32\n64,000 updates, 1,049M tokens" in seen(axes)
    )
    lines = {line.get_label(): line for line in panel.lines}
    shown = lines["the authors' hand-set"].get_xydata().tolist()
    assert shown == [[at, loss] for at, loss in hand[muon]]
    assert lines["the authors' Algorithm 1"].get_ydata() == [adaptive[muon]] * 2
    assert "the authors' hand-set" in seen(panel.get_legend())
    ablation = GALLERY["ablation-target-loss"].make(found)
    assert isinstance(ablation, Figure)
    lines = {line.get_label(): line for line in ablation.axes[0].lines}
    assert lines["the authors' Algorithm 1"].get_ydata().tolist() == [*by_target_loss().values()]
    assert lines["the authors' best hand-set"].get_ydata() == [3.47124] * 2
    assert "the authors'" not in seen(GALLERY["warmup-sweep-124M"].make(lay(tmp_path / "tiny", ["warmup-sweep-124M"])))


def seen(figure: Any) -> str:
    """All the text of a figure, or of a part of it."""
    if isinstance(figure, Figure):
        figure.draw_without_rendering()
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.parametrize("name", SWEPT)
def test_it_draws(name: str, sources: Sources) -> None:
    made = GALLERY[name].make(sources)
    text = made if isinstance(made, str) else seen(made)
    for word in {"swin": ["peak rate 0.003", "hand-set"], "table-swin": ["swin-2x16", ",0.05,"],
                 "baselines": ["prodigy (1)", "schedule-free", "d-adaptation"], "table-main": ["normSGD", ",4.2,"],
                 "ablation-schedule": ["wsd", "cosine-linear"], "ablation-target-loss": ["Algorithm 1", "3.6"],
                 "ablation-variance": ["σ_F²", "100000"]}.get(name, ["Muon", "Lion", "diverged"]):  # fmt: skip
        assert word in text
    if name == "table-main":  # a row for each of its cells
        rows = list(csv.reader(text.splitlines()))
        assert [len(row) for row in rows] == [len(rows[0])] * (1 + 24)
    if name.startswith("warmup-sweep"):
        assert isinstance(made, Figure)
        assert len([axes for axes in made.axes if axes.get_visible()]) == 12


@pytest.mark.long
def test_the_listing_has_a_cost_for_all_that_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "--list"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in GALLERY if name not in listed] == []
    for name, paper, tiny, long, large, about in listing():
        assert about
        assert paper
        needs = bool(GALLERY[name].sweeps or GALLERY[name].hours)
        assert (tiny != "–") == (long != "–") == (needs and name != "smoothness-signsgd")
        assert (large != "–") == needs


@pytest.mark.long
@pytest.mark.usefixtures("jobs_here")
@pytest.mark.parametrize(
    ("name", "keys", "runs"),
    [("ablation-variance", {"steps": 4, "schedule.target_loss": 0.1}, 8),
     ("smoothness-lion", {"steps": 24, "schedule.warmup_steps": 12}, 1)],
)  # fmt: skip
def test_a_figure_makes_the_runs_of_its_cells_once(
    name: str, keys: dict[str, Any], runs: int, small: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = ["figure", name, "--override", json.dumps(small | keys), "--seeds", "[0]", "--workers", "2"]
    words += ["--out", str(tmp_path / "data"), "--figures", str(tmp_path / "figures")]
    assert main(words) == 0
    assert f"{runs} runs; 2 side by side" in capsys.readouterr().out
    assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 1000
    assert main(words) == 0
    assert f"all {runs} runs are finished" in capsys.readouterr().out
    assert main(["figure", "smoothness-signsgd"]) == 2
    assert "smoothness-signsgd has no runs at scale tiny: give --scale paper" in capsys.readouterr().err
