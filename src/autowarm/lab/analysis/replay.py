"""Shows replays of past runs: a table for the terminal, numbers for JSON, a figure, and a self-contained HTML page."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autowarm._torch.plotting import styled
from autowarm.logs import Replay

from .figures import encoded, grid_of
from .report import data_uri, rendered

HEADINGS = ("run", "updates", "warm-up used", "as recorded", "closed loop")


def cells(replay: Replay) -> list[str]:
    readings = [str(one or "–").replace(" by the", "") for one in (replay.recorded, replay.closed_loop)]
    return [replay.log.name, f"{replay.log.total_steps:,}", replay.used_words, *readings]


def show(replays: Sequence[Replay], console: Console) -> None:
    """Print each run's answer, then a table of the details, and the notes."""
    for replay in replays:
        console.out(f"{replay.log.name}: read as {replay.log.chosen}\n{replay.answer}\n")
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=index > 0, overflow="fold")
    for replay in replays:
        table.add_row(*map(Text, cells(replay)))
    console.print(table)
    for text in notes(replays):
        console.out(f"note: {text}")


def notes(replays: Sequence[Replay]) -> list[str]:
    """Each note, with the name of its run if there are several."""
    several = len(replays) > 1
    return [f"{one.log.name}: {text}" if several else text for one in replays for text in one.notes]


def numbers(replay: Replay) -> dict[str, Any]:
    """The result as plain numbers and text."""
    recorded, closed_loop = (
        one and {"warmup_steps": one.warmup_steps, "share": one.warmup_share, "ended_by": one.ended_by}
        for one in (replay.recorded, replay.closed_loop)
    )
    return {
        "name": replay.log.name, "total_steps": replay.log.total_steps, "used_warmup": replay.used_warmup,
        "used_at_most": replay.log.used_at_most, "read_as": replay.log.chosen, "answer": replay.answer,
        "recorded": recorded, "closed_loop": closed_loop,
        "interpolated": replay.log.interpolated, "notes": list(replay.notes),
    }  # fmt: skip


@styled
def figure(replays: Sequence[Replay]) -> Figure:
    """Draw losses above rates, one column a run, at most three in a row."""
    drawn, panels = grid_of(len(replays), 2, (4.6, 2.7))
    for axes, replay in zip(panels, replays, strict=True):
        axes[1].sharex(axes[0])
        replay.plot(axes)
        axes[0].set_title(replay.log.name, parse_math=False)
    return drawn


def html(replays: Sequence[Replay]) -> str:
    """Return a page with the table, the notes and a picture of each run."""
    return rendered(
        "replay.html.j2",
        title=f"{len(replays)} runs replayed" if len(replays) > 1 else f"{replays[0].log.name} replayed",
        headings=HEADINGS,
        rows=[cells(replay) for replay in replays],
        notes=notes(replays),
        pictures=[(replay.log.name, data_uri(encoded(figure([replay]), "svg"))) for replay in replays],
    )
