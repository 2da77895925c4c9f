"""Logs of past runs, and what `AdaptiveWarmup` would have done in them.

`replay` gives a log's losses to the real scheduler and returns a `Replay`: where the warm-up would have ended, and what
ended it, beside the warm-up that was used. `read` finds the runs in a file and returns them as `Log` objects.
"""

from .log import Log, LogError
from .read import read
from .replaying import replay
from .result import Reading, Replay

__all__ = ["Log", "LogError", "Reading", "Replay", "read", "replay"]
