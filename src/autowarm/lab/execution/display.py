"""What a comparison looks like while it runs: a live table in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..config import printable


@dataclass
class _Run:
    steps: int
    began: int = -1  # step at the first news, so that a resumed run's rate counts only new steps
    began_at: float = 0.0
    step: int = 0
    loss: float = float("nan")
    lr: float = float("nan")

    def eta(self, now: float) -> str:
        done = self.step - self.began
        return duration((now - self.began_at) / done * (self.steps - self.step)) if done > 0 else "–"


class Display:
    """Follows a comparison. As a context manager it owns the live part of the screen.

    Args:
        console: where to; its `is_terminal` decides between the live table and plain lines.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.runs: dict[str, _Run] = {}
        self.active: list[str] = []
        self.done = self.total = 0
        self.started = time.monotonic()
        self.first_news: float | None = None
        self.message = ""
        self.reasons: set[str] = set()
        self.live: Live | None = None
        if self.console.is_terminal:
            self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def note(self, message: str) -> None:
        """Says what is going on apart from runs."""
        self.message = message
        if not self.live:
            self._line(message)

    def begin(self, runs: Sequence[tuple[str, int]], done: int, workers: int) -> None:
        """The runs to be made, as (label, steps), beside those that are done already."""
        self.runs = {label: _Run(steps) for label, steps in runs}
        self.done, self.total = done, done + len(runs)
        self.started = time.monotonic()
        already = f", {done} already finished" if done else ""
        self.note(f"{self.total} runs{already}; {workers} side by side" if runs else f"all {done} runs are finished")

    def update(self, label: str, step: int, loss: float, lr: float, seconds: float) -> None:
        """News of a run at work."""
        run, now = self.runs[label], time.monotonic()
        if run.began < 0:
            run.began, run.began_at = step, now
            self.active.append(label)
            if not self.first_news:
                self.first_news = now
        run.step, run.loss, run.lr = step, loss, lr

    def finish(self, label: str, result: Mapping[str, Any]) -> None:
        """A run is through."""
        self._close(label)
        outcome = "diverged" if result["diverged"] else f"val loss {result['val_loss']:.4f}"
        text = f"[{self.done}/{self.total}] {label}  {outcome}  warm-up {result['warmup_steps']}"
        if not self.live:
            self._line(f"{text}  {result['seconds']:.0f} s  ETA {self.eta()}")

    def fail(self, label: str, message: str) -> None:
        """A run ended in an error. A reason that several share is told once."""
        self._close(label)
        told = "likewise" if message in self.reasons else message
        self.reasons.add(message)
        self._line(f"[{self.done}/{self.total}] {label}  failed: {told}")

    def eta(self) -> str:
        """Time to the end of all runs, from the steps made since the first worker was ready."""
        made = sum(run.step - max(run.began, 0) for run in self.runs.values())
        left = sum(run.steps - run.step for run in self.runs.values())
        if not self.first_news or not made:
            return "–"
        return duration((time.monotonic() - self.first_news) * left / made)

    def _close(self, label: str) -> None:
        run = self.runs[label]
        run.began, run.step = max(run.began, 0), run.steps
        self.done += 1
        if label in self.active:
            self.active.remove(label)

    def _line(self, text: str) -> None:
        self.console.print(printable(text), markup=False, soft_wrap=True)
        if not self.live:
            sys.stdout.flush()

    def _render(self) -> Group:
        now = time.monotonic()
        table = Table(box=None, pad_edge=False, expand=False)
        for name, justify in (("run", "left"), ("", "left"), ("step", "right"), ("loss", "right"),
                              ("rate", "right"), ("ETA", "right")):  # fmt: skip
            table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for label in list(self.active):  # drawn by a thread of its own
            run = self.runs[label]
            table.add_row(
                Text(printable(label)), ProgressBar(run.steps, run.step, width=16), f"{run.step}/{run.steps}",
                f"{run.loss:.3f}", f"{run.lr:.2e}", run.eta(now),
            )  # fmt: skip
        if self.total:
            made = self.done + sum(self.runs[label].step / self.runs[label].steps for label in list(self.active))
            table.add_row(
                "all runs", ProgressBar(self.total, made, width=16), f"{self.done}/{self.total}", "", "",
                self.eta(), style="bold",
            )  # fmt: skip
        words = f"{self.message} · {duration(now - self.started)} so far · Ctrl-C keeps what is done"
        return Group(table, Text(words, style="dim"))


def duration(seconds: float) -> str:
    """2:05, or 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
