"""Shows a comparison's progress: a live bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn

from ..config import printable

_QUIET = 20.0  # seconds without a line, where no bar moves


class Display:
    """The progress of a comparison; `progress` is the context in which it owns the live part of a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(16), MofNCompleteColumn(),
            TextColumn("{task.fields[news]}", markup=False), TextColumn("ETA"), TimeRemainingColumn(compact=True),
            console=self.console, transient=True, refresh_per_second=4, disable=not self.console.is_terminal,
            speed_estimate_period=1e9, get_time=lambda: time.monotonic(),
        )  # fmt: skip
        self.progress.add_task("", total=None, news="")
        self.bar: Task = self.progress.tasks[0]
        self.steps: dict[str, int] = {}  # of each run
        self.made: dict[str, int] = {}  # of these, by the runs that have begun
        self.done = self.total = 0
        self.spoken = time.monotonic()  # when there was a line
        self.reasons: set[str] = set()

    def note(self, message: str) -> None:
        self.progress.update(self.bar.id, description=f"{message} · Ctrl-C keeps what is done")
        if not self.console.is_terminal:
            self.line(message)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self.spoken = time.monotonic()
        self.console.out(printable(text))

    def begin(self, runs: Sequence[tuple[str, int]], done: int, workers: int) -> None:
        """Start showing runs, given as (label, steps), in place of earlier ones; `done` others are already finished."""
        self.steps, self.made = dict(runs), {}
        self.done, self.total = done, done + len(runs)
        self.progress.reset(self.bar.id, total=sum(self.steps.values()), news="")
        already = f", {done} already finished" if done else ""
        self.note(f"{self.total} runs{already}; {workers} side by side" if runs else f"all {done} runs are finished")

    def update(self, label: str, step: int, loss: float, lr: float) -> None:
        """Show a run's progress."""
        if label not in self.made:  # a resumed run's speed counts only new steps
            self.bar.completed += step
            self.made[label] = step
        self._move(label, step)
        news = f"{self.done} of {self.total} runs; {printable(label)}: loss {loss:.3f}  rate {lr:.2e}"
        self.bar.fields["news"] = news
        if not self.console.is_terminal and time.monotonic() >= self.spoken + _QUIET:
            self.line(f"{news}  ETA {self.eta()}")

    def finish(self, label: str, result: Mapping[str, Any]) -> None:
        self._close(label)
        outcome = "diverged" if result["diverged"] else f"val loss {result['val_loss']:.4f}"
        text = f"[{self.done}/{self.total}] {label}  {outcome}  warm-up {result['warmup_steps']}"
        if not self.console.is_terminal:
            self.line(f"{text}  {result['seconds']:.0f} s  ETA {self.eta()}")

    def fail(self, label: str, message: str) -> None:
        """Show that a run has failed. A message that several runs share is printed once."""
        self._close(label)
        reason = "likewise" if message in self.reasons else message
        self.reasons.add(message)
        self.line(f"[{self.done}/{self.total}] {label}  failed: {reason}")

    def eta(self) -> str:
        """Estimated time until all runs are done, from the steps made so far."""
        return "–" if (seconds := self.bar.time_remaining) is None else duration(seconds)

    def _move(self, label: str, step: int) -> None:
        self.progress.advance(self.bar.id, step - self.made.get(label, 0))
        self.made[label] = step

    def _close(self, label: str) -> None:
        self.done += 1
        self._move(label, self.steps[label])


def duration(seconds: float) -> str:
    """Format seconds as 2:05 or 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
