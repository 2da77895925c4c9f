"""`autowarm sweep`: the runs of a grid."""

from ..config import SweepConfig
from ..config.build import parse
from .report import complain, show


def run(argv: list[str]) -> int:
    about = "Make the runs of a grid, each once. If interrupted, the same command continues where it stopped."
    config = parse(argv, SweepConfig, "sweep", about)
    points = config.points()

    from ..execution.engine import make_report

    return complain(show(*make_report(config, points)).failed)
