"""Handles Ctrl-C, SIGTERM and SIGHUP, so that a run never loses its progress."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Ctrl-C, what schedulers of jobs send, and what a terminal sends as it closes (Windows has no such signal).
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupted(Exception):
    """The run was asked to stop. Its checkpoint holds its progress.

    Attributes:
        signal: the signal that asked, for the exit status 128 + signal; SIGINT if the caller asked.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number


class Stop:
    """A context manager that catches SIGINT, SIGTERM and, unless it is ignored, SIGHUP.

    Inside `gently`, a signal is acknowledged at once and kept for the loop, which saves a checkpoint and stops at the
    next step. Elsewhere the signal ends the program with `Interrupted`; nothing is lost, because files are replaced
    whole. A second Ctrl-C ends the program anywhere, except inside `wholly` and in ranks of `torchrun`, which repeats
    signals.

    Attributes:
        asked: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._gentle = False
        self._whole = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # other threads may not handle signals
            # `nohup` ignores SIGHUP. A shell's background jobs ignore SIGINT too, but who sends it to one means it.
            always = (signal.SIGINT, signal.SIGTERM)
            ours = [one for one in SIGNALS if one in always or signal.getsignal(one) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._notice) for number in ours}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _notice(self, number: int, _: FrameType | None) -> None:
        by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        first = self.asked is None
        again = self.asked == number == signal.SIGINT and not by_torchrun
        # Python drops an exception that is raised inside a destructor, so set the flag for the loop as well.
        self.asked = number
        if not self._whole and (again or not self._gentle):
            raise Interrupted("stopped before or after training", number)
        if first and (not by_torchrun or os.environ.get("RANK") == "0"):
            with suppress(OSError):  # stderr may be closed; print() is not reentrant and may be running
                os.write(2, b"\nstopping at the next step; Ctrl-C again stops at once\n")

    def obey(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.asked is not None:
            raise Interrupted("stopped; what is finished is kept", self.asked)

    @contextmanager
    def gently(self) -> Iterator[None]:
        """Enter this context around work that a signal must not break off: training and saving."""
        self._gentle = True
        try:
            yield
        finally:
            self._gentle = False

    @contextmanager
    def wholly(self) -> Iterator[None]:
        """Enter this context around short work that not even a second Ctrl-C may break off: starting processes."""
        self._whole = True
        try:
            yield
        finally:
            self._whole = False
