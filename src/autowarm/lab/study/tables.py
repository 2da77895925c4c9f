"""Numbers as the study's pages show them, and the one builder of their tables."""

from collections.abc import Iterable, Sequence

from ..analysis.statistics import Estimate
from .cells import PAPER, share_of

__all__ = ["percent", "plus_minus", "table", "title"]


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table.

    Example:
        >>> from autowarm.lab.study.tables import table
        >>> print(table(["task", "loss"], [["mlp", 0.7]]))
        | task | loss |
        |---|---|
        | mlp | 0.7 |
    """
    first, *others = (f"| {' | '.join(map(str, line))} |" for line in (headings, *rows))
    return "\n".join([first, "|---" * len(headings) + "|", *others])


def percent(x: float) -> str:
    """A relative difference in percent, with its sign."""
    return f"{100 * x:+.2f}"


def plus_minus(estimate: Estimate) -> str:
    """A relative difference and its standard error, in percent."""
    error = "" if estimate.stderr is None else f" ± {100 * estimate.stderr:.2f}"
    return percent(estimate.mean) + error


def title(schedule: str) -> str:
    """What a page calls a schedule; a hand-set warm-up by its length, in percent of the run.

    Example:
        >>> from autowarm.lab.study.tables import title
        >>> title("linear 0"), title("linear 0.05"), title("paper"), title("default")
        ('none', '5 %', 'Algorithm 1', 'default')
    """
    if not schedule.startswith("linear "):
        return "Algorithm 1" if schedule == PAPER else schedule
    share = share_of(schedule)
    return f"{100 * share:g} %" if share else "none"
