"""Whether the optimizer's geometry should decide how long to warm up: Δ' as the paper calibrates it, by geometry.

    python -m studies geometry                  print the tables of the finished runs

Before, the warm-up ended when half of the first gap Δ0 was gone, under every optimizer, and the loss was averaged over
5 % of the run. A candidate ("rule SHARE") takes Δ' = SHARE·Δ0. The paper's calibration of its LLaMA-124M (eq. 10,
div 100) gives 0.10 for the sign geometry, 0.32 for the spectral and 0.22 for the Frobenius geometry; the authors' own
quadrature gave 0.05 for the first. The loss is averaged over 5 % of the run up to 4,000 updates, and over 1 % from
20,000 updates on (200 updates between them). The time limit is half of a run up to 8,000 updates, and a third from
12,000 on (4,000 updates between them). What was the default is "earlier"; the rows of the
accepted candidate are those of the "default".

The candidates, six at most: 0.10, 0.32 and 0.22; 0.05 for the sign geometry; a third for both others beside it; AdamW,
which has no geometry of the theory, with the sign geometry's share, with a third, or with the earlier half; and an
average over 200 updates in all longer runs, which is tried in the closed loop alone.

**The judgement, written before the first run.** The measure is the cost of `regret`, in percent of the progress.

(a) `closed`: the 24 published settings of the paper's authors (124M and 210M parameters). A model of the loss, fitted
    to public runs and to each setting's final loss, meets the rule in a closed loop. The length that comes out is
    priced on the authors' own curve of hand-set lengths. No setting under Lion may end below the length from which
    their runs converge. It is computed first, for it costs no run: with 0.10 Lion at 210M would end its warm-up
    after 7,000 to 10,000 of 64,000 and 128,000 updates, where 15,000 diverged, and with 0.22 normSGD would take 10 to
    50 % where 0.1 to 9 % are best. So 0.05 and a third are run.
(b) `short`: the 70 settings of the warm-up study and the 55 on unseen tasks, against the earlier default on the same
    two or three seeds, on which the best hand-set length was chosen, and no candidate.
(c) `long`, `hot`, `longest`: LLaMA on bytes, without clipping and as people train, 16,000 updates at the tuned rate on
    two seeds and at three times that rate on one, 64,000 on one. Candidates for AdamW and Lion are chosen on seed 0
    (`choice`), and judged on others.
(d) `rates`: the sensitivity to the rate, LLaMA on bytes as people train, 4,000 updates, five rates, one seed.

Accepted is the candidate that is no worse than the earlier default by more than 0.1 % in the mean of (b) and 1 % at
worst beyond its worst there, better in the mean of (c) and of (a), and diverges nowhere that a hand-set length does
not. If none is accepted, the best one by (a) and (c) is taken for runs of 16,000 updates and more alone, and the page
says why. The plan is cut to about four CPU-hours: three times the rate has one seed and one bed.

All runs are made. Commit 45dd2794 holds the code that made them, and 1c9615c6 the tasks of `short`.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate, Losses

from .beds import PEOPLE
from .bench import DATA, parser_of
from .entries import DEFAULT, title
from .measures import STUDIES, TUNING_SEED, Setting, judged, mean_loss, regret, sweep, tuned_rates
from .pages.groups import TEST_SEEDS, decides
from .pages.tables import mean_and_worst, with_error
from .rows import Cell, PlannedRow, Rows

ROWS = DATA / "geometry.jsonl"
EARLIER = "earlier"
UNCLIPPED, TASK = "cells", "llama-bytes"
OPTIMIZERS = ("lion", "adamw", "muon", "normsgd")


def _long(steps: int) -> list[Cell]:
    """LLaMA on bytes without clipping, at the rates that the horizon study tuned."""
    rates = tuned_rates(Rows.load(DATA / "horizon.jsonl"))
    return [Cell(TASK, name, steps, rates[TASK, name, steps]) for name in OPTIMIZERS]


def _as_people_train(steps: int) -> list[Cell]:
    """The same with clipping and weight decay, at the rates tuned for the earlier default."""
    rows = Rows.load(ROWS)
    best: dict[str, tuple[float, Cell]] = {}
    for cell in rows.cells(PEOPLE):
        losses = rows.losses(PEOPLE, cell, EARLIER)
        if cell.steps == steps and TUNING_SEED in losses:
            tried = losses[TUNING_SEED], cell
            best[cell.optimizer] = min(best.get(cell.optimizer, tried), tried)
    return [best[name][1] for name in OPTIMIZERS]


def short_settings() -> list[Setting]:
    """The settings of (b) up to 4,000 updates."""
    settings = [one for study in STUDIES for one in judged(DATA.parent, study) if decides(one)]
    return [one.setting for one in settings if one.setting.cell.steps <= 4_000]


def _long_runs() -> list[PlannedRow]:
    """The runs of (c) under the default: judged, at three times the tuned rate, and of 64,000 updates."""
    tuned, people = _long(16_000), _as_people_train(16_000)
    hot = [replace(cell, lr=float(f"{3 * cell.lr:.3g}")) for cell in tuned]
    runs = [(UNCLIPPED, tuned, seed) for seed in (10, 11)] + [(PEOPLE, people, seed) for seed in TEST_SEEDS[:2]]
    runs += [(UNCLIPPED, hot, 10), (UNCLIPPED, _long(64_000), 0)]
    return [PlannedRow(part, cell, DEFAULT, seed) for part, cells, seed in runs for cell in cells]


def _at_all_rates(optimizer: str) -> list[Cell]:
    rows = Rows.load(DATA / "realistic.jsonl")
    return [cell for cell in rows.cells(PEOPLE) if (cell.optimizer, cell.steps) == (optimizer, 4_000)]


def paired(rows: Rows, setting: Setting, stored: Rows) -> tuple[float, float] | None:
    """What the default and the earlier one cost in a setting, on the seeds that have been run; None without any.

    The cost is that of `regret`, against the best hand-set length on the same seed.
    """
    cell, best = setting.cell, setting.best(stored)
    losses, before = (rows.losses("cells", cell, name) for name in (DEFAULT, EARLIER))
    least = stored.losses("cells", cell, best)
    seeds = [seed for seed in setting.seeds if seed in losses and seed in before]
    if not seeds:
        return None
    first = stored.first_loss("cells", cell, best, seeds)
    low = statistics.fmean(least[seed] for seed in seeds)
    now, then = (statistics.fmean(regret(some[seed], low, first) for seed in seeds) for some in (losses, before))
    return now, then


def short_table(rows: Rows) -> str:
    """CSV: what the candidate and the earlier default cost in short runs, by optimizer and in all."""
    stored = {name: Rows.load(DATA / f"{name}.jsonl") for name in ("warm-up", "horizon", "fresh", "unseen")}
    new = {one.setting.cell for study in ("fresh", "unseen") for one in judged(DATA.parent, study)}
    costs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for setting in short_settings():
        source = next(some for some in stored.values() if some.runs("cells", setting.cell, "linear 0"))
        if (both := paired(rows, setting, source)) is not None:
            kind = "unseen" if setting.cell in new else "study"
            for key in ((kind, setting.cell.optimizer), (kind, "all")):
                costs[key].append(both)
    lines = []
    for (kind, optimizer), some in sorted(costs.items(), key=lambda item: (item[0][0], item[0][1] == "all")):
        now, before = zip(*some, strict=True)
        change = Estimate(tuple(x - y for x, y in some))
        lines.append([kind, optimizer, len(some), mean_and_worst(now), mean_and_worst(before),
                      with_error(change), f"{max(change.values):+.1f}"])  # fmt: skip
    return comma_separated(
        ["settings", "optimizer", "n", "default (worst)", "earlier default (worst)", "difference", "its worst"], lines
    )


def long_table(rows: Rows) -> str:
    """CSV: LLaMA on bytes from 16,000 updates on: the candidate, the earlier default and hand-set lengths."""
    stored = {UNCLIPPED: Rows.load(DATA / "horizon.jsonl"), PEOPLE: Rows.load(DATA / "realistic.jsonl")}
    names, lines = (DEFAULT, EARLIER, "linear 0", "linear 0.02", "linear 0.1", "linear 0.4"), []
    groups: dict[tuple[str, Cell], list[int]] = defaultdict(list)
    for run in _long_runs():
        if run in rows:
            groups[run.part, run.cell].append(run.seed)
    for (part, cell), seeds in groups.items():
        every = Rows([*stored[part], *rows])
        ours = rows.runs(part, cell, DEFAULT, seeds)
        lengths = statistics.fmean(row["warmup_steps"] for row in ours.values()) / cell.steps
        losses = [_mean(every.losses(part, cell, name), seeds) for name in names]
        lines.append(["as people train" if part == PEOPLE else "unclipped", cell.optimizer,
                      f"{cell.steps:,}", f"{cell.lr:g}", len(seeds), f"{100 * lengths:.1f}", *losses])  # fmt: skip
    return comma_separated(
        ["LLaMA on bytes", "optimizer", "T", "peak rate", "seeds", "its warm-up, % of T",
         *map(title, names)], lines,
    )  # fmt: skip


def _mean(losses: Losses, seeds: Sequence[int]) -> str:
    return f"{mean_loss(losses, seeds):.3f}" if {*seeds} <= losses.keys() else "–"


def rates_table(rows: Rows) -> str:
    """CSV: the sensitivity to the peak rate: mean over rates of the loss over the method's best, at most f(x0)."""
    every, lines = Rows([*Rows.load(DATA / "realistic.jsonl"), *rows]), []
    for name in (DEFAULT, EARLIER, "linear 0", "linear 0.02", "linear 0.1", "linear 0.4", "tenth 0.5"):
        each = [sweep(every, PEOPLE, _at_all_rates(optimizer), [name], [TUNING_SEED]) for optimizer in OPTIMIZERS]
        values = [one.sensitivity(name) for one in each if one is not None]
        if len(values) == len(OPTIMIZERS):
            lines.append([title(name), *(f"{one:.3f}" for one in values), f"{statistics.fmean(values):.3f}"])
    return comma_separated(["warm-up", *OPTIMIZERS, "mean"], lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser_of("geometry", __doc__).parse_args(argv)
    rows = Rows.load(ROWS)
    print(short_table(rows), long_table(rows), rates_table(rows), sep="\n")
