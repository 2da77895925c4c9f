"""Computes the schedule before any training, from shapes and a guess at two losses.

- `calibrate`: the numbers and the plots.      - `models`: a model's matrices, without memory for its weights.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from ..config import LabError, require
from ..registry import WITH_NORM, check, described


@described
@dataclass(frozen=True)
class CalibrateConfig:
    """Inputs of the calibration: a model's shapes, the optimizer's norm, two losses and the peak rate.

    Args:
        model: a transformers model, as a name in the local cache, a folder, a config.json, or a type such as gpt2 (in
            its default size); timm:NAME; or a preset or YAML file of this lab, for its model.
        shapes: the matrices, instead of a model: "50304x768, 12*2304x768" means one matrix of the first shape and
            twelve of the second.
        optimizer: $with_norm.
        geometry: the name of the norm, for any other optimizer.
        options: further keyword arguments of the optimizer's `from_model`, for example {blocks: {qkv: 3}}.
        kappa: κ, instead of a model.
        lr: the peak rate.
        div: the first update's rate is lr/div; 10 is the default of `AdaptiveWarmup`, 100 the paper's.
        first_loss: f(x0); null guesses ln(number of outputs), the loss of a uniform prediction.
        target_loss: f*; null guesses 0.3·f(x0).
        sigma_f2: σ_F².
        target: the hand-set schedule that η(Δ) is fitted to, warm-up and decay: linear or cosine, then cosine, linear,
            wsd or wso.
        peak_gap: Δ', instead of the calibrated one, to compare your own profile with the objective.
        out: folder for the plots and calibration.json.
    """

    model: str = ""
    shapes: str = ""
    optimizer: str = "muon"
    geometry: Literal["spectral", "sign", "frobenius", "rows", "columns"] | None = None
    options: dict[str, Any] = field(default_factory=dict)
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
        given = [name for name in ("model", "shapes", "kappa") if getattr(self, name) not in ("", None)]
        require(len(given) == 1, f"give one of model, shapes and kappa, got {' and '.join(given) or 'none'}")
        require(not self.options or self.model != "", "options belong to a model: shapes and kappa need none")
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
