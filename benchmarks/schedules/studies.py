"""Studies of the rule itself, in the cells whose runs are short: its f*, its parts, and the noise of its switch."""

import json
import math
import statistics

from cells import HAND_SET, RESULTS, SELECTION_SEEDS, cells
from run import Cell
from store import rows
from verdict import DEFAULT, TOLERANCE, loss_of

__all__ = [
    "FORMS", "FORM_SHARES", "ORDERS", "PARTS", "STUDY_SEEDS", "TARGETS", "adaptive_of", "cheap", "form_cells",
    "form_difference", "hand_of", "seconds", "sections",
]  # fmt: skip

TARGETS = (0.0, 0.15, 0.45, 0.6)  # f* in parts of f(x0); the default takes 0.3
# Without the floor, without the loss (an f* so low that the gap never falls), and so on.
PARTS = (
    "floor=None", "fstar=-1e6", "smoothing=0", "div=100", "div=3", "floor=0.2", "floor=0.8", "sigma_f2=1e2",
    "sigma_f2=1e4",
)  # fmt: skip
_ABOUT = {
    "floor=None": "no floor: the loss alone",
    "fstar=-1e6": "no loss: the ramp alone",
    "smoothing=0": "no smoothing",
}
STUDY_SEEDS = (30, 31, 32)
ORDERS = RESULTS / "orders.json"
# The six forms of the paper's ablation (c), warm-up and decay; the shares of a hand-set warm-up to hold each against.
FORMS = (
    ("linear", "cosine"), ("linear", "linear"), ("cosine", "cosine"), ("cosine", "linear"), ("linear", "wsd"),
    ("linear", "wso"),
)  # fmt: skip
FORM_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)
FORM_TASKS = ("lm-small", "llama")  # of 200 steps, by Muon and Lion


def seconds(c: Cell) -> float:
    """The quicker of a hand-set length's two runs."""
    known = rows(RESULTS / "cells", c)
    return min(known[HAND_SET[0.0], seed]["seconds"] for seed in SELECTION_SEEDS)


def cheap() -> list[Cell]:
    """The cells whose runs take a few seconds."""
    return [
        c for c in cells()
        if (c.task in ("lm-small", "vit", "llama") and c.steps == 200)
        or (c.task in ("mlp", "factor") and (c.optimizer, c.steps) != ("muon", 4000))
    ]  # fmt: skip


def form_cells() -> list[Cell]:
    return [c for c in cells() if c.task in FORM_TASKS and c.steps == 200 and c.optimizer in ("muon", "lion")]


def adaptive_of(warmup: str, decay: str) -> str:
    """The default in another form, by name; with a shorter floor where the decay wants a stable phase, as advised."""
    floor = " floor=0.2" if decay in ("wsd", "wso") else ""
    return f"{DEFAULT} warmup={warmup} decay={decay}{floor}"


def sections() -> list[str]:
    """Lines of the page, for the studies that are made."""
    return [*_targets(), *_parts(), *_forms(), *_orders()]


def form_difference(c: Cell, form: tuple[str, str]) -> tuple[float, float]:
    """The default in a form against the best hand-set length of it: mean and standard error, relative."""
    known = rows(RESULTS / "forms", c)
    ours = [loss_of(known[adaptive_of(*form), seed]) for seed in STUDY_SEEDS]
    return _against_best(ours, [[loss_of(known[name, seed]) for seed in STUDY_SEEDS] for name in hand_of(form)])


def hand_of(form: tuple[str, str]) -> list[str]:
    """The hand-set schedules of a form, by name."""
    return [f"hand {share:g} {form[0]} {form[1]}" for share in FORM_SHARES]


def _forms() -> list[str]:
    found = {c: rows(RESULTS / "forms", c) for c in form_cells()}
    names = [name for form in FORMS for name in (*hand_of(form), adaptive_of(*form))]
    if not all((name, seed) in known for known in found.values() for name in names for seed in STUDY_SEEDS):
        return []
    lines = [
        "",
        "## Does it depend on the form of the schedule?",
        "",
        f"The paper's six forms, {len(FORM_SHARES)} hand-set lengths each (2 % to 40 %), {len(STUDY_SEEDS)} seeds: the",
        "default in that form against the best of them, each seed against the length that was best on the other",
        "seeds, in percent ± standard error. wsd and wso with `floor=0.2`, as [advised](algorithm.md).",
        "",
        "| cell | " + " | ".join(f"{warmup}, {decay}" for warmup, decay in FORMS) + " |",
        "|---|" + "---|" * len(FORMS),
    ]
    for cell in found:
        row = [f"{_percent(mean)} ± {100 * error:.2f}" for mean, error in (form_difference(cell, f) for f in FORMS)]
        lines.append(f"| `{cell.name}` | {' | '.join(row)} |")
    return lines


def _against_best(ours: list[float], others: list[list[float]]) -> tuple[float, float]:
    """Each seed against what was best on the other seeds, relative: mean and standard error."""
    differences = []
    for i, mine in enumerate(ours):
        best = min(others, key=lambda losses, i=i: sum(x for j, x in enumerate(losses) if j != i))
        differences.append(mine / best[i] - 1)
    return statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def _known(study: str) -> dict[Cell, dict[tuple[str, int], dict]]:
    """Of each cheap cell all runs of the study; empty unless all are there."""
    values = [f"fstar={share:g}" for share in TARGETS] if study == "targets" else PARTS
    names = [DEFAULT, *(f"{DEFAULT} {value}" for value in values)]
    found = {c: rows(RESULTS / study, c) for c in cheap()}
    whole = all((name, seed) in known for known in found.values() for name in names for seed in STUDY_SEEDS)
    return found if whole else {}


def _percent(x: float) -> str:
    return f"{100 * x:+.2f}" if math.isfinite(x) else "diverged"


def _targets() -> list[str]:
    found = _known("targets")
    if not found:
        return []
    lines = [
        "",
        "## What does it cost not to know f\\*?",
        "",
        f"The default's f\\* is 0.3·f(x0). In {len(found)} cells, {len(STUDY_SEEDS)} seeds each: the default",
        "against other values, in parts of f(x0). Each seed is compared with the value that was best on the other",
        "seeds, since the best of a grid on the same seeds is biased low. The last column is that difference ± its",
        "standard error.",
        "",
        "| cell | " + " | ".join(f"{share:g}" for share in TARGETS) + " | default − best, % | |",
        "|---|" + "---|" * (len(TARGETS) + 2),
    ]  # fmt: skip
    costs, within = [], 0
    for cell, known in found.items():
        loss = {
            name: [loss_of(known[name, seed]) for seed in STUDY_SEEDS]
            for name in (DEFAULT, *(f"{DEFAULT} fstar={share:g}" for share in TARGETS))
        }
        ours, others = loss.pop(DEFAULT), list(loss.values())
        mean, error = _against_best(ours, others)
        passed = mean <= max(2 * error, TOLERANCE)
        costs.append(mean)
        within += passed
        cells_of = [_percent(statistics.fmean(x) / statistics.fmean(ours) - 1) for x in others]
        lines.append(
            f"| `{cell.name}` | {' | '.join(cells_of)} | {_percent(mean)} ± {100 * error:.2f} | "
            f"{'' if passed else 'worse'} |"
        )
    return [
        *lines,
        "",
        f"Mean {_percent(statistics.fmean(costs))} %; within {100 * TOLERANCE:g} % or two standard errors in {within} "
        f"of {len(found)} cells. Columns: the value's loss over the default's, in percent.",
    ]


def _parts() -> list[str]:
    found = _known("parts")
    if not found:
        return []
    lines = [
        "",
        "## What is each part worth?",
        "",
        f"The default with one part changed, in the same {len(found)} cells: mean and worst change of the",
        "held-out loss in percent, and in how many cells it got worse by more than 1 %. A diverged run counts as a",
        "loss twice as high. A rule that never left warm-up did not decay, either.",
        "",
        "| changed | mean, % | worst, % | best, % | worse by 1 % | better by 1 % | runs that ended in warm-up |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in PARTS:
        changes, stuck = [], 0
        for known in found.values():
            ours = statistics.fmean(loss_of(known[DEFAULT, seed]) for seed in STUDY_SEEDS)
            changed = [known[f"{DEFAULT} {part}", seed] for seed in STUDY_SEEDS]
            changes.append(statistics.fmean(min(loss_of(row), 2 * ours) for row in changed) / ours - 1)
            stuck += sum(row["ended_by"] is None for row in changed)
        about = _ABOUT.get(part, f"`{part}`")
        worse, better = sum(x > 0.01 for x in changes), sum(x < -0.01 for x in changes)
        lines.append(
            f"| {about} | {_percent(statistics.fmean(changes))} | {_percent(max(changes))} | {_percent(min(changes))} "
            f"| {worse} | {better} | {stuck} |"
        )
    return lines


def _orders() -> list[str]:
    if not ORDERS.exists():
        return []
    lines = [
        "",
        "## How noisy is the switch?",
        "",
        "The same initial weights, ten orders of the data, batches of 32.",
        "",
        "| cell | switch at, mean | standard deviation, % of it | ended by |",
        "|---|---|---|---|",
    ]
    for row in json.loads(ORDERS.read_text()):
        mean = statistics.fmean(row["warmup_steps"])
        spread = 100 * statistics.stdev(row["warmup_steps"]) / mean
        lines.append(f"| `{row['cell']}` | {mean:.0f} | {spread:.1f} | {' and '.join(sorted(set(row['ended_by'])))} |")
    return lines
