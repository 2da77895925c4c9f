"""The page of all cells, and the picture of it: everything in them is computed from `results/`."""

import math
import statistics
from pathlib import Path

from cells import HAND_SET, SELECTION_SEEDS, cells
from evidence import percent, share_name
from run import OPTIMIZERS, run
from store import rows
from studies import sections
from tasks import TASKS
from verdict import TOLERANCE, Verdict, best_share, compared, judge

__all__ = ["summary", "write"]

DOCS = Path(__file__).parents[2] / "docs"

_INTRODUCTION = Path(__file__).with_name("schedules.template.md")


def summary(verdicts: list[Verdict]) -> dict[str, object]:
    """What the whole bed says."""
    counted = [v for v in verdicts if v.counted]
    return {
        "cells": len(verdicts),
        "counted": len(counted),
        "passed": sum(v.passed for v in counted),
        "passed_all": sum(v.difference <= max(2 * v.stderr, TOLERANCE) for v in verdicts),
        "mean_difference": statistics.fmean(v.difference for v in verdicts),
        "mean_difference_counted": statistics.fmean(v.difference for v in counted),
        "median_difference": statistics.median(v.difference for v in verdicts),
        "regret": {key: statistics.fmean(v.regret[key] for v in verdicts) for key in (*HAND_SET, "default")},
        "over_one_percent": [v for v in verdicts if v.difference > 0.01],
        "unfinished": sum(v.unfinished for v in verdicts),
        "lost": [v for v in verdicts if v.diverged and math.isfinite(v.hand[0.2])],
        "hours": sum(row["seconds"] for v in verdicts for row in rows(_folder(), v.cell).values()) / 3600,
    }


def _folder() -> Path:
    return Path(__file__).parent / "results" / "cells"


def write() -> None:
    verdicts = [judge(_folder(), cell) for cell in cells() if compared(_folder(), cell)]
    taught = [v for v in verdicts if v.learnt]
    facts = summary(taught) | {"planned": len(cells()), "finished": len(verdicts)}
    facts["untaught"] = len(verdicts) - len(taught)
    left = [f"`{cell.name}`" for cell in cells() if not compared(_folder(), cell)]
    facts["unfinished_cells"] = ", ".join(left)
    _draw(verdicts, DOCS / "figures" / "schedules.png")
    _draw_runs(DOCS / "figures" / "warming-up.png")
    (DOCS / "schedules.md").write_text(_page(verdicts, facts))


def _page(verdicts: list[Verdict], facts: dict) -> str:
    lines = (
        _INTRODUCTION.read_text()
        .format(
            cells=facts["cells"],
            planned=facts["planned"],
            finished=facts["finished"],
            untaught=facts["untaught"],
            selection=SELECTION_SEEDS,
            counted=facts["counted"],
            passed=facts["passed"],
            part=100 * facts["passed"] / facts["counted"],
            passed_all=facts["passed_all"],
            tolerance=100 * TOLERANCE,
            mean=percent(facts["mean_difference"]),
            mean_counted=percent(facts["mean_difference_counted"]),
            median=percent(facts["median_difference"]),
            unfinished=facts["unfinished"],
            lost=len(facts["lost"]),
            hours=facts["hours"],
            shares=" | ".join([*(share_name(s) for s in HAND_SET), "default"]),
            rule="---|" * (len(HAND_SET) + 1),
            regrets=" | ".join(f"{100 * x:.2f} %" for x in facts["regret"].values()),
        )
        .splitlines()
    )
    shares = " | ".join(share_name(s) for s in HAND_SET)
    lines += [
        f"| cell | {shares} | default − best, % | | warm-up | Algorithm 1, % |",
        "|---|" + "---|" * (len(HAND_SET) + 4),
    ]
    for v in verdicts:
        hand = {share: f"{x:.4g}" if math.isfinite(x) else "—" for share, x in v.hand.items()}
        hand[v.best] = f"**{hand[v.best]}**"
        mark = ("pass" if v.passed else "FAIL") if v.counted else "not counted" if v.learnt else "nothing learnt"
        paper = "" if v.paper is None else percent(v.paper)
        difference = f"{percent(v.difference)} ± {100 * v.stderr:.2f} ({v.seeds})"
        row = [f"`{v.cell.name}`", *hand.values(), difference, mark, f"{100 * v.warmup:.0f} %", paper]
        lines.append("| " + " | ".join(row) + " |")
    if facts["unfinished_cells"]:
        lines += [
            "",
            "Not finished (each run of them takes half a minute and more): " + facts["unfinished_cells"] + ".",
        ]
    lines += ["", *_worse(facts["over_one_percent"])]
    lines += sections()
    lines += ["", "## Tasks", ""]
    lines += [f"- `{name}`: {task.about}" for name, task in TASKS.items()]
    return "\n".join(lines) + "\n"


def _worse(verdicts: list[Verdict]) -> list[str]:
    """The cells that are more than 1 % worse, beside what a hand-set warm-up of about the same length costs there."""
    lines = [
        "## More than 1 % worse",
        "",
        "If a hand-set ramp of about the length that the default took is as much worse, the length is the cause: the",
        "cell wants the peak sooner than a start at lr/10 gets there. Where the standard error is several per cent,",
        "nothing is known.",
        "",
        "| cell | default − best, % | its warm-up | the nearest hand-set length, % worse |",
        "|---|---|---|---|",
    ]
    for v in verdicts:
        near = min(HAND_SET, key=lambda share: abs(share - v.warmup))
        lines.append(
            f"| `{v.cell.name}` | {percent(v.difference)} ± {100 * v.stderr:.2f} | {100 * v.warmup:.0f} % | "
            f"{share_name(near)}: {percent(v.regret[near])} |"
        )
    return lines


def _draw(verdicts: list[Verdict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, ax = plt.subplots(figsize=(7.5, 11), layout="constrained")
    colours = dict(zip(OPTIMIZERS, plt.get_cmap("tab10").colors, strict=False))
    ordered = sorted(verdicts, key=lambda v: v.difference)
    for y, v in enumerate(ordered):
        x, e = 100 * v.difference, 200 * v.stderr
        shown = max(-20.0, min(20.0, x))
        mark = "o" if v.counted else "x"
        ax.errorbar(shown, y, xerr=min(e, 20), fmt=mark, color=colours[v.cell.optimizer], ms=4, lw=1)
    ax.axvline(0, color="black", lw=0.8)
    ax.axvspan(-100 * TOLERANCE, 100 * TOLERANCE, color="black", alpha=0.08)
    ax.set_yticks(range(len(ordered)), [v.cell.name for v in ordered], fontsize=6)
    ax.set_xlim(-21, 21)
    ax.set_ylim(-1, len(ordered))
    ax.set_xlabel("held-out loss: default − best hand-set warm-up, %\n(± 2 standard errors)")
    for name, colour in colours.items():
        ax.plot([], [], "o", color=colour, label=name)
    ax.plot([], [], "x", color="grey", label="standard error > 0.5 %: not counted")
    ax.legend(loc="lower right", fontsize=8)
    path.parent.mkdir(exist_ok=True)
    fig.savefig(path, dpi=130)
    plt.close(fig)


def _draw_runs(path: Path) -> None:
    """One seed of three cells: the rates that came of the default, of a hand-set ramp and of Algorithm 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = ("factor.lion.200.0.003", "mlp.adamw.1000.0.01", "lm-small.signsgd.200.0.003")
    chosen = [next(cell for cell in cells() if cell.name == name) for name in names]
    fig, axes = plt.subplots(2, len(chosen), figsize=(10, 5), layout="constrained", sharex="col")
    for (above, below), cell in zip(axes.T, chosen, strict=True):
        fstar = 0.95 * min(best_share(_folder(), cell)[1].values())
        for name, label in (("default", "default"), ("linear 0.1", "hand-set, 10 %"), ("paper", "Algorithm 1")):
            curve: list[tuple[float, float]] = []
            row = run(cell, name, 0, fstar, curve=curve)
            rates, losses = zip(*curve, strict=True)
            (line,) = above.plot(rates, label=label, lw=1.3)
            below.plot(losses, color=line.get_color(), lw=0.8)
            if name == "default":
                above.axvline(row["warmup_steps"], color=line.get_color(), lw=0.8, ls=":")
                above.set_title(f"{cell.name}\nended by the {row['ended_by']}", fontsize=9)
        below.set_yscale("log")
        below.set_xlabel("update")
    axes[0, 0].set_ylabel("rate / peak rate")
    axes[1, 0].set_ylabel("training loss")
    axes[0, 0].legend(fontsize=8)
    fig.savefig(path, dpi=120)
    plt.close(fig)
