"""Computes the schedule before any training, from shapes and two losses, in `calibrate`: the numbers and the plots."""

import re
from dataclasses import dataclass
from typing import Literal

from ..config import LabError, require
from ..registry import WITH_NORM, check, described


@described
@dataclass(frozen=True)
class CalibrateConfig:
    """Inputs of the calibration: the matrices' shapes, the optimizer's norm, two losses and the peak rate.

    Args:
        shapes: the trained matrices: "50304x768, 12*2304x768" means one matrix of the first shape and twelve of the
            second.
        optimizer: $with_norm.
        geometry: the name of the norm, for any other optimizer.
        kappa: κ, instead of the shapes; `autowarm train --dry-run` prints that of a run.
        lr: the peak rate.
        div: the first update's rate is lr/div; 10 is the default of `AdaptiveWarmup`, 100 the paper's.
        first_loss: f(x0); ln(number of outputs) is the loss of a uniform prediction.
        target_loss: f*; null guesses 0.3·f(x0).
        sigma_f2: σ_F².
        target: the hand-set schedule that η(Δ) is fitted to, warm-up and decay: linear or cosine, then cosine, linear,
            wsd or wso.
        peak_gap: Δ', instead of the calibrated one, to compare your own profile with the objective.
        out: folder for the plots and calibration.json.
    """

    shapes: str = ""
    optimizer: str = "muon"
    geometry: Literal["spectral", "sign", "frobenius", "rows", "columns"] | None = None
    kappa: float | None = None
    lr: float = 1e-3
    div: float = 10.0
    first_loss: float | None = None
    target_loss: float | None = None
    sigma_f2: float = 1e3
    target: str = "linear-cosine"
    peak_gap: float | None = None
    out: str = "runs/calibrate"

    def __post_init__(self) -> None:
        check("optimizer", self.optimizer, WITH_NORM)
        given = [name for name in ("shapes", "kappa") if getattr(self, name) not in ("", None)]
        require(len(given) == 1, f"give one of shapes and kappa, got {' and '.join(given) or 'none'}")
        require(self.first_loss is not None, "give --first_loss, f(x0): ln(number of outputs) for an untrained model")
        if self.shapes:
            read_shapes(self.shapes)  # report a mistake before importing anything slow


def read_shapes(text: str) -> list[tuple[int, ...]]:
    """Parse shapes such as "50304x768, 12*2304x768".

    Example:
        >>> read_shapes("10x4, 2*4x4")
        [(10, 4), (4, 4), (4, 4)]
    """
    shapes: list[tuple[int, ...]] = []
    for item in text.split(","):
        found = re.fullmatch(r"(?:(\d+)\*)?(\d+(?:x\d+)+)", item.strip())
        if found is None or not all(size := [int(side) for side in found[2].split("x")]):
            raise LabError(f'write a shape as 768x3072, or as 12*768x768 for twelve; got "{item.strip()}"')
        shapes += [tuple(size)] * int(found[1] or 1)
    return shapes
