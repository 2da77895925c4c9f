"""Whether the peak rate should be limited by default: `AdaptiveWarmup(peak_limit=...)`.

    python -m studies peak_limit [--list]         make what is left of the runs, or say what is left

**The judgement, written before the first run.** Two limits, c = 2.5 and c = 2, against the same schedule without one.

(a) The grid of `bench`, on its seeds: five beds, four optimizers and seven rates at 1,000 updates, four beds at 4,000.
    Where the limit is above the peak, the run is that of the default to the bit, and its row is copied. The cost at
    the tuned rate is that of `regret` against the default there. The excess at 3, 10 and 30 times the tuned rate, and
    the sensitivity, are those of `measures`. The noise is the standard error of the paired differences over settings.
(b) Weights that begin a tenth as large and have to grow ("small"): MLP and LLaMA on bytes, 1,000 updates at the tuned
    rate, on seed 60. These count as settings at the tuned rate.
(c) By arithmetic, without a run: the paper's presets, the fine-tuning study's rates, and the tuned rates of all stored
    settings whose task is still there. A setting in which a limit acts is priced on the rates that were run.

A limit becomes the default if it costs at most 0.05 % of the progress in the mean over the settings of (a) and (b) and
at most 1 % at worst, and if it halves the mean excess over 3, 10 and 30 times the tuned rate, at both lengths. If both
do, it is the one of the lower excess. If none does, the schedule only warns. All groups of a hybrid share one factor,
as Muon's runs here do; if Muon fails and the others pass, each group having its own is judged next, on other seeds.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean as mean

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate

from . import beds, bench, entries
from .measures import regret
from .pages.tables import mean_and_worst, whole_seeds, with_error
from .rows import Cell, PlannedRow, Row, Rows

LIMITS = ("peak limit 2.5", "peak limit 2")
NAMES = (entries.DEFAULT, *LIMITS)
SEED = 60  # of (b)
TUNED = bench.FACTORS.index(1.0)  # the three after it are about 3, 10 and 30


def small() -> list[tuple[str, Cell]]:
    """The settings of (b): their parts and cells."""
    return [(bench.BEDS[bed][0], bench.cells(bed, one, 1_000)[TUNED])
            for bed in ("mlp", "bytes") for one in bench.OPTIMIZERS]  # fmt: skip


def make(run: PlannedRow) -> Row:
    """Make a run, or copy that of the default where no limit acts."""
    known, same = Rows.load(bench.ROWS), replace(run, schedule=entries.DEFAULT)
    if run.schedule in LIMITS and same in known:
        training = entries.Training(beds.network(beds.task(run.cell.task), run.seed), run)
        scheduler = entries.find(run.schedule)(training)
        scheduler._limit.settle(training.optimizer, scheduler._groups.rates, run.cell.steps, None)
        if scheduler._limit.factor == 1.0:
            return {**known[same], "schedule": run.schedule}
    return bench.make(run)


def judgement_table(rows: Rows) -> str:
    """CSV: means over settings by length and limit: the cost, the excess, the sensitivity; the cost alone in (b)."""
    lines: list[list[object]] = []
    for plan in bench.PLAN:
        found = [whole_seeds(rows, bed, plan._replace(entries=NAMES)) for bed in plan.beds]
        some = [one for swept in found if swept is not None for one in swept[1].values()]
        over = {name: [[loss - min(map(min, one.curves.values())) for loss in one.curves[name][TUNED + 1 :]]
                       for one in some] for name in NAMES}  # fmt: skip
        for name in NAMES if some else ():
            costs = [regret(one.curves[name][TUNED], one.curves[NAMES[0]][TUNED], one.first) for one in some]
            change = [mean(x) - mean(y) for x, y in zip(over[name], over[NAMES[0]], strict=True)]
            lines.append([f"{plan.steps:,}", name, len(some), mean_and_worst(costs),
                          *(f"{mean(at):.3f}" for at in zip(*over[name], strict=True)),
                          with_error(Estimate(tuple(change))),
                          f"{mean(one.sensitivity(name) for one in some):.3f}"])  # fmt: skip
    for name in LIMITS:
        costs = []
        for part, cell in small():
            ours, free = (rows.losses(part, cell, f"small {which}").get(SEED) for which in (name, "peak limit none"))
            if ours is not None and free is not None:
                costs.append(regret(ours, free, rows.first_loss(part, cell, f"small {name}", [SEED])))
        lines += [["1,000, small", name, len(costs), mean_and_worst(costs), *5 * ["–"]]] if costs else []
    return comma_separated(["T", "limit", "settings", "cost at the tuned rate, % (worst)", "excess at 3 times", "at 10",
                            "at 30", "mean excess − the default's", "sensitivity"], lines)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Make what is left of the runs, or list it; print the table."""
    parser = bench.parser_of("peak_limit", __doc__)
    parser.add_argument("--list", action="store_true", help="only say what is left")
    names = [f"small {name}" for name in ("peak limit none", *LIMITS)]
    runs = bench.planned(part._replace(entries=NAMES) for part in bench.PLAN)
    runs += [PlannedRow(part, cell, name, SEED) for part, cell in small() for name in names]
    if parser.parse_args(argv).list:
        print(bench.listing(runs, Rows.load(bench.ROWS), ()))
    else:  # the default first, whose rows may be copied
        bench.go_on(sorted(runs, key=lambda run: run.schedule in LIMITS), bench.ROWS, make)
    print(judgement_table(Rows.load(bench.ROWS)))
