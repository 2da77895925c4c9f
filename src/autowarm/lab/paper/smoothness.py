"""Curvature over the gap along the runs of a results folder that logged it (`engine.curvature_every`): fits, tables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autowarm.smoothness import Point

from ..analysis import markdown
from ..analysis.results import Results
from ..config import LabError
from ..training.metrics import read_identity, read_metrics
from .settings import WINDOWS
from .study import Study, study

TRIMMED = "full run, 1st–99th percentile of K"


@dataclass(frozen=True)
class Measured:
    """What one run logged of its curvature."""

    name: str  # its cell's, or the run's own
    target_loss: float  # f*, which only moves the coefficients
    warmup_steps: int
    steps: int
    points: Sequence[Point]
    along: Sequence[tuple[int, float]]  # (step, ⟨δ, Hδ⟩/‖δ‖₂²) of the step δ
    sharpness: Sequence[tuple[int, float]]  # (step, λ_max of the Hessian on one fixed batch)


def measured(results: Results) -> dict[str, Measured]:
    """Read what the runs logged, one for each cell or, in a comparison, for each optimizer and rate."""
    runs: dict[str, Measured] = {}
    for row in results.rows:
        folder = results.folder_of(row)
        name = row["cell"].get("name") or f"{row['optimizer']}-lr{row['cell']['lr']:g}"
        if name in runs or folder is None or (identity := read_identity(folder)) is None:
            continue
        metrics, schedule = read_metrics(folder), identity["config"]["schedule"]

        def logged(key: str, rows: Sequence[dict[str, Any]] = metrics) -> list[tuple[int, float]]:
            return [(one["step"] - 1, one[key]) for one in rows if one.get(key) is not None]

        # K alone is stored, as the change of the gradient over a step of length 1.
        points = [
            Point(step, metrics[step]["lr"], metrics[step]["loss"], math.nan, K, 1.0, math.nan, math.nan, math.nan)
            for step, K in logged("curvature")
            if metrics[step]["loss"] is not None
        ]
        if points:
            runs[name] = Measured(
                name, schedule["target_loss"] or 0.0, schedule["warmup_steps"] or 0, identity["config"]["steps"],
                points, logged("curvature_l2"), logged("sharpness"),
            )  # fmt: skip
    return runs


def studies(run: Measured) -> dict[str, Study]:
    """Fit the whole run, the trimmed run, the part after warm-up, the warm-up alone, and the authors' window.

    During warm-up gaps are large and rates small. This is the part in which earlier work saw a line. The last two are
    left out if they have too few points.

    Raises:
        LabError: the run has too few finite points, for instance because it diverged.
    """
    warmup, steps = run.warmup_steps, run.steps
    choices: dict[str, dict[str, Any]] = {
        "full run": {"trim": None},
        TRIMMED: {},
        f"steps {warmup}–{steps}, trimmed": {"window": (warmup, steps)},
        f"warm-up, steps 0–{warmup}, trimmed": {"window": (0, warmup)},
    }
    first, last, count = WINDOWS.get(run.name, (0, math.inf, 0))
    if last <= steps:
        choices[f"the authors' window, steps {first}–{first + count}, trimmed"] = {"window": (first, first + count)}
    fits: dict[str, Study] = {}
    for name, options in choices.items():
        try:
            fits[name] = study(run.points, run.target_loss, **options)
        except ValueError as error:
            if name in list(choices)[:3]:
                raise LabError(f"{run.name}, {name}: {error}") from None
    return fits


FIT_HEADINGS = ["points taken", "n", "R² line → quadratic", "R² quadratic, K ≥ 0", "K0", "K1", "K2", "K2, 95 %",
                "AIC line − quadratic", "free ρ"]  # fmt: skip


def fit_rows(fits: dict[str, Study]) -> list[list[object]]:
    """Return one row per fit, under `FIT_HEADINGS`."""
    return [
        [label, one.quadratic.count, f"{one.linear.r2:.3f} → {one.quadratic.r2:.3f}",
         f"{max(one.nonnegative.r2, 0.0):.3f}", *(f"{c:.3g}" for c in one.quadratic.coefficients),
         f"[{one.intervals[2].low:.3g}, {one.intervals[2].high:.3g}]", f"{one.aic_gain:.0f}",
         "–" if one.power is None or one.power.coefficients[1] == 0  # no power helps
        else f"{one.power.rho:.1f}{' (end of its range)' if one.power.rho_at_end else ''}"]
        for label, one in fits.items()
    ]  # fmt: skip


def report(run: Measured) -> str:
    """Return a Markdown table of an optimizer's fits, followed by their verdicts."""
    fits = studies(run)
    verdicts = "\n".join(f"- *{label}*: {one.verdict}" for label, one in fits.items())
    return f"**{run.name}**\n\n{markdown.table(FIT_HEADINGS, fit_rows(fits))}\n\n{verdicts}\n"
