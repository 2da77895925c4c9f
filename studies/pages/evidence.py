"""The numbers of docs/evidence.md: results by family, corrected tests, and numbers for the paper's claims."""

import statistics
from collections import Counter
from collections.abc import Sequence

from autowarm.lab.analysis.markdown import table

from ..cells import DEFAULT, FAMILIES, HAND_SET, PAPER, SEEDS, form_cells, quick_cells, title
from ..plans.warm_up import FORM_SHARES, FORMS, STUDY_SEEDS, TARGETS
from ..rows import Rows
from ..statistics import by_task, discoveries, exceeds, no_worse, p_value, percent, plus_minus
from ..verdicts import TOLERANCE, Verdict, headline
from .tables import batch_pairs, changes, family_means, form_cost, mean_difference, mean_regrets, target_cost


def evidence(rows: Rows, judged: Sequence[Verdict]) -> dict[str, object]:
    """The values for the page's template, by name."""
    learnt = [v for v in judged if v.learnt]
    fresh = [v for v in learnt if v.cell.task.split("-")[0] in ("llama", "swin")]
    costs = [target_cost(rows, cell) for cell in quick_cells(rows)]
    return {
        **headline(rows, judged),
        **_tests(learnt),
        **claims(rows, learnt),
        "names": ", ".join(f"`{v.cell.name}`" for v in judged if not v.learnt),
        "planned": len(judged),
        "untaught": len(judged) - len(learnt),
        "by_family": _by_family(learnt),
        "sweep": len(HAND_SET) * len(SEEDS.choice),
        "lengths": len(HAND_SET),
        "study_seeds": len(STUDY_SEEDS),
        "form_lengths": len(FORM_SHARES),
        "targets_mean": percent(statistics.fmean(cost.mean for cost in costs)),
        "targets_within": sum(not exceeds(cost, TOLERANCE) for cost in costs),
        "left": _left(rows, [v for v in learnt if FAMILIES[v.cell.task] == "language"]),
        "fresh": mean_difference(fresh),
        "fresh_cells": len(fresh),
    }


def _left(rows: Rows, some: Sequence[Verdict]) -> str:
    """The range of the share of its first loss that is left at the end of a run of the default, in percent."""
    runs = [run for v in some for run in rows.runs("cells", v.cell, DEFAULT).values()]
    shares = [run["val_loss"] / run["first_loss"] for run in runs if not run["diverged"]]
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f}"


def summary(rows: Rows, judged: Sequence[Verdict]) -> dict[str, object]:
    """The values for the README's template, by name."""
    learnt = [v for v in judged if v.learnt]
    regret = fixed_regrets(learnt)
    best = min(HAND_SET, key=lambda schedule: regret[schedule])

    def by_task_once(schedule: str) -> str:
        return f"{100 * by_task({v.cell: v.regret[schedule] for v in learnt}, lambda cell: cell.task).mean:.2f}"

    return {
        **headline(rows, judged), "share": title(best), "least": 100 * regret[best], "ours": 100 * regret[DEFAULT],
        "least_by_task": by_task_once(best), "ours_by_task": by_task_once(DEFAULT),
    }  # fmt: skip


def fixed_regrets(learnt: Sequence[Verdict]) -> dict[str, float]:
    """Mean regret of one length used everywhere, of the default and of Algorithm 1, on the seeds of the choice."""
    return mean_regrets([v.regret for v in learnt])


def claims(rows: Rows, learnt: Sequence[Verdict]) -> dict[str, object]:
    """Numbers to compare with the paper's claims."""
    quick, forms = quick_cells(rows), form_cells(rows)
    algorithm_1 = [run for v in learnt for run in rows.runs("cells", v.cell, PAPER).values()]
    lion = [v for v in learnt if v.cell.optimizer == "lion"]
    cold = [rows.runs("cells", v.cell, name)[seed] for v in lion for name in HAND_SET[:2] for seed in SEEDS.choice]
    lions = mean_regrets([v.regret for v in lion])
    pairs = list(batch_pairs(learnt))
    vision = [v for v in learnt if FAMILIES[v.cell.task] == "vision"]

    def changed(part: str) -> str:
        return f"{percent(statistics.fmean(changes(rows, part, quick)))} %"

    def small_large(task: str) -> str:
        some = [v for v in learnt if v.cell.task == task and v.cell.steps == 200]
        return f"{task} {mean_difference([v for v in some if v.cell.optimizer in ('muon', 'lion')])} %"

    def form(form: tuple[str, str]) -> str:
        return f"{'–'.join(form)} {percent(statistics.fmean(form_cost(rows, cell, form).mean for cell in forms))} %"

    return {
        "algorithm_1_regret": 100 * statistics.fmean(v.regret[PAPER] for v in learnt),
        "algorithm_1_runs": len(algorithm_1),
        "algorithm_1_stuck": sum(run["ended_by"] is None for run in algorithm_1),
        "algorithm_1_level": sum(v.regret[PAPER] <= TOLERANCE for v in learnt),
        "quick": len(quick),
        "other_targets": ", ".join(f"{share:g}: {changed(f'fstar={share:g}')}" for share in TARGETS),
        "variance_low": changed("sigma_f2=1e2"),
        "variance_high": changed("sigma_f2=1e4"),
        "div_100": changed("div=100"),
        "form_cells": len(forms),
        "each_form": ", ".join(map(form, FORMS)),
        "lion_cells": len(lion),
        "lion_runs": len(cold),
        "lion_diverged": sum(run["diverged"] for run in cold),
        "lion_none": percent(lions[HAND_SET[0]]),
        "lion_2": percent(lions[HAND_SET[1]]),
        "lion_default": percent(lions[DEFAULT]),
        "batch_pairs": len(pairs),
        "batch_small": 100 * statistics.median(small for small, _ in pairs),
        "batch_large": 100 * statistics.median(big for _, big in pairs),
        "batch_less": sum(big < small for small, big in pairs),
        "sizes": ", ".join(map(small_large, ("lm-small", "lm-middle", "lm-large"))),
        "vision_cells": len(vision),
        "vision": mean_difference(vision),
        "vision_stderr": 100 * statistics.median(v.stderr for v in vision),
    }


def _tests(learnt: Sequence[Verdict]) -> dict[str, object]:
    """Paired t tests in each cell, corrected for the number of cells, and tests over all cells."""
    stands = discoveries([p_value(v.difference) for v in learnt])
    certain = [v.mean for v, found in zip(learnt, stands, strict=True) if found]
    return {
        "better": sum(x < 0 for x in certain),
        "worse": sum(x > 0 for x in certain),
        "much_worse": sum(x > TOLERANCE for x in certain),
        "non_inferior": sum(bool(no_worse(v.difference, TOLERANCE)) for v in learnt),
    }


def _by_family(learnt: Sequence[Verdict]) -> str:
    """For each family, the mean difference, and how many of the default's warm-ups each cause ended."""
    ended = {FAMILIES[v.cell.task]: Counter[str]() for v in learnt}
    for v in learnt:
        ended[FAMILIES[v.cell.task]].update(v.ended)
    ended["*all tasks*"] = sum(ended.values(), Counter[str]())
    lines = [
        [family, mean.count, plus_minus(mean), ended[family]["loss"], ended[family]["clock"]]
        for family, mean in family_means(learnt, lambda v: v.mean).items()
    ]
    headings = ["family", "tasks", "default − best hand-set, %", "warm-ups ended by the loss", "by the clock"]
    return table(headings, lines)
