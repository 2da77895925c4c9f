"""Make the figures and tables in docs/figures again from what is stored in docs/data; no run is made.

python docs/figures.py [NAME ...]

Those of the studies, `first`, `regret`, `recovery` and `which-rate`, are made by `python -m studies pages`.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import axes_of, encoded
from autowarm.lab.calibration import CalibrateConfig
from autowarm.lab.calibration.calibrate import calibration
from autowarm.lab.calibration.calibrate import figure as calibration_figure
from autowarm.lab.config import SmoothnessConfig, SweepConfig
from autowarm.lab.config.build import parse
from autowarm.lab.paper.experiments import GALLERY
from autowarm.lab.paper.gallery import Sources
from autowarm.plotting import BLUE, GREY, ORANGE, styled
from autowarm.theory import (
    PowerProfile,
    Smoothness,
    catalogue,
    decay_only_rate,
    descend,
    polyak_rate,
    theorem_1_rate,
    warmup_only_rate,
)

DOCS = Path(__file__).parent
DATA = DOCS / "data"


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
    sources = Sources(folder, _curvature(), "horizon")
    stored = {path.stem for path in DOCS.glob("figures/*.*")}
    found: dict[str, Callable[[], Figure | str]] = {
        name: partial(entry.make, sources) for name, entry in GALLERY.items() if name in stored
    }
    return found | {
        "calibration-muon": _calibration,
        "rates": styled(_rates),
    }


def laid_out(folder: Path) -> Path:
    """The folder, with the stored results in it: sweeps each in a folder of its own, measurements as files."""
    for path in DATA.glob("horizon/*.json"):
        (folder / path.stem).mkdir()
        os.symlink(path.resolve(), folder / path.stem / "results.json")
    for path in DATA.glob("horizon/*.json"):
        config = parse(["--config", f"horizon/{path.stem}"], SweepConfig, "sweep", "")
        runs = [{"cell": point.cell, "config": dataclasses.asdict(point.run)} for point in config.points()]
        (folder / path.stem / "manifest.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")
    for path in [*DATA.glob("smoothness-*.json"), DATA / "edge-of-stability.json"]:
        os.symlink(path.resolve(), folder / path.name)
    return folder


def _curvature() -> SmoothnessConfig:
    return parse([], SmoothnessConfig, "smoothness", "", preset="smoothness-horizon")


def _calibration() -> Figure:
    return calibration_figure(calibration(parse(["--config", "calibrate-124m"], CalibrateConfig, "calibrate", "")))


def _rates() -> Figure:
    """Theorem 1's rate beside earlier ones: against the gap for a given peak, and in runs on a problem with ρ = 3."""
    lr, div, gap0, peak, steps = 1.0, 100.0, 8.0, 2.0, 2000
    gaps = np.linspace(0, gap0, 801)
    figure, (left, right) = axes_of(columns=2, width=4.2, height=3.4)
    for rho, colour in ((1.5, GREY), (2.0, BLUE), (3.0, ORANGE)):
        left.plot(gaps, PowerProfile(rho, lr, div, gap0, peak)(gaps), color=colour, label=f"Δ/K(Δ), ρ = {rho:g}")
    only = Smoothness(1, 1 / lr, (div - 1) / (lr * gap0), 0)
    left.plot(gaps, warmup_only_rate(gaps, only), color="black", linestyle=":", label="warm-up only, 1/K(Δ)")
    left.set(xlabel="gap Δ, which falls from 8", ylabel="rate η", xlim=(gap0, 0), title="the same first rate and peak")
    left.legend()
    f = catalogue()["l2-steep-barrier"]
    x0 = f.point(50.0, torch.Generator().manual_seed(0))
    D = f.radius(x0)
    runs = {
        "Theorem 1": (descend(f, x0, partial(theorem_1_rate, K=f.K, D=D), steps), BLUE, "-"),
        "decay only": (descend(f, x0, partial(decay_only_rate, K=f.K, D=D, gap0=50.0), steps), ORANGE, "-"),
        "warm-up only": (descend(f, x0, lambda gap, norm: warmup_only_rate(gap, f.K, norm), steps, gradient_norm=True),
                         "black", ":"),
        "Polyak": (descend(f, x0, polyak_rate, steps, gradient_norm=True), GREY, "-"),
    }  # fmt: skip
    for name, (run, colour, style) in runs.items():
        seen = run.gaps > 1e-6  # smaller gaps are rounding errors
        right.plot(np.flatnonzero(seen) + 1, run.gaps[seen], color=colour, linestyle=style, label=name)
    right.set(xscale="log", yscale="log", xlabel="update", ylabel="gap Δ", title="ℓ2, curvature that grows as Δ³")
    right.legend(loc="lower center")
    return figure


if __name__ == "__main__":
    main(sys.argv[1:])
