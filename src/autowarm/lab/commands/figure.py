"""`autowarm figure`: figures and tables of the paper, by name."""

from pathlib import Path

from ..config import FigureConfig, UsageError
from ..config.build import parse
from ..errors import as_usage_error
from ..files import claim
from ..processes import Stop
from ..registry import check
from .report import complain


def run(argv: list[str]) -> int:
    about = "Make a figure or table of the paper, or all, as PNG and SVG or CSV, and first the runs that it lacks."
    if "--list" in argv:
        return _listed()
    config = parse(argv, FigureConfig, "figure", about, positional="name", also={"--list": "list names and costs"})

    from ..execution.display import Display
    from ..paper.experiments import GALLERY, made_at, produce
    from ..paper.gallery import Sources, save

    names = [name for name in GALLERY if made_at(name, config.scale)] if config.name == "all" else [config.name]
    for name in names:  # before any run is made
        with as_usage_error():
            check("name", name, GALLERY, "figure")
        if not made_at(name, config.scale):
            raise UsageError(f"{name} has no runs at scale {config.scale}: give --scale paper")
    sources = Sources(Path(config.out or f"runs/{config.scale}"), config.scale)
    claim(Path(config.figures))
    display = Display()
    with Stop(), display.progress:
        failed = produce(names, sources, display, config)
        display.note("drawing figures")
    for name in names:
        for path in save(name, GALLERY[name].make(sources), Path(config.figures)):
            print(path)
    complain(failed)
    return 0


def _listed() -> int:
    from rich.console import Console
    from rich.table import Table

    from ..paper.costs import GPU_SHARE
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
    console.print(
        f"CPU: hours of one core, from measured runs. GPU: hours of one H200 at {GPU_SHARE:.0%} of its peak, by "
        "arithmetic. Figures that share runs are each counted in full."
    )
    return 0
