"""docs/evidence.md, its picture, and the headline of README.md: everything in them is computed from `results/`."""

import textwrap
from pathlib import Path

import evidence
from cells import HAND_SET, SELECTION_SEEDS
from claims import claims
from evidence import percent
from run import OPTIMIZERS
from verdict import TOLERANCE, Verdict

__all__ = ["texts", "write_proof"]

DOCS = Path(__file__).parents[2] / "docs"
_MARKS = ("<!-- by benchmarks/schedules proof -->", "<!-- end -->")

_HEADLINE = """
{cells} cells: tasks × optimizers × batches × horizons × peak rates, the list fixed before the first adaptive run. The
default against the best of six hand-set linear warm-ups (none to 40 % of the run), chosen on some seeds and compared
on others: **{mean_counted} %** in the mean of the {counted} comparisons with a standard error of at most
{tolerance:g} % (below zero the default is better), {passed} of which are no worse than that or than two standard
errors; {mean} % in the mean of all. The best single share used everywhere, {share}, regrets {least:.2f} % against the
best of each cell; the default {ours:.2f} %.
"""

_PAGE = Path(__file__).with_name("evidence.template.md")


def write_proof() -> None:
    """Write the page, the picture and the headline."""
    page, headline = texts()
    _draw([v for v in evidence.judged() if v.learnt], DOCS / "figures" / "evidence.png")
    (DOCS / "evidence.md").write_text(page)
    readme = DOCS.parent / "README.md"
    before, _, rest = readme.read_text().partition(_MARKS[0])
    if not rest:
        raise SystemExit(f"README.md has no line {_MARKS[0]!r}")
    readme.write_text(f"{before}{_MARKS[0]}\n{headline}\n{_MARKS[1]}{rest.partition(_MARKS[1])[2]}")


def texts() -> tuple[str, str]:
    """The page and the headline."""
    judged = evidence.judged()
    found, untaught = [v for v in judged if v.learnt], [v for v in judged if not v.learnt]
    return _page(found, untaught), _headline(found)


def _headline(found: list[Verdict]) -> str:
    facts, regret = evidence.headline(found), evidence.regrets(found)
    hand = {share: regret[evidence.share_name(share)] for share in HAND_SET}
    share = min(hand, key=lambda share: hand[share])
    text = _HEADLINE.format(
        **{**facts, **{key: percent(facts[key]) for key in ("mean", "mean_counted")}},
        tolerance=100 * TOLERANCE,
        share=evidence.share_name(share),
        least=100 * hand[share],
        ours=100 * regret["default"],
    )
    return textwrap.fill(" ".join(text.split()), 120)


def _page(found: list[Verdict], untaught: list[Verdict]) -> str:
    facts, regret = evidence.headline(found), evidence.regrets(found)
    more_cells, more = evidence.more_shares(found)
    fresh = [v for v in found if v.cell.task.split("-")[0] in ("llama", "swin")]
    return _PAGE.read_text().format(
        **{**facts, **{key: percent(facts[key]) for key in ("mean", "mean_counted", "median")}},
        **evidence.significant(found),
        tolerance=100 * TOLERANCE,
        names=", ".join(f"`{v.cell.name}`" for v in untaught),
        hours=evidence.hours([*found, *untaught]),
        by_kind="\n".join(evidence.by_kind(found)),
        sweep=len(HAND_SET) * len(SELECTION_SEEDS),
        lengths=len(HAND_SET),
        regrets=_row(regret),
        more_cells=more_cells,
        more=_row(more),
        peers="\n".join(evidence.peers(found)),
        batches="\n".join(evidence.batch_spread(found)),
        claims="\n".join(claims(found)),
        fresh=percent(sum(v.difference for v in fresh) / len(fresh)),
        fresh_cells=len(fresh),
    )  # fmt: skip


def _row(values: dict[str, float]) -> str:
    """A table of one row."""
    numbers = " | ".join(f"{100 * x:.2f} %" for x in values.values())
    return f"| {' | '.join(values)} |\n{'|---' * len(values)}|\n| {numbers} |"


def _draw(found: list[Verdict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(1, 1.4))
    regret = {name: x for name, x in evidence.regrets(found).items() if name != "Algorithm 1"}
    bars = left.bar(list(regret), [100 * x for x in regret.values()], color="tab:gray")
    bars[-1].set_color("tab:blue")
    left.bar_label(bars, fmt="%.1f", fontsize=8)
    left.set_ylabel("mean regret, %")
    left.set_title("one warm-up for all cells, against the best of six in each", fontsize=9)
    left.tick_params(labelsize=8)

    colours = dict(zip(OPTIMIZERS, plt.get_cmap("tab10").colors, strict=False))
    limit = 8.0
    for x, v in enumerate(sorted(found, key=lambda v: v.difference)):
        y = max(-limit, min(limit, 100 * v.difference))
        right.errorbar(x, y, yerr=min(200 * v.stderr, limit), fmt="o" if v.counted else "x",
                       color=colours[v.cell.optimizer], ms=4, lw=0.8)  # fmt: skip
    right.axhline(0, color="black", lw=0.8)
    right.axhspan(-100 * TOLERANCE, 100 * TOLERANCE, color="black", alpha=0.08)
    right.set_ylim(-1.1 * limit, 1.1 * limit)
    right.set_xticks([])
    right.set_xlabel(f"{len(found)} cells, sorted")
    right.set_ylabel("held-out loss: default − best hand-set, %")
    for name, colour in colours.items():
        right.plot([], [], "o", color=colour, label=name)
    right.plot([], [], "x", color="grey", label="standard error > 0.5 %")
    right.legend(loc="lower right", fontsize=8)
    right.set_title("below zero the default is better (± 2 standard errors)", fontsize=9)
    fig.savefig(path, dpi=130)
    plt.close(fig)
