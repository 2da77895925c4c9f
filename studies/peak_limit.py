"""Whether the peak rate should be limited by default: `AdaptiveWarmup(peak_limit=...)`.

    python -m studies peak_limit                print the table of the finished runs

**The first judgement, written before the first run.** Two limits, c = 2.5 and c = 2, against the same schedule without
one, at 1,000 updates on seed 60.

(a) The grid of `bench`: five beds, four optimizers and seven rates. Where the limit is above the peak, the run is that
    of the default to the bit, and its row is copied. The cost at the tuned rate is that of `regret` against the default
    there. The excess at 3, 10 and 30 times the tuned rate, and the sensitivity, are those of `measures`. The noise is
    the standard error of the paired differences over settings.
(b) Weights that begin a tenth as large and have to grow ("small"): MLP and LLaMA on bytes, at the tuned rate. These
    count as settings at the tuned rate.

A limit becomes the default if it costs at most 0.05 % of the progress in the mean over the settings of (a) and (b) and
at most 1 % at worst, and if it halves the mean excess over 3, 10 and 30 times the tuned rate. If none does, it only
warns.

It came out that the limits pass (a) and fail (b), where they compared a step with the small weights alone.

**The second judgement, written before its first run.** Weights count as large as PyTorch's default initialisation now,
which changes no run of (a). One limit, c = 2.5, by the same bounds at each length: (a) at 1,000 updates on seed 61 and
at 4,000 updates on seed 60, on the beds that `bench` has there; (b) on all five beds, on seed 61. (c) The limit is also
run in the stored settings in which it acts and whose task is still there, and priced against the default there, beside
the judgement: some of their rates are three times the tuned ones.

All runs are made. Commit d4b3ef1d holds the code that made them.
"""

import itertools
from collections.abc import Sequence
from statistics import fmean as mean

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate

from . import beds, bench, entries, measures
from .measures import Setting, mean_loss, regret, settings
from .pages.tables import mean_and_worst, whole_seeds, with_error
from .rows import Rows

LIMITS = ("peak limit 2.5", "peak limit 2")
GRIDS = ((1_000, 60, LIMITS), (1_000, 61, LIMITS[:1]), (4_000, 60, LIMITS[:1]))
"""Updates, seed and limits of each judgement's (a)."""
SMALL = (
    (60, ("mlp", "bytes"), ("small bare limit 2.5", "small bare limit 2")),
    (61, (*bench.BEDS,), ("small peak limit 2.5",)),
)
"""Seed, beds and limits of each judgement's (b); the bare ones compared a step with the weights as they were."""
TUNED = bench.FACTORS.index(1.0)  # the three after it are about 3, 10 and 30


def stored() -> list[tuple[Setting, Rows]]:
    """The settings of (c) whose task is still there, with the rows of their study."""
    studies = ((measures.stored(bench.DATA.parent, study), seeds) for study, seeds in measures.STUDIES.items())
    return [(one, rows) for rows, seeds in studies for one in settings(rows, seeds) if one.cell.task in beds.TASKS]


def judgement_table(rows: Rows) -> str:
    """CSV: means over settings by length and limit: the cost, the excess, the sensitivity; the cost alone in (b)."""
    lines: list[list[object]] = []
    for plan in (
        part._replace(seeds=[seed], entries=(entries.DEFAULT, *limits))
        for steps, seed, limits in GRIDS for part in bench.PLAN if part.steps == steps
    ):  # fmt: skip
        swept = [whole_seeds(rows, bed, plan) for bed in plan.beds]
        some = [one for sweeps in swept if sweeps is not None for one in sweeps[1].values()]
        over = {name: [[loss - min(map(min, one.curves.values())) for loss in one.curves[name][TUNED + 1 :]]
                       for one in some] for name in plan.entries}  # fmt: skip
        for name in plan.entries if some else ():
            costs = [regret(one.curves[name][TUNED], one.curves[entries.DEFAULT][TUNED], one.first) for one in some]
            change = [mean(x) - mean(y) for x, y in zip(over[name], over[entries.DEFAULT], strict=True)]
            label = "no limit" if name == entries.DEFAULT else name
            lines.append([f"{plan.steps:,}", *plan.seeds, label, len(some), mean_and_worst(costs),
                          *(f"{mean(at):.3f}" for at in zip(*over[name], strict=True)),
                          with_error(Estimate(tuple(change))),
                          f"{mean(one.sensitivity(name) for one in some):.3f}"])  # fmt: skip
    for seed, some_beds, limits in SMALL:
        for name in limits:
            costs = []
            for bed, optimizer in itertools.product(some_beds, bench.OPTIMIZERS):
                part, cell = bench.BEDS[bed][0], bench.cells(bed, optimizer, 1_000)[TUNED]
                ours, free = (rows.losses(part, cell, which).get(seed) for which in (name, "small peak limit none"))
                if ours is not None and free is not None:
                    costs.append(regret(ours, free, rows.first_loss(part, cell, name, [seed])))
            lines += [["1,000", seed, name, len(costs), mean_and_worst(costs), *5 * ["–"]]] if costs else []
    costs = []
    for setting, made in stored():
        limited = rows.losses("cells", setting.cell, LIMITS[0])
        if {*setting.seeds} <= limited.keys():
            default = mean_loss(made.losses("cells", setting.cell, entries.DEFAULT), setting.seeds)
            first = made.first_loss("cells", setting.cell, entries.DEFAULT, setting.seeds)
            costs.append(regret(mean_loss(limited, setting.seeds), default, first))
    lines += [["stored settings", "", LIMITS[0], len(costs), mean_and_worst(costs), *5 * ["–"]]] if costs else []
    return comma_separated(["T", "seed", "limit", "settings", "cost at the tuned rate, % (worst)", "excess at 3 times",
                            "at 10", "at 30", "mean excess − without", "sensitivity"], lines)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    bench.parser_of("peak_limit", __doc__).parse_args(argv)
    print(judgement_table(Rows.load(bench.ROWS)))
