"""The `autowarm` command. Parsing imports neither torch nor transformers, so help is quick.

- `runs`: compare, sweep, train.      - `rate`: find-rate.      - `replay`: replay.
- `paper`: figure, smoothness, calibrate.      - `files`: report, data.
"""

import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence

from ..config import LabError, UsageError, nearest, printable
from ..training.stopping import Interrupted
from . import files, paper, runs
from .rate import find_rate
from .replay import replay

__all__ = ["main"]

USAGE = """\
usage: autowarm COMMAND [options]

Learning-rate warm-up that sets itself, for norm-constrained optimizers.

commands:
  compare         compare adaptive with hand-set warm-ups, on the lab's task or your own (--task FILE.py:NAME)
  train           train one run, in its own folder
  calibrate MODEL show the schedule before any training: κ, Δ', the loss at which the warm-up ends, plots
  replay FILE…    show where the warm-up of your past runs would have ended, from their logs
  find-rate       suggest a peak rate by a range test, on the lab's task or your own
  sweep           make the runs of a grid, each once, on this machine or a Ray cluster, and report them
  smoothness      measure curvature over the gap along a run of each optimizer, with fits and figures
  figure NAME     make a figure or table of the paper, or all; figure --list names them with their costs
  report FOLDER   make the table, the figures and the report of a comparison or a sweep again
  data KIND       make or check token shards: data fineweb, data folder PATH, data check FOLDER

`autowarm COMMAND --help` lists a command's main options, `--help-all` every one.
"""

_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "compare": runs.compare, "train": runs.train, "calibrate": paper.calibrate, "sweep": runs.sweep,
    "find-rate": find_rate, "replay": replay,
    "smoothness": paper.smoothness, "figure": paper.figure, "report": files.report,
    "data": files.data,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    The status is 0 for success, 1 after a failure, 2 for wrong input, and 130 (Ctrl-C) or 143 (SIGTERM) after an
    interruption, from which the same command continues.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        from autowarm import __version__

        print(__version__)
        return 0
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    if argv[0] != "data":
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        if argv[0] not in _COMMANDS:
            raise UsageError(f"unknown command {argv[0]!r}; {nearest(argv[0], _COMMANDS)}")
        return _COMMANDS[argv[0]](argv[1:])
    except UsageError as error:
        print(f"autowarm: {printable(str(error))}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"autowarm: {printable(str(error))}", file=sys.stderr)
        return 1
    except (BrokenPipeError, ModuleNotFoundError):
        raise  # the entry point explains them
    except OSError as error:  # such as a full disk, or a folder without write permission
        print(f"autowarm: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Interrupted) as error:
        print("\ninterrupted; the same command continues from here", file=sys.stderr)
        return 128 + getattr(error, "signal", signal.SIGINT)
    except Exception as error:
        print(f"autowarm: {type(error).__name__}: {_first_line(error)} (traceback in {_dumped()})", file=sys.stderr)
        return 1


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _dumped() -> str:
    """Write the traceback of an unforeseen error to a file, and return its name."""
    with tempfile.NamedTemporaryFile("w", prefix="autowarm-", suffix=".log", delete=False) as file:
        traceback.print_exc(file=file)
    return file.name
