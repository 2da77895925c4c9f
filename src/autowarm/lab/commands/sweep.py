"""`autowarm sweep`: the runs of a grid."""

from ..config import SweepConfig
from ..config.build import parse
from .report import make_and_show

_SHOWN = ("out", "seeds", "workers", "base", "cells", "grid", "override", "only", "store", "engine", "address")


def run(argv: list[str]) -> int:
    """Make the runs of a grid, each once, and show what came out."""
    about = "Make the runs of a grid, each once. If interrupted, the same command continues where it stopped."
    return make_and_show(parse(argv, SweepConfig, "sweep", about, shown=_SHOWN))
