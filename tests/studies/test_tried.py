"""What the notebook says of a shortest warm-up and of slower averages of the loss, held to the stored rows.

The default that these were compared with averages over 1% of every run, corrected for the start. Its runs of at most
4,000 updates are those of the studies' default; the others are in `lag.jsonl`, as "corrected". A "lagging" average
starts at f(x0), as the studies' default's does from 16,000 updates on. `bound.jsonl` has the runs under a shortest
warm-up, which the present code does not have.
"""

import json
import math
import statistics
from pathlib import Path

from studies.cells import DEFAULT, FAIR, FAMILIES, HAND_SET, SEEDS, cells
from studies.pages.grids import judged
from studies.plans import horizon, transfer
from studies.rows import Cell, Rows
from studies.statistics import by_family, percent
from studies.verdicts import ALL_SEEDS, judge, verdicts

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = DOCS / "data" / "studies"
BOUNDED = "default min_warmup=0.1"
ONE_PERCENT, A_TENTH = "adaptive smoothing=0.01", "min_warmup=0.1"
FORMS = (
    "corrected", "corrected min_warmup=0.1", "corrected smoothing=0.1", "corrected smoothing=0.3",
    "lagging smoothing=0.05", "lagging smoothing=0.1",
)  # fmt: skip
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
    falls = f"the mean difference falls from {means[0]}% to {means[1]}%, but the default still matches in"
    assert f"{falls} {passed[1]} of {len(bounded)} settings, and on fresh tasks" in notebook()
    adamw = next(v for v in default if v.cell.optimizer == "adamw" and v.cell.steps == 64_000)
    assert f"ended it after {100 * adamw.warmup:.0f}% of the run, which cost {100 * adamw.mean:.1f}%" in notebook()
    fresh = Rows([*Rows.load(STUDIES / "fresh.jsonl"), *Rows.load(STUDIES / "bound.jsonl")])
    before, after = (judged(fresh, (transfer.FRESH,), form) for form in (DEFAULT, BOUNDED))
    few = f"in {sum(v.passed for v in after)} of {len(after)} instead of {sum(v.passed for v in before)}."
    assert f"on fresh tasks {few}" in notebook()


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
    assert f"vision rises by {vision:.2f}%, other families by at most {max(more.values()):.2f}%" in notebook()


def test_the_notebook_says_which_of_six_averages_was_best() -> None:
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
    means = [[statistics.fmean(some) for some in costs.values()] for costs in behind.values()]
    assert min(range(len(FORMS)), key=lambda form: statistics.fmean(means[form])) == FORMS.index(FORMS[4])
    of_default, ours = behind[FORMS[0]]["language"], behind[FORMS[4]]["language"]
    mean = f"on bytes {statistics.fmean(ours):+.2f}% instead of {statistics.fmean(of_default):+.2f}%"
    assert f"{mean}, and {max(ours):+.2f}% in the worst setting instead of {max(of_default):+.2f}%." in section()


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


def fall(best: dict[str, float], new: dict[str, float], old: dict[str, float]) -> tuple[str, str]:
    """How the mean and the worst difference from the best hand-set warm-up change, in words."""
    costs = [[100 * (some[name] / best[name] - 1) for name in new] for some in (old, new)]
    mean, worst = (f"from {of(costs[0]):.1f}% to {of(costs[1]):.1f}%" for of in (statistics.fmean, max))
    return mean, worst


def test_the_notebook_says_what_the_sweep_for_124m_shows() -> None:
    best, new, old, bound = sweep("124M")
    rise = {name: 100 * (loss / old[name] - 1) for name, loss in new.items()}
    assert [name for name in rise if rise[name] > 0.5] == ["muon-4-1B", "lion-4-1B"]
    with_bound = 100 * (bound["muon-4-1B"] / old["muon-4-1B"] - 1)
    muon = f"Muon over 64,000 updates rises by {rise['muon-4-1B']:.1f}% (under `min_warmup=0.1` by {with_bound:.1f}%)"
    assert muon in notebook()
    assert f"For 124M the mean falls {fall(best, new, old)[0]}" in notebook()


def test_the_notebook_says_by_which_settings_the_slower_average_became_the_default() -> None:
    best, every, old, _ = sweep("210M")
    judges = {name: loss for name, loss in every.items() if name.endswith(("32-2.1B", "4-1B"))}
    assert len(judges) == 6
    mean, worst = fall(best, judges, old)
    assert f"the mean falls {mean}, the worst {worst}." in notebook()
    _, others, before, _ = sweep("124M")
    rises = [
        100 * (loss / was[name] - 1)
        for now, was in ((judges, old), (others, before))
        for name, loss in now.items()
        if name.startswith(("muon", "lion"))
    ]
    assert f"Muon and Lion lose up to {max(rises):.1f}%." in notebook()


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
    means = f"{statistics.fmean(slow):.2f}% against {statistics.fmean(bound):.2f}% for `min_warmup=0.1`"
    assert f"the lower mean on bytes: {means}." in notebook()
    rows = [row for row in tried if row["schedule"] == FORMS[1] and row["seed"] in (25, 26, 27)]
    assert {row["ended_by"] for row in rows if row["cell"]["task"] == "llama-bytes"} == {"min_warmup"}


def test_the_notebook_says_what_it_changes_in_other_long_runs() -> None:
    tried = Rows.load(STUDIES / "lag.jsonl")
    by_loss: dict[str, list[float]] = {}
    by_progress: dict[str, list[float]] = {}
    for cell in {Cell(**row["cell"]) for row in tried if row["cell"]["task"] != "llama-bytes"}:
        if cell.steps < 16_000:
            continue
        pairs = list(zip(*(tried.runs("cells", cell, form).values() for form in (FORMS[0], FORMS[4])), strict=True))
        assert [old["seed"] for old, _ in pairs] == [new["seed"] for _, new in pairs] == [25, 26]
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
    assert "In four other tasks no change exceeds two standard errors." in notebook()


def notebook() -> str:
    return " ".join((DOCS / "notebook.md").read_text(encoding="utf-8").split())


def section() -> str:
    return notebook().split("## 2026-11-25 · May the average")[1].split(" ## 2026")[0]


def test_the_notebook_says_why_the_counts_refuse_it() -> None:
    before, after = (under("warm-up", form) for form in (FORMS[0], FORMS[4]))
    found = [[judge(rows, cell, ALL_SEEDS, HAND_SET) for cell in cells(rows)] for rows in (before, after)]
    old, new = ([v for v in some if v.learnt] for some in found)
    fresh = [judged(under("fresh", form), (transfer.FRESH,)) for form in (FORMS[0], FORMS[4])]
    of_old, of_new, fresh_old, fresh_new = (sum(v.passed for v in some) for some in (old, new, *fresh))
    text = f"it matches in {of_new} of {len(new)} settings instead of {of_old}"
    assert f"{text}, and in {fresh_new} fresh ones instead of {fresh_old};" in section()


def test_the_notebook_says_what_new_seeds_show() -> None:
    tried = Rows.load(STUDIES / "lag.jsonl")
    new = {Cell(**row["cell"]) for row in tried if row["seed"] in NEW_SEEDS}
    rise: dict[str, list[float]] = {}
    for cell in new:
        old, ours = (tried.losses("cells", cell, form, NEW_SEEDS) for form in (FORMS[0], FORMS[4]))
        rise.setdefault(FAMILIES[cell.task], []).append(
            statistics.fmean(100 * (ours[seed] / old[seed] - 1) for seed in NEW_SEEDS)
        )
    mean, error = mean_and_error(rise["deep linear"])
    assert mean > max(0.1, 2 * error)
    assert f"on new seeds deep linear networks rise by {mean:.2f} ± {error:.2f}%." in section()


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
