"""Regret as a share of progress: how a setting is judged, and what the pages say of the stored rows."""

import csv
import math
import statistics
from collections import Counter
from typing import Any

import pytest

from autowarm.lab.config import LabError
from studies.cells import DEFAULT, SEEDS, Setting
from studies.pages import insurance
from studies.pages.tables import bed_table, main_settings
from studies.plans import lag, realistic
from studies.plans.realistic import OPTIMIZERS, TEST_SEEDS, TUNING_SEED
from studies.regret import bed, judge, judged
from studies.rows import Cell, PlannedRow, Rows
from studies.statistics import Seeds
from studies.tasks import TASKS

from .conftest import DOCS, row_of, said, stored

CELL = Cell("mlp", "muon", 1000, 0.03)
SETTING = Setting(CELL, ("linear 0", "linear 0.1", "linear 0.4"), Seeds((0, 1), (10, 11)))


def row(schedule: str, seed: int, loss: float | None) -> dict[str, Any]:
    return row_of(PlannedRow("cells", CELL, schedule, seed), loss) | {
        "first_loss": 5.0, "diverged": loss is None, "warmup_steps": 100 if seed < 10 else 200,
        "ended_by": "loss" if seed else "clock",
    }  # fmt: skip


def rows_of(losses: dict[str, tuple[float | None, ...]]) -> Rows:
    return Rows(row(name, (0, 1, 10, 11)[i], x) for name, some in losses.items() for i, x in enumerate(some))


LOSSES = {
    "linear 0": (3.0, 3.0), "linear 0.1": (1.0, 1.0, 1.0, 3.0), "linear 0.4": (None, 1.0),
    DEFAULT: (0.8, 1.6, 1.3, 3.6),
}  # fmt: skip


def test_the_seeds_that_choose_give_regrets_and_others_say_how_far_the_default_is_behind() -> None:
    found = judge(rows_of(LOSSES), SETTING)
    assert found is not None
    assert found.best == "linear 0.1"
    assert found.regrets == pytest.approx({"linear 0": 50.0, "linear 0.1": 0.0, "linear 0.4": 50.0, DEFAULT: 5.0})
    # On the other seeds the progress of the best is 5 − 2 in the mean.
    assert found.behind.values == pytest.approx((10.0, 20.0))
    assert found.warmup == pytest.approx(0.15)
    assert found.ended == Counter(loss=3, clock=1)


def test_a_run_that_diverged_has_made_no_progress() -> None:
    found = judge(rows_of({**LOSSES, DEFAULT: (None, 1.0, None, 3.0)}), SETTING)
    assert found is not None
    assert found.regrets[DEFAULT] == pytest.approx(50.0)
    assert found.behind.values == pytest.approx((100.0 * (5 - 1) / (5 - 2), 0.0))


def test_a_setting_in_which_nothing_is_learnt_says_nothing() -> None:
    assert judge(rows_of({**LOSSES, **dict.fromkeys(SETTING.hand_set, (4.9, 4.9))}), SETTING) is None
    assert judge(rows_of({**LOSSES, **dict.fromkeys(SETTING.hand_set, (None, None))}), SETTING) is None


def test_a_missing_run_is_named_and_a_comparison_waits_for_all_seeds_of_the_test() -> None:
    with pytest.raises(LabError, match=r"has not been run under 'default' with the seeds \[1\]"):
        judge(rows_of({**LOSSES, DEFAULT: (0.8,)}), SETTING)
    found = judge(rows_of({**LOSSES, DEFAULT: (0.8, 1.6, 1.3)}), SETTING)
    assert found is not None
    assert found.behind is None


def test_the_bed_has_no_optimizer_until_its_runs_are_made() -> None:
    rows = stored("realistic")
    assert set(bed(rows, 4_000)) == {"muon", "lion", "adamw", "normsgd"}
    assert min(bed(rows, 4_000)["muon"].values()) <= 0.0
    assert bed(Rows(one for one in rows if one["schedule"] != "linear 0.05"), 4_000) == {}
    without = Rows(one for one in rows if (one["schedule"], one["cell"]["optimizer"]) != ("linear 0.05", "lion"))
    assert set(bed(without, 4_000)) == {"muon", "adamw", "normsgd"}
    shown = [line for line in csv.DictReader(bed_table(without).splitlines()) if line["T"] == "4,000"]
    assert {"default", "none"} <= {line["warm-up"].removeprefix("the ") for line in shown}
    assert all(line["lion"] == line["mean %"] == line["worst %"] == "–" != line["adamw"] for line in shown)


def test_every_setting_is_judged() -> None:
    found = judged(DOCS / "data", "warm-up")
    assert len({one.setting.cell for one in found}) == len(found) > 40
    assert all(one.regrets.keys() >= {"linear 0", "linear 0.1", DEFAULT} for one in found)
    assert all(len(one.behind.values) == len(SEEDS.test) for one in found if one.behind is not None)
    assert min(one.regrets[one.best] for one in found) == max(one.regrets[one.best] for one in found) == 0.0


def test_seeds_that_chose_do_not_judge() -> None:
    for choice, test in (((0, 1), (1, 2)), ((), (1,)), ((0,), ())):
        with pytest.raises(ValueError, match=r"must not judge|at least one seed"):
            Seeds(choice, test)


# What the pages say


def table(name: str) -> list[dict[str, str]]:
    with open(DOCS / "data" / "tables" / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def curves(name: str) -> tuple[str, str, list[dict[str, str]]]:
    """In the closed loop: the median share of the run, the part ended by the clock, both in percent, and all rows."""
    with open(DOCS / "data" / "curves" / f"{name}.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["closed loop"]]
    clock = sum(row["closed loop ended by"] == "clock" for row in rows) / len(rows)
    median = statistics.median(float(row["closed loop"]) for row in rows)
    return f"{100 * median:.0f}", f"{100 * clock:.0f}", rows


def test_what_the_pages_say_of_single_choices() -> None:
    lines = {line["warm-up"]: [*line.values()][1:] for line in table("regret")}
    mean, worst, *longer = lines["the default"]
    evidence, index = said("evidence.md"), said("index.md")
    assert f"default costs {mean}% of the progress in the mean and {worst}% at worst, less than any single" in evidence
    tenth = lines["10%"][0]
    falls = (
        f"the loss falls {mean}% less than under the best hand-set warm-up, in the mean; with 10% of the run everywhere"
    )
    assert f"{falls}, {tenth}% less" in index
    assert (
        f"Over all 70, the default costs {mean}%, less than any one length: 10% of the run costs {tenth}%, "
        f"40% {lines['40%'][0]}%."
    ) in said("../README.md")
    single = {name: line for name, line in lines.items() if name != "the default"}
    assert float(mean) < min(float(line[0]) for line in single.values())
    assert float(worst) < min(float(line[1]) for line in single.values())
    assert "From 4,000 updates on, 40% of the run everywhere costs a little less; at 64,000, so does 10%." in evidence
    assert 0 < float(longer[0]) - float(lines["40%"][2]) < 0.2
    assert "from 16,000 updates on, 10% is within 0.2% of the default" in said("../README.md")
    found = insurance.groups(DOCS / "data")
    for group in (found["16,000"], found["64,000"]):
        assert abs(group.difference("linear 0.1").mean) < 0.2
    for line in table("lengths")[2:]:  # T = 16,000 and 64,000
        assert abs(float(line["10%"]) - float(line["default"])) < 0.2
    for line in table("lengths")[1:]:  # T = 4,000, 16,000 and 64,000
        default, tenth, long = (float(line[name]) for name in ("default", "10%", "40%"))
        assert (long < default, tenth < default) == (True, line["T"] == "64,000")
    cells = [one.setting.cell for one in main_settings(DOCS / "data") if one.setting.cell.steps >= 1_000]
    sizes = {task: sum(p.numel() for p in TASKS[task].model().parameters()) for task in {cell.task for cell in cells}}
    thousands = sorted(round(size / 1000) for size in sizes.values())
    assert f"small models (up to {thousands[-1]},000 parameters) in {len(cells)} settings" in said("../README.md")
    assert f"The models are small ({thousands[0]},000 to {thousands[-1]},000 parameters)" in evidence
    assert f"there is one LLaMA of {round(sizes['llama-bytes'] / 1000)},000, in the main table on one seed" in evidence
    assert {cell.task for cell in cells if cell.steps >= 16_000} == {"llama-bytes"}
    medians = (
        f"in the median setting it costs {lines['the default'][6]}%, and 40% from lr/10 {lines['40% from lr/10'][6]}%"
    )
    assert medians in evidence
    heading = next(key for key in table("regret")[0] if "1,000: " in key)
    settings = heading.removeprefix("T ≥ 1,000: ").split()[0]
    assert f"In each of {settings} settings" in evidence


def test_what_the_page_says_of_the_settings_that_need_a_warm_up() -> None:
    need, hardly, *_ = insurance.groups(DOCS / "data").values()
    (tenth, worst), (default, other) = (
        (f"{statistics.fmean(need.costs(name)):.1f}", f"{max(need.costs(name)):.1f}")
        for name in ("linear 0.1", DEFAULT)
    )
    little = [f"{statistics.fmean(hardly.costs(name)):.2f}%" for name in (DEFAULT, "linear 0.1")]
    every = len(need.regrets) + len(hardly.regrets)
    assert (
        f"In the {len(need.regrets)} of our {every} settings that need a warm-up, 10% of the run costs {tenth}% of the "
        f"progress in the mean and {worst}% at worst, the default {default} and {other}%. In the other "
        f"{len(hardly.regrets)}, the default costs {little[0]} and 10% {little[1]}."
    ) in said("evidence.md")
    less = -insurance.groups(DOCS / "data")[insurance.UNSEEN].difference("linear 0.1").mean
    assert f"On unseen tasks, 10% costs {less:.2f}% less." in said("../README.md")


def test_what_the_page_says_of_the_worst_setting_on_other_seeds() -> None:
    tested = {one.setting.cell: one.behind for one in insurance.long_settings(DOCS / "data") if one.behind is not None}
    worst, next_worst = sorted(tested, key=lambda cell: -tested[cell].mean)[:2]
    assert (worst.task, worst.optimizer) == ("swin", "adamw")
    assert (
        f"On other seeds, a Swin under AdamW is {tested[worst].mean:.1f} ± {tested[worst].stderr:.1f}% behind, and no "
        f"other setting more than {tested[next_worst].mean:.1f}%."
    ) in said("evidence.md")


def test_what_the_page_says_of_the_length_at_scale() -> None:
    how, rows = said("how-it-works.md"), stored("lag")
    assert lag.bound(rows) == 250
    lines = {line["T"]: line["% of T (quartiles)"].split()[0] for line in table("scale")}
    shares = {line["T"]: float(line["of it the average's lag, %"]) for line in table("scale")[2:]}
    costs = [lag.costs(rows, cell)[lag.SHORT] for steps in lag.LENGTHS for cell in lag.settings(steps)]
    bare = lag.unclipped(rows, stored("horizon"))
    for sentence in (
        f"about {float(lines['1,000']):.0f}% of 1,000 updates, {float(lines['4,000']):.0f}% of 4,000, "
        f"{lines['16,000']}% of 16,000 and {lines['64,000']}% of 64,000",
        f"of which {min(shares.values()):.0f} and {max(shares.values()):.0f}% are the lag of the average",
        f"An average over 250 updates costs {-statistics.fmean(costs):.2f}% of the progress less in the mean of "
        f"{len(costs)} settings with clipping, but without it {bare['lion', lag.SHORT]:.1f} (Lion) and "
        f"{bare['adamw', lag.SHORT]:.1f}% (AdamW) more",
        f"over 500 updates, {bare['lion', 'average 500']:.1f} and {bare['adamw', 'average 500']:.1f}%",
    ):
        assert sentence in how


def test_what_the_pages_say_of_public_curves() -> None:
    (median, clock, rows), (other_median, other_clock, _) = curves("default"), curves("share-0.31")
    (_, calibrated, _) = curves("calibrated")
    evidence, how = said("evidence.md"), said("how-it-works.md")
    others = ("Shampoo", "SOAP", "scion")  # of the spectral norm, too
    muon = [row for row in rows if row["optimizer"] == "spectral" and not any(one in row["name"] for one in others)]
    shapes = Counter(row["rates"] for row in rows)
    of_all, of_long = (
        f"{100 * statistics.median(float(row['closed loop']) for row in muon if int(row['T']) >= least):.0f}"
        for least in (0, 5_000)
    )
    for sentence in (
        f"{len(rows)} curves of public training runs in a closed loop ({shapes['recorded']} record their rates, for "
        f"{shapes['assumed']} we assumed the usual shape).",
        f"The clock would end {clock}% of the warm-ups. The median warm-up would take {median}% of the run",
        f"Under Muon ({len(muon)} curves) it would take {of_all}%, and {of_long}% in runs of 5,000 updates and more; "
        "most authors used none.",
        f"would then end {other_clock}% of the public loss curves, and the median warm-up would take {other_median}%",
    ):
        assert sentence in evidence
    ended = f"would end {calibrated}% of the warm-ups on [public loss curves](evidence.md#on-public-loss-curves)"
    assert f"{ended}; by default it ends {clock}%" in how
    assert sum(float(row["people"]) == 0 for row in muon) > len(muon) / 2
    assert int(clock) <= 10
    assert 2 <= int(median) <= 12
    assert max(float(row["closed loop"]) for row in rows if int(row["T"]) >= 10_000) <= 0.2


def test_what_the_table_of_claims_says_of_the_rows() -> None:
    claims = (DOCS / "data" / "tables" / "claims.csv").read_text(encoding="utf-8")
    rows = Rows([one for name in ("warm-up", "horizon") for one in stored(name)])
    algorithm_1 = next(line for line in table("regret") if line["warm-up"] == "Algorithm 1")
    long, longest = ([*algorithm_1.values()][i] for i in (1, 5))
    assert f"mean regret is {long}% from 1,000 updates on and {longest}% from 16,000 on" in claims
    paper = [one for one in rows if one["schedule"] == "paper" and one["cell"]["steps"] < 16_000]
    never = sum(one["ended_by"] is None for one in paper)
    assert f"; {never} of its {len(paper)} shorter runs never leave warm-up" in claims
    lion = [one for one in rows if (one["cell"]["optimizer"], one["part"]) == ("lion", "cells")]
    short = [one for one in lion if one["schedule"] in ("linear 0", "linear 0.02")]
    diverged = sum(one["diverged"] for one in short)
    assert f"{diverged} of {len(short)} runs with a warm-up of at most 2% diverged" in claims
    vision = next(line for line in table("kinds") if line["task"] == "vision")
    assert f"mean regret is {vision['default']}%, 10% of the run costs {vision['10%']}%" in claims


def test_what_the_page_says_of_tasks_that_the_rule_had_not_seen() -> None:
    regrets = [one.regrets for one in judged(DOCS / "data", "fresh")]
    names = (DEFAULT, "linear 0.1", "linear 0", "linear 0.4")
    default, tenth, none, long = (f"{statistics.fmean(one[name] for one in regrets):.2f}" for name in names)
    assert (
        f"In the mean over these {len(regrets)} settings, the default costs {default}% of the progress, 10% {tenth}%, "
        f"40% {long}% and no warm-up {none}%."
    ) in said("evidence.md")
    last = insurance.groups(DOCS / "data")[insurance.LAST]
    default, tenth, none = (
        f"{statistics.fmean(last.costs(name)):.2f}% and {max(last.costs(name)):.1f}%" for name in names[:3]
    )
    flow = [one for one in judged(DOCS / "data", "unseen") if one.setting.cell.task == "flow"]
    assert all([*one.ended] == ["clock"] for one in flow)
    assert (
        f"Over these {len(last.regrets)} settings, the default costs {default} at worst, 10% {tenth}, no warm-up "
        f"{none}. In flow matching, whose loss hardly falls, the clock ends the warm-up, at a cost of "
        f"{statistics.fmean(one.regrets[DEFAULT] for one in flow):.1f}%."
    ) in said("evidence.md")


def test_what_the_pages_say_of_runs_as_people_train() -> None:
    rows = stored("realistic")
    for steps, others, seeds in ((4_000, 7, TEST_SEEDS), (16_000, 5, TEST_SEEDS), (64_000, 5, [TUNING_SEED])):
        found = bed(rows, steps, seeds)
        assert [*found] == [*OPTIMIZERS]
        hand_set = realistic.hand_set(steps)
        assert len(hand_set) == others
        costs = {name: statistics.fmean(one[name] for one in found.values()) for name in (DEFAULT, *hand_set)}
        assert min(costs, key=costs.__getitem__) == DEFAULT
        next_best = min(hand_set, key=costs.__getitem__)
        more = [one[next_best] - one[DEFAULT] for one in found.values()]
        assert statistics.fmean(more) < 1.5 * statistics.stdev(more) / math.sqrt(len(more))  # "within the noise"
    assert "The default costs least at every length, within the noise." in said("evidence.md")
