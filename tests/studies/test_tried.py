"""What the notebook says of a shortest warm-up and of averages of the loss that lag behind it, held to the stored rows.

The default that these were compared with averages over 1 % of every run, corrected for the start. Its runs of at most
4,000 updates are those of the present default; the others are in `lag.jsonl`, as "corrected". A "lagging" average
starts at f(x0), as the present default's does from 16,000 updates on. `bound.jsonl` has the runs under a shortest
warm-up, which the present code does not have.
"""

import json
import math
import re
import statistics
from pathlib import Path

from studies.cells import DEFAULT, FAIR, FAMILIES, HAND_SET, SEEDS, cells
from studies.pages.grids import judged
from studies.plans import horizon, transfer
from studies.rows import Cell, Rows
from studies.statistics import by_family, percent
from studies.verdicts import ALL_SEEDS, Verdict, judge, verdicts

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = DOCS / "data" / "studies"
BOUNDED = "default min_warmup=0.1"
ONE_PERCENT, A_TENTH = "adaptive smoothing=0.01", "min_warmup=0.1"
FORMS = (
    "corrected", "corrected min_warmup=0.1", "corrected smoothing=0.1", "corrected smoothing=0.3",
    "lagging smoothing=0.05", "lagging smoothing=0.1",
)  # fmt: skip
BYTES = (FORMS[0], FORMS[1], FORMS[4])
SEED, NEW_SEEDS = 0, (20, 21, 22, 23, 24)


def all_tried() -> Rows:
    """The rows of the trial, and on bytes those of the horizon study and of the bound."""
    found = []
    for row in (*Rows.load(STUDIES / "horizon.jsonl"), *Rows.load(STUDIES / "bound.jsonl")):
        if row["cell"]["task"] == "llama-bytes" and row["schedule"] in (DEFAULT, BOUNDED):
            old = row["schedule"] == BOUNDED or row["cell"]["steps"] <= 4_000
            name = row["schedule"].replace(DEFAULT, FORMS[0]) if old else FORMS[4]
            found.append({**row, "schedule": name})
    return Rows([*found, *Rows.load(STUDIES / "lag.jsonl")])


def test_the_notebook_says_what_a_tenth_at_least_changes_in_long_runs() -> None:
    """And why it did not become the default of every run."""
    long = (horizon.LONG, horizon.LONGEST)
    default, bounded = (judged(under("horizon", form), long) for form in FORMS[:2])
    assert [v.cell.optimizer for v in bounded if not v.passed] == ["normsgd", "normsgd"]
    passed = [sum(v.passed for v in some) for some in (default, bounded)]
    assert passed[0] == passed[1]
    means = [percent(statistics.fmean(v.mean for v in some)) for some in (default, bounded)]
    assert f"falls from {means[0]} to {means[1]} %, yet {passed[1]} of {len(bounded)} pass" in notebook()
    adamw = next(v for v in default if v.cell.optimizer == "adamw" and v.cell.steps == 64_000)
    assert f"ends it after {100 * adamw.warmup:.0f} %, at a cost of {100 * adamw.mean:.1f} %" in notebook()
    fresh = Rows([*Rows.load(STUDIES / "fresh.jsonl"), *Rows.load(STUDIES / "bound.jsonl")])
    before, after = (judged(fresh, (transfer.FRESH,), form) for form in (DEFAULT, BOUNDED))
    few = f"{sum(v.passed for v in after)} of {len(after)} fresh ones instead of {sum(v.passed for v in before)}."
    assert few in notebook()


def test_the_notebook_says_why_a_tenth_at_least_is_not_advised_for_every_run() -> None:
    """The criterion: no family's mean may rise by more than 0.1 %."""
    rows = Rows([*Rows.load(STUDIES / "warm-up.jsonl"), *Rows.load(STUDIES / "bound.jsonl")])
    learnt = [v.cell for v in verdicts(rows) if v.learnt]
    default, bounded = ([judge(rows, cell, SEEDS, FAIR, rule) for cell in learnt] for rule in (DEFAULT, BOUNDED))
    means = [
        by_family({v.cell: v.mean for v in some}, lambda cell: FAMILIES[cell.task], lambda cell: cell.task)
        for some in (default, bounded)
    ]
    more = {family: 100 * (means[1][family].mean - means[0][family].mean) for family in means[0]}
    vision = more.pop("vision")
    assert max(more.values()) <= 0.1 < vision
    assert f"vision rises by {vision:.2f} %" in notebook()
    before, after = (next(v for v in some if v.cell.name == "swin-x8.adamw.200.0.03") for some in (default, bounded))
    assert after.mean - before.mean > 0.05
    assert before.warmup == after.warmup == 0.5
    ends = [f"{100 * v.mean:.0f} ± {100 * v.stderr:.0f}" for v in (after, before)]
    assert f"ends {ends[0]} instead of {ends[1]} % behind" in notebook()
    passed = [sum(v.passed for v in some) for some in (default, bounded)]
    rise = f"The other families rise by at most {max(more.values()):.2f} %"
    assert f"{rise}, and {passed[1]} settings pass instead of {passed[0]}" in notebook()


def test_the_notebooks_table_of_averages() -> None:
    tried = all_tried()
    hand = {name: Rows.load(STUDIES / f"{name}.jsonl") for name in ("horizon", "warm-up")}
    chosen = {Cell(**row["cell"]) for row in tried if row["schedule"] == FORMS[-1] and row["seed"] == SEED}
    behind: dict[str, dict[str, list[float]]] = {form: {} for form in FORMS}
    for cell in chosen:
        study, names = ("horizon", horizon.HAND_SET) if cell.task == "llama-bytes" else ("warm-up", FAIR)
        best = min(hand[study].losses("cells", cell, name).get(SEED, math.inf) for name in names)
        for form in FORMS:
            found = tried.losses("cells", cell, form)[SEED]
            behind[form].setdefault(FAMILIES[cell.task], []).append(100 * (found / best - 1))
    assert {family: len(costs) for family, costs in behind[FORMS[0]].items()} == {
        "language": 13, "deep linear": 12, "MLP": 11
    }  # fmt: skip
    lines = [
        [*(f"{statistics.fmean(costs[family]):+.2f}" for family in ("language", "deep linear", "MLP")),
         f"{max(costs['language']):+.2f}"]
        for costs in behind.values()
    ]  # fmt: skip
    entry = (DOCS / "notebook.md").read_text(encoding="utf-8").split("## 2026-11-25 · ")[1]
    table = [re.findall(r"[+-]\d\.\d\d", line) for line in entry.splitlines() if line.startswith("| over")]
    assert [[language, factor, mlp, worst] for language, worst, factor, mlp in table] == lines


def under(study: str, form: str) -> Rows:
    """A study's rows, with a form's runs as the default's where there are any."""
    tried = [row for row in all_tried() if row["schedule"] == form]
    mine = {task for task, family in FAMILIES.items() if (family == "fresh") == (study == "fresh")}
    runs = [{**row, "schedule": DEFAULT} for row in tried if row["cell"]["task"] in mine]
    return Rows([*Rows.load(STUDIES / f"{study}.jsonl"), *runs])


def sweep(size: str) -> tuple[dict[str, float], ...]:
    """By setting of a sweep: the best hand-set loss, the default's now, over 1 % of every run, and with the bound."""
    stored = json.loads((DOCS / "data" / "horizon" / f"warmup-sweep-{size}.json").read_text())["runs"]
    tried = json.loads((STUDIES / "sweep-tried.json").read_text())["runs"]
    losses: dict[str, dict[str, float]] = {}
    for run in (*stored, *(run for run in tried if run["cell"]["model"] == stored[0]["cell"]["model"])):
        some, name = losses.setdefault(run["schedule"], {}), run["cell"]["name"]
        some[name] = min(some.get(name, math.inf), run["val_loss"])
    return tuple(losses.get(name, {}) for name in ("linear", "adaptive", ONE_PERCENT, f"{ONE_PERCENT} {A_TENTH}"))


def fall(best: dict[str, float], new: dict[str, float], old: dict[str, float], digits: int = 1) -> str:
    """How the mean and the worst difference from the best hand-set warm-up change, in words."""
    costs = [[100 * (some[name] / best[name] - 1) for name in new] for some in (old, new)]
    (mean, after), (worst, less) = ([f"{of(some):.{digits}f}" for some in costs] for of in (statistics.fmean, max))
    return f"from {mean} to {after} %, the worst from {worst} to {less} %"


def test_the_notebook_says_what_the_sweep_for_124m_shows() -> None:
    best, new, old, bound = sweep("124M")
    behind = [100 * (some["normsgd-4-1B"] / best["normsgd-4-1B"] - 1) for some in (old, bound)]
    assert f"{behind[0]:.1f} % behind, with the bound {behind[1]:.1f} %" in notebook()
    rise = {name: 100 * (loss / old[name] - 1) for name, loss in new.items()}
    assert [name for name in rise if rise[name] > 0.5] == ["muon-4-1B", "lion-4-1B"]
    with_bound = 100 * (bound["muon-4-1B"] / old["muon-4-1B"] - 1)
    assert f"Muon over 64,000 updates rises by {rise['muon-4-1B']:.1f} %" in notebook()
    assert f"under which this setting rises by {with_bound:.1f} %" in notebook()
    assert f"the mean falls {fall(best, new, old)}; {sum(x < 0 for x in rise.values())} of" in notebook()
    assert f"but Lion over 64,000 rises by {rise['lion-4-1B']:.1f} % too" in notebook()


def test_the_notebook_says_by_which_settings_the_slower_average_became_the_default() -> None:
    best, every, old, _ = sweep("210M")
    judges = {name: loss for name, loss in every.items() if name.endswith(("32-2.1B", "4-1B"))}
    assert len(judges) == 6
    assert f"The mean falls {fall(best, judges, old)} (normSGD" in notebook()
    rise = {name: 100 * (loss / old[name] - 1) for name, loss in judges.items() if "normsgd" not in name}
    assert f"Muon and Lion rise by {min(rise.values()):.1f} to {max(rise.values()):.1f} %" in notebook()


def test_the_notebook_says_which_form_wins_on_new_seeds_on_bytes() -> None:
    tried = Rows.load(STUDIES / "lag.jsonl")
    mean: dict[str, list[float]] = {form: [] for form in (FORMS[1], FORMS[4])}
    for grid, seeds in ((horizon.LONG, (25, 26, 27)), (horizon.LONGEST, (25,))):
        for v in judged(Rows.load(STUDIES / "horizon.jsonl"), (grid,)):
            best = tried.losses("cells", v.cell, v.best, seeds)
            for form, some in mean.items():
                ours = tried.losses("cells", v.cell, form, seeds)
                some.append(statistics.fmean(100 * (ours[seed] / best[seed] - 1) for seed in seeds))
    bound, slow = mean.values()
    assert len(bound) == 8
    assert (
        f"**By this rule the bound wins**, {statistics.fmean(bound):.2f} to {statistics.fmean(slow):.2f} % behind the "
        f"best hand-set warm-up, with {max(bound):.2f} and {max(slow):.2f} % in the worst"
    ) in notebook()
    difference, error = mean_and_error([b - a for a, b in zip(bound, slow, strict=True)])
    assert f"The difference is {difference:.2f} ± {error:.2f} %" in notebook()


def test_the_notebook_says_what_it_changes_in_other_long_runs() -> None:
    tried = Rows.load(STUDIES / "lag.jsonl")
    by_loss: dict[str, list[float]] = {}
    by_progress: dict[str, list[float]] = {}
    diverged: dict[str, list[str]] = {form: [] for form in (FORMS[0], FORMS[4])}
    for cell in {Cell(**row["cell"]) for row in tried if row["cell"]["task"] != "llama-bytes"}:
        if cell.steps < 16_000:
            continue
        pairs = list(zip(*(tried.runs("cells", cell, form).values() for form in diverged), strict=True))
        assert [old["seed"] for old, _ in pairs] == [new["seed"] for _, new in pairs] == [25, 26]
        for form, some in zip(diverged, zip(*pairs, strict=True), strict=True):
            diverged[form] += [cell.optimizer for run in some if run["diverged"]]
        if kept := [(old, new) for old, new in pairs if not (old["diverged"] or new["diverged"])]:
            rises = [(new["val_loss"] - old["val_loss"], old) for old, new in kept]
            loss = (100 * rise / old["val_loss"] for rise, old in rises)
            progress = (100 * rise / (old["first_loss"] - old["val_loss"]) for rise, old in rises)
            by_loss.setdefault(cell.task, []).append(statistics.fmean(loss))
            by_progress.setdefault(cell.task, []).append(statistics.fmean(progress))
    found = [mean_and_error(some[task]) for some, task in (
        (by_loss, "factor"), (by_loss, "mlp"), (by_progress, "unsmoothed"), (by_progress, "autoencoder")
    )]  # fmt: skip
    assert all(abs(mean) <= 2 * error for mean, error in found)
    factor, mlp, classifier, autoencoder = (f"{mean:+.2f} ± {error:.2f} %" for mean, error in found)
    text = notebook()
    assert (
        f"by loss, deep linear networks {factor} and the MLP {mlp}; by progress, the classifier {classifier} " in text
    )
    assert f"and the autoencoder {autoencoder}. Pairs in which a run diverges" in text
    assert [set(some) for some in diverged.values()] == [{"lion"}, {"lion"}]
    assert [len(some) for some in diverged.values()] == [3, 1]
    assert "three runs over 1 % and one over 5 %" in text


def notebook() -> str:
    return " ".join((DOCS / "notebook.md").read_text(encoding="utf-8").split())


def section() -> str:
    return notebook().split("## 2026-11-25 · May the average")[1].split(" ## 2026")[0]


def test_the_notebook_says_why_the_counts_refuse_it() -> None:
    before, after = (under("warm-up", form) for form in (FORMS[0], FORMS[4]))
    passed, rise = [], {}
    for seeds, names in ((ALL_SEEDS, HAND_SET), (SEEDS, FAIR)):
        found = [[judge(rows, cell, seeds, names) for cell in cells(rows)] for rows in (before, after)]
        old, new = ([v for v in some if v.learnt] for some in found)
        passed.append((sum(v.passed for v in new), sum(v.passed for v in old)))
        if names == HAND_SET:
            for a, b in zip(old, new, strict=True):
                rise.setdefault(FAMILIES[a.cell.task], []).append(100 * (b.mean - a.mean))
    (six, of_six), (fourteen, of_fourteen) = passed
    fresh = [judged(under("fresh", form), (transfer.FRESH,)) for form in (FORMS[0], FORMS[4])]
    count = [sum(v.passed for v in some) for some in fresh]
    text = section()
    assert f"{six} settings pass instead of {of_six} (against fourteen hand-set warm-ups {fourteen} instead of " in text
    assert f"instead of {of_fourteen}), and {count[1]} fresh ones instead of {count[0]}" in text
    (mlp, error), (factor, _), (vision, _) = (mean_and_error(rise[kind]) for kind in ("MLP", "deep linear", "vision"))
    assert f"The MLP rises by {mlp:.2f} ± {error:.2f} %, deep linear networks by {factor:.2f} %; " in text
    assert f"vision falls by {-vision:.2f} %." in text
    assert f"{factor:.1f}" == "0.1"  # the lower of two on the evidence page


def test_the_notebook_says_what_it_gains_on_bytes_and_why_it_is_refused() -> None:
    grids = (horizon.SHORT, horizon.LONG, horizon.LONGEST)
    forms = {form: [v for v in judged(under("horizon", form), grids) if v.cell.task == "llama-bytes"] for form in BYTES}
    old, _, new = forms.values()
    long = {form: [v for v in some if v.cell.steps >= 16_000] for form, some in forms.items()}
    of_old, of_bounded, (mean, worst) = map(extent, long.values())
    mine = long[FORMS[4]]
    text = section()
    assert f"On bytes it passes in {sum(v.passed for v in new)} of the {len(new)} settings, and in " in text
    assert f"in {sum(v.passed for v in mine)} of the {len(mine)} from 16,000 updates on" in text
    (before, worst_before), (after, worst_after) = extent(old), extent(new)
    assert f"falls from {before} to {after} %, the worst from {worst_before} to {worst_after} %" in text
    assert f"the mean is {mean} % and the worst {worst} %; under `min_warmup=0.1` they are {of_bounded[0]} and " in text
    assert f"and {of_bounded[1]} %, under the default {of_old[0]} and {of_old[1]} %" in text
    runs, lengths = sum(v.ended["loss"] for v in mine), [100 * v.warmup for v in mine]
    assert runs == sum(v.ended.total() for v in mine)
    assert f"all {runs} of these warm-ups, after {min(lengths):.0f} to {max(lengths):.0f} % of the run" in text


def test_the_notebook_says_what_new_seeds_show() -> None:
    tried = Rows.load(STUDIES / "lag.jsonl")
    new = {Cell(**row["cell"]) for row in tried if row["seed"] in NEW_SEEDS}
    rise: dict[str, list[float]] = {}
    for cell in new:
        old, ours = (tried.losses("cells", cell, form, NEW_SEEDS) for form in (FORMS[0], FORMS[4]))
        rise.setdefault(FAMILIES[cell.task], []).append(
            statistics.fmean(100 * (ours[seed] / old[seed] - 1) for seed in NEW_SEEDS)
        )
    factor, mlp = (mean_and_error(rise[family]) for family in ("deep linear", "MLP"))
    assert factor[0] > max(0.1, 2 * factor[1])
    text = f"deep linear networks rise by {factor[0]:.2f} ± {factor[1]:.2f} %. The MLP rises by {mlp[0]:.2f} ± "
    assert text + f"{mlp[1]:.2f} %." in section()


def extent(some: list[Verdict]) -> tuple[str, str]:
    """The mean and the worst difference, in percent."""
    return percent(statistics.fmean(v.mean for v in some)), percent(max(v.mean for v in some))


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
