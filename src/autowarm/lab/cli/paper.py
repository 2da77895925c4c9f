"""`autowarm figure`, `smoothness` and `calibrate`: the paper's pictures, and the schedule before any training."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import FigureConfig, LabError, SmoothnessConfig, UsageError
from ..config.build import build, parse
from ..config.yaml_files import merged, nested, read_yaml
from ..training.stopping import Stop
from .files import complain

__all__ = ["calibrate", "figure", "smoothness"]

_SMOOTHNESS = ("rates", "steps", "options", "windows", "every", "target_loss", "out", "run.steps", "run.batch_size",
               "run.model.layers", "run.model.width")  # fmt: skip


def calibrate(argv: list[str]) -> int:
    """The schedule before any training."""
    from ..calibration import CalibrateConfig

    about = "Show the schedule before any training: κ, Δ', K0, K1, K2 and the loss at which the warm-up ends."
    config = parse(argv, CalibrateConfig, "calibrate", about, positional="model")

    from ..calibration.calibrate import present

    for path in present(config):
        print(path)
    return 0


def smoothness(argv: list[str]) -> int:
    """Curvature over the gap along a run of each optimizer."""
    about = "Measure curvature over the gap along a run of each optimizer. Stored points are not measured again."
    config = parse(argv, SmoothnessConfig, "smoothness", about, preset="smoothness-tiny", shown=_SMOOTHNESS,
                   instead={"run.optimizer.name": "rates", "run.optimizer.lr": "rates"})  # fmt: skip

    from autowarm.plotting import styled

    from ..files import write_atomically
    from ..paper.gallery import Sources
    from ..paper.gallery import smoothness as draw
    from ..paper.smoothness import measured, report

    folder = Path(config.out)
    texts, failed = [], {}
    for name in config.rates:
        run = measured(config, name, folder / f"smoothness-{name}.json", on_step=_counter(name))
        try:
            texts.append(report(run))
        except LabError as error:
            failed[name] = error
    text = "\n".join(texts)
    write_atomically(folder / "smoothness.md", text)
    print(text, end="")
    for name in (name for name in config.rates if name not in failed):
        _save(f"smoothness-{name}", styled(draw(name))(Sources(folder, config)), folder)
    if failed:
        raise LabError(f"no fit for {'; '.join(map(str, failed.values()))}. The points are in {folder}")
    return 0


def figure(argv: list[str]) -> int:
    """Figures and tables of the paper."""
    about = (
        "Make a figure or table of the paper by name, as PNG and SVG or CSV; `all` makes every one. Missing runs are "
        "made first; figures share their runs."
    )
    if "--list" in argv:
        return _list_figures()
    config = parse(argv, FigureConfig, "figure", about, positional="name", also={"--list": "list names and costs"})
    try:
        values = merged(read_yaml(f"smoothness-{config.scale}")[0], nested(config.measure))
        curvature = build(SmoothnessConfig, values, "measure")
    except LabError as error:
        raise UsageError(str(error)) from None

    from ..execution.display import Display
    from ..paper.experiments import GALLERY, known, produce
    from ..paper.gallery import Sources

    names = [config.name]
    if names == ["all"]:
        names = [name for name, entry in GALLERY.items() if all(one in curvature.rates for one in entry.measures)]
    try:
        for name in names:
            known(name)
    except LabError as error:
        raise UsageError(str(error)) from None
    sources = Sources(Path(config.out or f"runs/{config.scale}"), curvature, scale=config.scale)
    display = Display()
    with Stop(), display:
        failed = produce(names, sources, display, config)
        display.note("drawing figures")
    for name in names:
        _draw(name, sources, Path(config.figures))
    complain(failed)
    return 0


def _list_figures() -> int:
    from rich.console import Console
    from rich.table import Table

    from ..paper.experiments import listing

    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for heading in ("name", "of the paper", "tiny, CPU", "horizon, CPU", "paper, GPU", "shows"):
        table.add_column(heading, no_wrap=heading == "name", justify="right" if "PU" in heading else "left")
    for row in listing():
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 180
    console.print(table)
    console.print("CPU: hours of one core, from measured runs. GPU: hours of one H200 at 40 % of its peak, by "
                  "arithmetic. Figures that share runs are each counted in full.")  # fmt: skip
    return 0


def _draw(name: str, sources: Any, out: Path) -> None:
    from ..paper.experiments import known

    _save(name, known(name).make(sources), out)


def _save(name: str, made: Any, out: Path) -> None:
    from ..analysis.figures import save
    from ..files import write_atomically

    if isinstance(made, str):
        write_atomically(out / f"{name}.csv", made)
        print(out / f"{name}.csv")
        return
    for path in save(made, out / name):
        print(path)


def _counter(name: str) -> Callable[[Any], None]:
    def on_step(progress: Any) -> None:
        if progress.step % 50 == 0:
            print(f"{name}: step {progress.step}  loss {progress.loss:.4f}", file=sys.stderr, flush=True)

    return on_step
