"""`autowarm calibrate`: the schedule before any training."""

from ..config.build import parse


def run(argv: list[str]) -> int:
    """The schedule before any training."""
    from ..calibration import CalibrateConfig

    about = "Show the schedule before any training: κ, Δ', K0, K1, K2 and the loss at which the warm-up ends."
    config = parse(argv, CalibrateConfig, "calibrate", about, positional="model")

    from ..calibration.calibrate import present

    for path in present(config):
        print(path)
    return 0
