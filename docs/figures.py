"""Make the figures and tables in docs/figures again from what is stored in docs/data; no run is made.

python docs/figures.py [NAME ...]

Some figures are drawn where their runs are made, in seconds: `first` and `warming-up`, with the study's pages, by
`python -m studies warm-up --root .`, and `which-rate` by `python benchmarks/which_rate.py`.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `studies` is

from autowarm.lab.analysis.figures import encoded, sweep_figure
from autowarm.lab.analysis.results import read_results
from autowarm.lab.calibration import CalibrateConfig
from autowarm.lab.calibration.calibrate import calibration
from autowarm.lab.calibration.calibrate import figure as calibration_figure
from autowarm.lab.config import SmoothnessConfig, SweepConfig
from autowarm.lab.config.build import parse
from autowarm.lab.config.yaml_files import merged
from autowarm.lab.paper.experiments import GALLERY
from autowarm.lab.paper.gallery import Sources
from studies.cells import RAMP_ALONE
from studies.pages.figures import differences_figure, evidence_figure
from studies.pages.grids import GRIDS, horizon_figure, judged
from studies.pages.peak import peak_figure
from studies.rows import Rows
from studies.verdicts import verdicts

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
        "demo-sweep": lambda: sweep_figure(read_results(folder / "demo-results").summaries),
        "evidence": lambda: evidence_figure(verdicts(_study())),
        "schedules": lambda: differences_figure(verdicts(_study())),
        "horizons": _horizons,
        "peak-rates": lambda: peak_figure(_study("peak")),
    }


def laid_out(folder: Path) -> Path:
    """The folder, with the stored results in it: sweeps each in a folder of its own, measurements as files."""
    for path in [*DATA.glob("horizon/*.json"), DATA / "demo-results.json"]:
        (folder / path.stem).mkdir()
        os.symlink(path.resolve(), folder / path.stem / "results.json")
    for path in DATA.glob("horizon/*.json"):
        config = parse(["--config", f"horizon/{path.stem}"], SweepConfig, "sweep", "")
        runs = [{"cell": point.cell, "config": dataclasses.asdict(point.run)} for point in config.points()]
        (folder / path.stem / "manifest.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")
    for path in [*DATA.glob("smoothness-*.json"), DATA / "edge-of-stability.json"]:
        stored = json.loads(path.read_text(encoding="utf-8"))
        run = _curvature().run_of(path.stem.removeprefix("smoothness-") if "smoothness" in path.stem else "muon")
        # The configs have gained keys since these runs were made, which had what is now the default.
        stored["asked"] = merged({"run": dataclasses.asdict(run)}, stored["asked"])
        (folder / path.name).write_text(json.dumps(stored), encoding="utf-8")
    return folder


def _curvature() -> SmoothnessConfig:
    return parse([], SmoothnessConfig, "smoothness", "", preset="smoothness-horizon")


def _calibration() -> Figure:
    return calibration_figure(calibration(parse(["--config", "calibrate-124m"], CalibrateConfig, "calibrate", "")))


def _horizons() -> Figure:
    rows, grids = _study("horizon"), GRIDS["horizon"]
    return horizon_figure(judged(rows, grids), judged(rows, grids, RAMP_ALONE))


def _study(name: str = "warm-up") -> Rows:
    return Rows.load(DATA / "studies" / f"{name}.jsonl")


if __name__ == "__main__":
    main(sys.argv[1:])
