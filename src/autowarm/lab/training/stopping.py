"""Ctrl-C and SIGTERM: what has been learnt is kept, whatever the run is doing."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """The run was asked to stop; what it had learnt is in a checkpoint.

    Attributes:
        signal: what asked, for the exit status 128 + signal; SIGINT where it was the caller.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number


class Stop:
    """Notices SIGINT and SIGTERM while it is entered.

    Inside `gently` a signal is kept for the loop, which saves and ends at the next step. Elsewhere nothing would be
    lost (files are replaced whole), so it ends the program at once, as `Interrupted`. A second Ctrl-C does so anywhere,
    but for ranks of `torchrun`, which repeats signals.

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
        again = self.asked == number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ
        # As an exception it can come up inside a destructor, where Python drops it: the flag stays up for the loop.
        self.asked = number
        if again or not self._gentle:
            raise Interrupted("stopped before or after training", number)

    def obey(self) -> None:
        """Raises Interrupted if a signal has come."""
        if self.asked is not None:
            raise Interrupted("stopped; what is finished is kept", self.asked)

    @contextmanager
    def gently(self) -> Iterator[None]:
        """Around what must not be broken off: training, and saving."""
        self._gentle = True
        try:
            yield
        finally:
            self._gentle = False
