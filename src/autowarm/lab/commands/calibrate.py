"""`autowarm calibrate`: the schedule before any training."""

from pathlib import Path

from ..config import CalibrateConfig
from ..config.build import parse


def run(argv: list[str]) -> int:
    """Print the numbers, and write them and the plots."""
    about = "Show the schedule before any training: κ, Δ', K0, K1, K2 and the loss at which the warm-up ends."
    config = parse(argv, CalibrateConfig, "calibrate", about, instead={"model": "shapes"})

    from rich.console import Console

    from ..analysis.figures import save
    from ..calibration import calibration, figure, table
    from ..files import claim, write_json

    found, folder = calibration(config), Path(config.out)
    claim(folder)
    Console(highlight=False).print(table(found))
    write_json(folder / "calibration.json", found.to_json())
    print(*save(figure(found), folder / "calibration"), folder / "calibration.json", sep="\n")
    return 0
