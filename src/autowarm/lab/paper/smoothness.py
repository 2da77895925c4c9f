"""Curvature over the gap, measured along runs of the lab: points, fits, tables.

The points of a run are stored in one small JSON file. Fits and figures are made from this file, so they can be changed
and remade without training again. An interrupted run starts from the beginning.
"""

import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autowarm.smoothness import Point, Probe, Study, sharpness, study

from ..analysis import markdown
from ..config import LabError, RunConfig, SmoothnessConfig, differences
from ..config.yaml_files import merged
from ..data import batch, prepare
from ..files import read_object, write_json
from ..tasks.models import token_loss
from ..training.loop import Watch, train
from ..training.metrics import OnStep

SCHEMA = 1
_COLUMNS = [f.name for f in dataclasses.fields(Point)]
_DIGITS = 7  # significant digits of the numbers in a file; float32 has no more


@dataclass(frozen=True)
class Measured:
    """The points of one run."""

    name: str  # the optimizer's
    config: dict[str, Any]  # the run's
    target_loss: float  # f*
    window: tuple[int, int]  # steps [first, last) of the windowed fit
    val_loss: float | None  # the run's final validation loss; None if the run diverged
    points: list[Point]  # in the order of steps
    sharpness: list[tuple[int, float]]  # (step, λ_max of the Hessian on one fixed batch), if they were measured


def measured(
    config: SmoothnessConfig,
    name: str,
    path: Path,
    *,
    sharpness_every: int | None = None,
    on_step: OnStep | None = None,
) -> Measured:
    """Read the points from the file at ``path``. If there is none, make the run and write the file.

    Raises:
        LabError: the file holds the points of another run; the message lists the differences.
    """
    run = config.run_of(name)
    asked = json.loads(json.dumps({"run": dataclasses.asdict(run), "every": config.every, "sharp": sharpness_every}))
    if not path.exists():
        probes: list[Probe] = []
        sharp: list[tuple[int, float]] = []

        def watch(model: nn.Module, optimizer: Optimizer) -> Watch:
            probes.append(Probe(model, optimizer, every=config.every))
            return probes[0] if sharpness_every is None else _watch_hessian(probes[0], run, sharpness_every, sharp)

        with tempfile.TemporaryDirectory() as folder:
            result = train(run, Path(folder), on_step, watch)
        columns = {column: [_number(getattr(p, column)) for p in probes[0].points] for column in _COLUMNS}
        eigenvalues = [[step, _number(value)] for step, value in sharp]
        write_json(path, {"schema": SCHEMA, "asked": asked, "val_loss": result["val_loss"], "columns": columns,
                          "sharpness": eigenvalues})  # fmt: skip
    keys = "asked", "val_loss", "columns", "sharpness"
    stored = read_object(path, "delete it to measure again", *keys, schema=SCHEMA)
    # A setting that is newer than the file had its default.
    stored["asked"]["run"] = merged(dataclasses.asdict(RunConfig()), stored["asked"]["run"])
    if changed := differences(stored["asked"], asked):
        raise LabError(f"{path} holds another run ({'; '.join(changed)}): choose another folder or delete it")
    rows = zip(*(stored["columns"][column] for column in _COLUMNS), strict=True)
    return Measured(
        name=name,
        config=stored["asked"]["run"],
        target_loss=config.target_loss,
        window=config.window_of(name),
        val_loss=stored["val_loss"],
        points=[Point(step, *(math.nan if value is None else value for value in rest)) for step, *rest in rows],
        sharpness=[(step, value) for step, value in stored["sharpness"] if value is not None],
    )


def _number(value: float) -> float | None:
    """Round a number for the file; None if it is not finite."""
    if isinstance(value, int):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _watch_hessian(probe: Probe, run: RunConfig, every: int, found: list[tuple[int, float]]) -> Watch:
    """Return a watch that runs the probe and, before every n-th update, computes λ_max on a fixed batch."""
    corpus = prepare(run.data, run.model.vocab_size)
    # Training never reaches this step, so the batch is from its distribution but not one of its batches.
    tokens = torch.from_numpy(batch(corpus.train, run.seed, run.steps, run.batch_size, run.model.seq_len))

    @contextmanager
    def watched(closure: Callable[[], Tensor]) -> Iterator[Tensor]:
        if probe.step % every == 0:
            params = [p for p in probe.model.parameters() if p.requires_grad]
            fixed = tokens.to(params[0].device)
            top = sharpness(lambda: token_loss(probe.model, fixed), params, iterations=25, tolerance=1e-2)
            found.append((probe.step, top))
        with probe(closure) as loss:
            yield loss

    return watched


def studies(found: Measured) -> dict[str, Study]:
    """Fit the whole run, the trimmed run, the window, and the warm-up alone, if it has enough points.

    During warm-up gaps are large and rates small. This is the part in which earlier work saw a line.

    Raises:
        LabError: the run has too few finite points, for instance because it diverged.
    """
    first, last = found.window
    warmup = found.config["schedule"]["warmup_steps"]
    choices: dict[str, dict[str, Any]] = {
        "full run": {"trim": None},
        "1st–99th percentile": {},
        f"steps {first}–{last}, trimmed": {"window": (first, last)},
        f"warm-up, steps 0–{warmup}, trimmed": {"window": (0, warmup)},
    }
    fits: dict[str, Study] = {}
    for name, options in choices.items():
        try:
            fits[name] = study(found.points, found.target_loss, **options)
        except ValueError as error:
            if options.get("window") != (0, warmup):
                raise LabError(f"{found.name}, {name}: {error}") from None
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


def report(found: Measured) -> str:
    """Return a Markdown table of an optimizer's fits, followed by their verdicts."""
    fits = studies(found)
    verdicts = "\n".join(f"- *{label}*: {one.verdict}" for label, one in fits.items())
    return f"**{found.name}**\n\n{markdown.table(FIT_HEADINGS, fit_rows(fits))}\n\n{verdicts}\n"
