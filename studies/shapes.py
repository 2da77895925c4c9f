"""What the form of the warm-up is worth: η(Δ), a rate linear in the gap, and a ramp, over the same part of the run.

    python -m studies.shapes            make what is left, one run at a time, and store a row as each finishes
    python -m studies.shapes --list     say what is left

Twelve settings of 1,000 updates: a language model under Muon, a LLaMA under Lion, a ViT under Muon and an MLP under
AdamW, each at its tuned rate, at a quarter of it and at three times it. On each of three seeds there are four warm-ups:

- "default": ours, which follows the paper's η(Δ);
- "gap-linear": the same rule, its rate linear in the gap instead: lr/10 at Δ0, lr at Δ';
- "tenth SHARE": a ramp from lr/10 to lr that ignores the loss, as long as the default's warm-up on this seed;
- "linear 0.1": the customary 10 % of the run.

Runs are ordered seed by seed, so that a part of them is a complete design. Written before the first run: a warm-up is
judged by its loss less the default's on the same seed, as a share of the progress that the default makes (first loss
less last loss), averaged over the seeds, then over the settings. η(Δ) stays the default's form unless another form of
the same length is ahead by more than two standard errors over the settings, in all of them or in the tuned ones.
The ramp came out ahead by as much, but its length is the default's own, which nobody knows before the run; the form
that needs no such knowledge, "gap-linear", is not, so η(Δ) stays.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate
from autowarm.schedule import core

from .cells import DEFAULT
from .in_process import go_on, trained
from .rows import Cell, PlannedRow, Row, Rows
from .runs import run_of
from .statistics import mean_loss, regret

PART, STEPS, SEEDS = "shapes", 1_000, (20, 21, 22)
TUNED = {("lm-small", "muon"): 0.01, ("llama", "lion"): 0.003, ("vit", "muon"): 0.003, ("mlp", "adamw"): 0.03}
"""The tuned rates of the warm-up study."""
RATES = {"a quarter of the tuned rate": 1 / 4, "the tuned rate": 1.0, "three times the tuned rate": 3.0}
LINEAR, RAMP, TENTH = "gap-linear", "tenth", "linear 0.1"
ARMS = {LINEAR: "linear in the gap", RAMP: "a ramp of the same length", TENTH: "10% of the run"}
ROWS = Path("docs/data/studies/shapes.jsonl")


def linear_share(gap: Any, gap0: float, peak_gap: float, div: float) -> Any:
    """A share of the peak rate that rises linearly from 1/div at Δ0 to 1 at Δ', in place of η(Δ)/lr."""
    return 1.0 - (1.0 - 1.0 / div) * (gap - peak_gap) / (gap0 - peak_gap)


def cells(factor: float) -> list[Cell]:
    """The settings at this multiple of their tuned rates."""
    return [Cell(*key, STEPS, float(f"{factor * lr:.3g}")) for key, lr in TUNED.items()]


def plan(rows: Rows) -> list[PlannedRow]:
    """All runs that these rows allow to plan: a ramp is planned once the default has been run."""
    found = []
    for seed in SEEDS:
        for cell in (cell for factor in RATES.values() for cell in cells(factor)):
            default = PlannedRow(PART, cell, DEFAULT, seed)
            found += [default, *(PlannedRow(PART, cell, name, seed) for name in (LINEAR, TENTH))]
            if default in rows:
                found.append(PlannedRow(PART, cell, ramp_of(rows[default]), seed))
    return found


def ramp_of(default: Row) -> str:
    """The name of the ramp that is as long as the warm-up of this run."""
    return f"{RAMP} {default['warmup_steps'] / default['cell']['steps']:g}"


@contextmanager
def form(schedule: str) -> Iterator[str]:
    """The rule with the form that a schedule names; yields the name by which `run_of` knows it."""
    if schedule != LINEAR:
        yield schedule
        return
    with mock.patch.object(core, "eta_share", linear_share):
        yield DEFAULT


def made(planned: PlannedRow) -> Row:
    """Make a run of this form in this process; its row says how many seconds of a CPU it took."""
    with form(planned.schedule) as known:
        return trained(planned, run_of(PlannedRow("cells", planned.cell, known, planned.seed)))


def costs(rows: Rows, cell: Cell, seeds: Sequence[int] = SEEDS) -> Mapping[str, Estimate]:
    """What each arm costs more than the default, in percent of the default's progress, seed by seed.

    Raises:
        LabError: a run is missing.
    """
    default = rows.runs(PART, cell, DEFAULT, seeds)
    ours = rows.losses(PART, cell, DEFAULT, seeds)
    least, first = mean_loss(ours, seeds), rows.first_loss(PART, cell, DEFAULT, seeds)
    found = {}
    for name in ARMS:
        theirs = {
            seed: rows.losses(PART, cell, ramp_of(default[seed]) if name == RAMP else name, [seed])[seed]
            for seed in seeds
        }
        found[name] = Estimate(
            tuple(regret(theirs[seed], least, first) - regret(ours[seed], least, first) for seed in seeds)
        )
    return found


def finished(rows: Rows) -> list[int]:
    """The seeds on which every run has been made."""
    return [seed for seed in SEEDS if all(run in rows for run in plan(rows) if run.seed == seed)]


def shapes_table(rows: Rows) -> str:
    """CSV: for each multiple of the tuned rates, and for all, what the arms cost more than the default."""
    seeds = finished(rows)
    lines = []
    for name, factors in [*((name, [factor]) for name, factor in RATES.items()), ("all", [*RATES.values()])]:
        found = [over_settings(rows, arm, seeds, factors) for arm in ARMS]
        lines.append([name, len(found[0].values), *(f"{one.mean:+.2f} ± {one.stderr:.2f}" for one in found)])
    return comma_separated(["peak rate", "settings", *ARMS.values()], lines)


def over_settings(
    rows: Rows, arm: str, seeds: Sequence[int], factors: Sequence[float] = (*RATES.values(),)
) -> Estimate:
    """What an arm costs more than the default, over the settings at these multiples of the tuned rates."""
    some = [cell for factor in factors for cell in cells(factor)]
    return Estimate(tuple(statistics.fmean(costs(rows, cell, seeds)[arm].values) for cell in some))


def main(argv: Sequence[str] | None = None, make: Callable[[PlannedRow], Row] = made) -> None:
    """Make the missing runs, or list them."""
    rows = go_on(__doc__, argv, ROWS, plan, make)
    if finished(rows):
        print(shapes_table(rows))


if __name__ == "__main__":
    main()
