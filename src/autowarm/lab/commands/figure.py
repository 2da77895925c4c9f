"""`autowarm figure`: figures and tables of the paper, by name."""

from pathlib import Path

from ..config import FigureConfig, SmoothnessConfig
from ..config.build import build, parse
from ..config.yaml_files import merged, nested, read_yaml
from ..errors import as_usage_error
from ..folders import claim
from ..training.stopping import Stop
from .report import complain


def run(argv: list[str]) -> int:
    """Figures and tables of the paper."""
    about = (
        "Make a figure or table of the paper by name, as PNG and SVG or CSV; `all` makes every one. Missing runs are "
        "made first; figures share their runs."
    )
    if "--list" in argv:
        return _listed()
    config = parse(argv, FigureConfig, "figure", about, positional="name", also={"--list": "list names and costs"})
    with as_usage_error():
        values = merged(read_yaml(f"smoothness-{config.scale}")[0], nested(config.measure))
        curvature = build(SmoothnessConfig, values, "measure")

    from ..execution.display import Display
    from ..paper.experiments import GALLERY, known, produce
    from ..paper.gallery import Sources, save

    names = [config.name]
    if names == ["all"]:
        names = [name for name, entry in GALLERY.items() if all(one in curvature.rates for one in entry.measures)]
    for name in names:
        known(name)  # a misspelt one is told before any run is made
    sources = Sources(Path(config.out or f"runs/{config.scale}"), curvature, scale=config.scale)
    claim(Path(config.figures))
    display = Display()
    with Stop(), display:
        failed = produce(names, sources, display, config)
        display.note("drawing figures")
    for name in names:
        for path in save(name, known(name).make(sources), Path(config.figures)):
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
