"""The `autowarm` command: a file for each of its commands, which parses its words, does the work and shows the result.

Parsing imports neither torch nor transformers, so help is quick. A new command is a file with ``run(words) → status``
and a line of `COMMANDS`.
"""

import importlib
import logging
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence

from ..errors import LabError, UsageError, nearest, printable
from ..processes import Interrupted

COMMANDS = {
    "compare": "compare adaptive with hand-set warm-ups, on the lab's task or your own (--task FILE.py:NAME)",
    "train": "train one run, in its own folder, on the lab's task or your own",
    "replay": "FILE…: show where the warm-up of your past runs would have ended, from their logs",
    "sweep": "make the runs of a grid, each once, on this machine or a Ray cluster, and report them",
    "smoothness": "measure curvature over the gap along a run of each optimizer, with fits and figures",
    "figure": "NAME: make a figure or table of the paper, or all; figure --list names them with their costs",
    "report": "FOLDER: make the table, the figures and the report of a comparison or a sweep again",
}
USAGE = """\
usage: autowarm COMMAND [options]

Learning-rate warm-up that ends by itself, for any PyTorch optimizer.

commands:
{}
`autowarm COMMAND --help` lists a command's options.
""".format("".join(f"  {name:<11} {about}\n" for name, about in COMMANDS.items()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    The status is 0 for success, 1 after a failure, 2 for wrong input, and 128 plus the signal's number after an
    interruption, such as 130 for Ctrl-C.
    """
    # A shell leaves the ~ of --out=~/runs and of "~/my runs" as it is.
    words = sys.argv[1:] if argv is None else argv
    argv = [
        re.sub("^(--[^=]+=)?~/", lambda option: (option[1] or "") + os.path.expanduser("~/"), word) for word in words
    ]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        from autowarm import __version__

        print(__version__)
        return 0
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        if argv[0] not in COMMANDS:
            raise UsageError(f"unknown command {argv[0]!r}; {nearest(argv[0], COMMANDS)}")
        status: int = importlib.import_module(f"{__name__}.{argv[0].replace('-', '_')}").run(argv[1:])
        return status
    except LabError as error:
        print(f"autowarm: {printable(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except (BrokenPipeError, ModuleNotFoundError):
        raise  # the entry point explains them
    except OSError as error:  # such as a full disk, or a folder without write permission
        print(f"autowarm: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Interrupted) as error:
        print("\ninterrupted; the same command continues from here, with what is finished", file=sys.stderr)
        return 128 + getattr(error, "signal", signal.SIGINT)
    except Exception as error:
        with tempfile.NamedTemporaryFile("w", prefix="autowarm-", suffix=".log", delete=False) as file:
            traceback.print_exc(file=file)
        line = next(iter(str(error).splitlines()), "")
        print(f"autowarm: {type(error).__name__}: {line} (traceback in {file.name})", file=sys.stderr)
        return 1
