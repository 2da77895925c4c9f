"""The paper's claims beside what was measured here: one table, its numbers computed from the results."""

import statistics

from cells import HAND_SET, RESULTS, SELECTION_SEEDS
from evidence import CELLS, batch_pairs, percent, share_name
from run import Cell
from store import rows
from studies import FORMS, STUDY_SEEDS, TARGETS, adaptive_of, cheap, form_cells, form_difference
from verdict import DEFAULT, Verdict, loss_of

__all__ = ["claims"]


def claims(found: list[Verdict]) -> list[str]:
    """Lines of the table."""
    table = [
        (
            "Curvature falls with the gap along a run, as K0 + K1Δ + K2Δ²",
            "figures for three optimizers at 124M",
            "During warm-up it does, for Lion, Muon and normSGD. After it K does not depend on the gap (Lion) or rises "
            "as the gap falls (Muon, normSGD): [smoothness](smoothness.md)",
            "LLaMA of 0.17 M, 600 steps",
            "in warm-up alone",
        ),
        (
            "Warm-up, then decay, follows from that: Theorems 1–3",
            "proofs",
            "Every bound held at every step of every run on problems with proved constants; three corrections to "
            "statements, none to the conclusion: [theory](theory.md)",
            "15 problems",
            "yes",
        ),
        (
            "Algorithm 1 matches or beats the best hand-set warm-up, with no search, in every configuration",
            "two sizes × two batches × three optimizers, Swin-B",
            _algorithm_1(found),
            "runs of 200 to 4000 steps",
            "no, at this scale",
        ),
        (
            "Any reasonable f\\* will do: 3.0 to 4.0 where runs end at 3.5; 0 and 5 are worse",
            "Muon, 124M, batch 32",
            _targets(),
            "cells of seconds; the default's rule",
            "yes, for our rule",
        ),
        (
            "σ_F² may be anything over two orders",
            "Muon, 124M, batch 32",
            _variance(),
            "cells of seconds; the default's rule",
            "yes, for our rule",
        ),
        (
            "All six forms of schedule gain",
            "Muon, 124M, batch 32",
            _forms(),
            "runs of 200 steps by Muon and Lion",
            "with cosine and linear decays; level under wsd and wso",
        ),
        (
            "Lion diverges under a warm-up that is too short; the adaptive one avoids it",
            "Lion, batch 32",
            _lion(found),
            "all Lion cells",
            "nothing diverges here",
        ),
        (
            "At the larger batch the length of warm-up matters less",
            "batch 32 against 256",
            _batch(found),
            "LLaMA and Swin of 200 steps",
            "no, at this scale",
        ),
        (
            "The same at both sizes",
            "124M and 210M",
            _sizes(found),
            "0.1, 0.6 and 5 M, 200 steps",
            "yes, for our rule",
        ),
        (
            "It carries over to vision",
            "Swin-B, ImageNet, Muon",
            _task(found, ("swin", "swin-x8", "vit")),
            "Swin and ViT on 8×8 digits",
            "within wide errors",
        ),
        (
            "div = 100",
            "all but normSGD",
            f"{_part('div=100')} against our 10, in the mean of {len(_studied('parts'))} cells",
            "cells of seconds",
            "10 is better here",
        ),
    ]
    lines = ["| the paper claims | shown there by | measured here | scale here | agrees |", "|---|---|---|---|---|"]
    return lines + [f"| {' | '.join(row)} |" for row in table]


def _algorithm_1(found: list[Verdict]) -> str:
    told = [v for v in found if v.paper is not None]
    known = [rows(CELLS, v.cell)["paper", seed] for v in told for seed in SELECTION_SEEDS]
    stuck = sum(row["ended_by"] is None for row in known)
    level = sum(v.paper <= 0.005 for v in told if v.paper is not None)
    mean = statistics.fmean(v.paper for v in told if v.paper is not None)
    return (
        f"Told an f\\* just below the best loss of any run, it regrets {100 * mean:.0f} % in the mean; {stuck} of "
        f"{len(known)} runs never leave warm-up; within 0.5 % of the best hand-set length in {level} of {len(told)} "
        f"cells. Our default: {percent(statistics.fmean(v.difference for v in found))} %"
    )


def _studied(study: str) -> dict[Cell, dict]:
    """Of the cheap cells those for which the study has the default on all its seeds."""
    found = {c: rows(RESULTS / study, c) for c in cheap()}
    return {c: known for c, known in found.items() if all((DEFAULT, seed) in known for seed in STUDY_SEEDS)}


def _change(study: str, part: str) -> float:
    changes = []
    for known in _studied(study).values():
        ours = statistics.fmean(loss_of(known[DEFAULT, seed]) for seed in STUDY_SEEDS)
        if all((f"{DEFAULT} {part}", seed) in known for seed in STUDY_SEEDS):
            losses = (min(loss_of(known[f"{DEFAULT} {part}", seed]), 2 * ours) for seed in STUDY_SEEDS)
            changes.append(statistics.fmean(losses) / ours - 1)
    return statistics.fmean(changes)


def _part(part: str) -> str:
    return f"{percent(_change('parts', part))} %"


def _targets() -> str:
    each = ", ".join(f"{share:g}: {percent(_change('targets', f'fstar={share:g}'))} %" for share in TARGETS)
    return (
        f"f\\* in parts of the first loss, against the default's 0.3, mean of {len(_studied('targets'))} cells: {each}"
    )


def _variance() -> str:
    return f"Against the default's 10³: 10² {_part('sigma_f2=1e2')}, 10⁴ {_part('sigma_f2=1e4')}"


def _forms() -> str:
    each = []
    for form in FORMS:
        mean = statistics.fmean(form_difference(c, form)[0] for c in form_cells())
        each.append(f"{form[0]}–{form[1]} {percent(mean)} %")
    shown = ", ".join(each)
    ours = len(form_cells())
    return f"The default against the best hand-set length of each form, mean of {ours} cells: {shown}" + (
        f" (wsd and wso as `{adaptive_of('linear', 'wsd').rsplit(' ', 1)[1]}`)"
    )


def _lion(found: list[Verdict]) -> str:
    some = [v for v in found if v.cell.optimizer == "lion"]
    grid = [
        rows(CELLS, v.cell)[name, seed]["diverged"]
        for v in some
        for share, name in HAND_SET.items()
        if share <= 0.02
        for seed in SELECTION_SEEDS
    ]
    regret = {share: statistics.fmean(v.regret[share] for v in some) for share in (0.0, 0.02)}
    shown = " and ".join(f"{share_name(share)}: {percent(x)} %" for share, x in regret.items())
    return (
        f"{sum(grid)} of {len(grid)} runs with a warm-up of at most 2 % diverged; regret in the mean of {len(some)} "
        f"cells {shown}; the default {percent(statistics.fmean(v.regret['default'] for v in some))} %"
    )


def _batch(found: list[Verdict]) -> str:
    spreads = [(small, big) for _, _, small, big in batch_pairs(found)]
    small, large = (100 * statistics.median(column) for column in zip(*spreads, strict=True))
    less = sum(b < a for a, b in spreads)
    return (
        f"From the best length to the worst: {small:.1f} % with the small batch, {large:.1f} % with the large (medians "
        f"of {len(spreads)} pairs; less in {less} of them)"
    )


def _sizes(found: list[Verdict]) -> str:
    each = []
    for task in ("lm-small", "lm-middle", "lm-large"):
        some = [
            v for v in found if v.cell.task == task and v.cell.steps == 200 and v.cell.optimizer in ("muon", "lion")
        ]
        each.append(f"{task} {percent(statistics.fmean(v.difference for v in some))} %")
    return "Default against the best hand-set, Muon and Lion: " + ", ".join(each)


def _task(found: list[Verdict], tasks: tuple[str, ...]) -> str:
    some = [v for v in found if v.cell.task in tasks]
    return (
        f"Default against the best hand-set, mean of {len(some)} cells: "
        f"{percent(statistics.fmean(v.difference for v in some))} %; median standard error "
        f"{100 * statistics.median(v.stderr for v in some):.1f} %"
    )
