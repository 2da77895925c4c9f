"""Ctrl-C and SIGTERM: the run keeps what it has learnt, whatever it is doing."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """The run was asked to stop; a checkpoint holds what it had learnt.

    Attributes:
        signal: the signal that asked, for the exit status 128 + signal; SIGINT if the caller asked.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number


class Stop:
    """Notices SIGINT and SIGTERM while it is entered.

    Inside `gently` a signal is acknowledged at once and kept for the loop, which saves and ends at the next step.
    Elsewhere nothing would be lost, because files are replaced whole: the signal ends the program, as `Interrupted`. A
    second Ctrl-C ends it anywhere, except in ranks of `torchrun`, which repeats signals.

    Attributes:
        asked: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._gentle = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # no other may handle signals
            self._before = {number: signal.signal(number, self._notice) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _notice(self, number: int, _: FrameType | None) -> None:
        by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        again = self.asked == number == signal.SIGINT and not by_torchrun
        # As an exception it can come up inside a destructor, where Python drops it: the flag stays up for the loop.
        self.asked = number
        if again or not self._gentle:
            raise Interrupted("stopped before or after training", number)
        if not by_torchrun or os.environ.get("RANK") == "0":
            with suppress(OSError):  # a closed stderr; print() may not be called while it is at work, as it may be
                os.write(2, b"\nstopping at the next step; Ctrl-C again stops at once\n")

    def obey(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.asked is not None:
            raise Interrupted("stopped; what is finished is kept", self.asked)

    @contextmanager
    def gently(self) -> Iterator[None]:
        """Enter this around what must not be broken off: training and saving."""
        self._gentle = True
        try:
            yield
        finally:
            self._gentle = False
