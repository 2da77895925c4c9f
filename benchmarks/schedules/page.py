"""The page of all cells, and the picture of it: everything in them is computed from `results/`."""

import math
from pathlib import Path

import evidence
from cells import HAND_SET, SELECTION_SEEDS, cells
from evidence import percent, share_name
from run import OPTIMIZERS, run
from studies import sections
from tasks import TASKS
from verdict import TOLERANCE, Verdict, best_share

__all__ = ["text", "write"]

DOCS = Path(__file__).parents[2] / "docs"

_INTRODUCTION = Path(__file__).with_name("schedules.template.md")


def write() -> None:
    """Write the page and its two pictures."""
    verdicts = evidence.judged()
    _draw(verdicts, DOCS / "figures" / "schedules.png")
    _draw_runs(DOCS / "figures" / "warming-up.png")
    (DOCS / "schedules.md").write_text(text(verdicts))


def text(verdicts: list[Verdict]) -> str:
    """The page."""
    taught = [v for v in verdicts if v.learnt]
    facts = evidence.headline(taught)
    introduction = _INTRODUCTION.read_text().format(
        **{**facts, **{key: percent(facts[key]) for key in ("mean", "mean_counted", "median")}},
        planned=len(cells()),
        finished=len(verdicts),
        untaught=len(verdicts) - len(taught),
        selection=SELECTION_SEEDS,
        tolerance=100 * TOLERANCE,
        hours=evidence.hours(verdicts),
    )
    lines = introduction.splitlines()
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
    if left := [f"`{cell.name}`" for cell in cells() if cell not in {v.cell for v in verdicts}]:
        lines += ["", f"Not finished (each run of them takes half a minute and more): {', '.join(left)}."]
    lines += ["", *_worse([v for v in taught if v.difference > 0.01])]
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
        fstar = 0.95 * min(best_share(evidence.CELLS, cell)[1].values())
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
