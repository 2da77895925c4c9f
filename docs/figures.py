"""Make the figures and tables in docs/figures again from what is stored in docs/data; no run is made.

python docs/figures.py [NAME ...]

Those of the studies, `sensitivity`, `geometry`, `recovery` and `which-rate`, are made by `python -m studies pages`.
"""

import csv
import dataclasses
import json
import os
import runpy
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import yaml
from matplotlib.figure import Figure

from autowarm import AdaptiveWarmup, Lion
from autowarm._torch.plotting import BLUE, GREEN, GREY, ORANGE, styled
from autowarm.lab.analysis.figures import axes_of, encoded
from autowarm.lab.config import SweepConfig
from autowarm.lab.paper.experiments import GALLERY, sweep_config
from autowarm.lab.paper.gallery import Sources
from autowarm.lab.training.schedules import hand_set
from autowarm.schedule import Calibration, Profile, calibrate, objective
from autowarm.theory import (
    catalogue,
    decay_only_rate,
    descend,
    theorem_1_rate,
)

DOCS = Path(__file__).parent
DATA = DOCS / "data"
AUTHORS = runpy.run_path(str(DOCS / "authors.py"))
target_share, authors_peak_gap = AUTHORS["target_share"], AUTHORS["authors_peak_gap"]


def main(names: list[str]) -> None:
    """Make the figures and tables of these names, or all."""
    with TemporaryDirectory() as folder:
        known = drawings(laid_out(Path(folder)))
        for name in names or known:
            made = known[name]()
            ending, content = ("csv", made.encode()) if isinstance(made, str) else ("png", encoded(made, "png"))
            path = DOCS / "figures" / f"{name}.{ending}"
            path.write_bytes(content)
            print(path)


def drawings(folder: Path) -> dict[str, Callable[[], Figure | str]]:
    """What makes each figure or table, by its name; `folder` holds stored results as `autowarm figure` leaves them."""
    sources = Sources(folder, "horizon")
    stored = {path.stem for path in DOCS.glob("figures/*.*")}
    found: dict[str, Callable[[], Figure | str]] = {
        name: partial(entry.make, sources) for name, entry in GALLERY.items() if name in stored
    }
    return (
        found
        | runpy.run_path(str(DOCS / "claims.py"))["tables"](sources)
        | {
            "calibration-muon": _calibration,
            "authors-switch": styled(_authors_switch),
            "rates": styled(_rates),
            "stall": styled(_stall),
        }
    )


def laid_out(folder: Path) -> Path:
    """The folder, with the stored results in it: sweeps each in a folder of its own."""
    for path in DATA.glob("horizon/*.json"):
        (folder / path.stem).mkdir()
        os.symlink(path.resolve(), folder / path.stem / "results.json")
    for path in DATA.glob("horizon/*.json"):
        # The settings that the rows were made with, which may be older than those of the preset.
        config = SweepConfig(**json.loads(path.read_text(encoding="utf-8"))["config"])
        runs = [{"cell": point.cell, "config": dataclasses.asdict(point.run)} for point in config.points()]
        (folder / path.stem / "manifest.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")
    rows = []
    for point in sweep_config("smoothness", "horizon", folder, {}, None).points():
        run, place = point.run, folder / "runs" / f"x-{point.cell}"
        place.mkdir(parents=True)
        (place / "config.yaml").write_text(yaml.safe_dump({"config": dataclasses.asdict(run)}), encoding="utf-8")
        steps: list[dict[str, Any]] = [{"step": step, "loss": None} for step in range(1, run.steps + 1)]
        with (DATA / "curvature" / f"{point.cell}.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                steps[int(line["step"]) - 1] |= {key: json.loads(text) for key, text in line.items() if text}
        (place / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in steps), encoding="utf-8")
        cell = {"name": point.cell, "optimizer": point.cell, "lr": run.optimizer.lr, "steps": run.steps}
        row = {"id": point.cell, "cell": cell, "optimizer": point.cell, "schedule": "linear", "seed": 0, "seconds": 0}
        rows.append(row | {"warmup_steps": run.schedule.warmup_steps, "val_loss": None, "diverged": False})
    document = {"schema": 1, "environment": {}, "corpus": {}, "config": {"store": "../runs"}, "runs": rows}
    (folder / "smoothness").mkdir()
    (folder / "smoothness" / "results.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


@styled
def _calibration() -> Figure:
    """Two plots over the loss, which falls to the right: η(Δ) with its target and weight, and the objective of Δ'."""
    target, kappa, div, gap0 = 3.3, 46848.0, 100.0, 10.98 - 3.3  # Muon on the authors' LLaMA-124M
    profile, sigma = calibrate(gap0, lr=1.0, div=div, kappa=kappa), (1e3 / kappa) ** 0.5
    gaps = np.union1d(np.linspace(0, gap0, 400)[1:], profile.peak_gap + sigma * np.linspace(-4, 4, 81))
    wanted = [target_share(gap, gap0, profile.peak_gap, div) for gap in gaps.tolist()]
    candidates = gap0 * np.arange(1, 1001) / 1001
    drawn = Figure(figsize=(6.4, 5.6), layout="constrained")
    top, bottom = drawn.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    weight = np.exp(-0.5 * ((gaps - profile.peak_gap) / sigma) ** 2)
    top.fill_between(target + gaps, weight, color=GREY, alpha=0.25, lw=0, label="weight of the fit")
    top.plot(target + gaps, wanted, color=ORANGE, linestyle="--", label="linear-cosine schedule")
    top.plot(target + gaps, profile(gaps), color=BLUE, label="η(Δ)")
    top.set(ylabel="rate / lr", ylim=(0, 1.05), xlim=(target + gap0, target))
    end = target + profile.peak_gap
    top.set_title(f"κ = {kappa:,.0f}: warm-up ends at loss {end:.3g}, Δ' = {profile.peak_gap:.3g}")
    top.legend(loc="upper left")
    values = objective(candidates, gap0, div=div, kappa=kappa, sigma_f2=1e3, target="linear-cosine")
    bottom.plot(target + candidates, values, color=GREEN)
    bottom.set(yscale="log", xlabel="loss, falling →", ylabel="objective / lr²")
    for axes in (top, bottom):
        axes.axvline(end, color=GREY, linestyle=":", linewidth=1)
    return drawn


def _rates() -> Figure:
    """Theorem 1's rate: against the gap for a given peak, and in runs on a problem with ρ = 3."""
    lr, div, gap0, peak, steps = 1.0, 100.0, 8.0, 2.0, 2000
    gaps = np.linspace(0, gap0, 801)
    figure, (left, right) = axes_of(columns=2, width=4.2, height=3.4)
    for rho, colour in ((1.5, GREY), (2.0, BLUE), (3.0, ORANGE)):
        left.plot(gaps, Profile(lr, div, gap0, peak, rho)(gaps), color=colour, label=f"Δ/K(Δ), ρ = {rho:g}")
    left.set(xlabel="gap Δ, which falls from 8", ylabel="rate η", xlim=(gap0, 0), title="the same first rate and peak")
    left.legend()
    f = catalogue()["l2-steep-barrier"]
    x0 = f.point(50.0, torch.Generator().manual_seed(0))
    D = f.radius(x0)
    runs = {
        "Theorem 1": (descend(f, x0, partial(theorem_1_rate, K=f.K, D=D), steps), BLUE),
        "decay only": (descend(f, x0, partial(decay_only_rate, K=f.K, D=D, gap0=50.0), steps), ORANGE),
    }
    for name, (run, colour) in runs.items():
        above = run.gaps > 1e-6  # smaller gaps are rounding errors
        right.plot(np.flatnonzero(above) + 1, run.gaps[above], color=colour, label=name)
    right.set(xscale="log", yscale="log", xlabel="update", ylabel="gap Δ", title="ℓ2, curvature that grows as Δ³")
    right.legend(loc="lower center")
    return figure


def _authors_switch() -> Figure:
    """Plot Δ' of LLaMA-124M under Muon by the authors' quadrature and by ours, over f(x0) and over σ_F²."""
    firsts, variances = np.linspace(10.9, 11.1, 101), np.logspace(2, 5, 61)
    figure, (left, right) = axes_of(columns=2, width=4.2, height=3.4)
    known = {"lr": 1e-3, "div": 100.0, "kappa": 46_848.0}
    choosers = {
        "the authors' quadrature": (authors_peak_gap, ORANGE, "."),
        "minimum of the objective": (lambda gap, **more: calibrate(gap, **more).peak_gap, BLUE, "-"),
    }
    for label, (choose, colour, style) in choosers.items():
        left.plot(firsts, [choose(first - 3.3, **known) for first in firsts], style, color=colour, label=label)
        values = [choose(10.98 - 3.3, **known, sigma_f2=float(value)) for value in variances]
        right.plot(variances, values, style, color=colour, label=label)
    left.axvline(10.98, color=GREY, linestyle=":", linewidth=1)
    left.set_xticks(np.linspace(10.9, 11.1, 5))
    left.set(xlabel="f(x0)", ylabel="Δ'", ylim=(0, None), title="σ_F² = 1000")
    right.set(xlabel="σ_F²", xscale="log", ylim=(0, None), title="f(x0) = 10.98")
    left.legend(loc="lower right")
    return figure


def _stall() -> Figure:
    """Plot why Algorithm 1 stalls on short runs, on a toy.

    An update at the peak rate lowers the gap by 1 %, a smaller rate by proportionally less.
    """
    figure, panels = axes_of(columns=2, rows=2, width=4.2, height=2.5)
    for column, steps in enumerate((1000, 64_000)):
        optimizer = Lion([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        paper = AdaptiveWarmup.paper(optimizer, steps, target_loss=0.0, calibration=Calibration(kappa=46848.0))
        gaps, rates = np.full((2, steps), 7.68), np.full((2, steps), 0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the scheduler warns that the run ends in warm-up, which is the point
            for step in range(steps):
                if step:
                    gaps[:, step] = gaps[:, step - 1] * (1 - 0.01 * rates[:, step - 1])
                paper.step(float(gaps[0, step]))
                rates[:, step] = optimizer.param_groups[0]["lr"], hand_set(step, steps // 5, steps, 100.0)
        waited = f"{paper.warmup_steps:,} updates" if paper.phase == "decay" else "all along"
        top, bottom = panels[column], panels[2 + column]
        labels = [f"Algorithm 1, in warm-up {waited}", "linear warm-up over a fifth, cosine"]
        for i, (label, colour, style) in enumerate(zip(labels, (ORANGE, BLUE), ("-", "--"), strict=True)):
            top.plot(gaps[i], color=colour, linestyle=style, label=label)
            bottom.plot(rates[i], color=colour, linestyle=style)
        top.set(title=f"{steps:,} updates", ylim=(0, 10))
        bottom.set(xlabel="update", ylim=(0, 1.05))
        top.legend(frameon=False, fontsize="small", loc="upper right")
    panels[0].set_ylabel("gap Δ")
    panels[2].set_ylabel("rate / lr")
    return figure


if __name__ == "__main__":
    main(sys.argv[1:])
