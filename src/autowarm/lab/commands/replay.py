"""`autowarm replay`: where the schedule would have ended the warm-up of past runs, from their logs."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...schedule.planning import PEAK_SHARES
from ..config import LabError, UsageError
from ..config.build import Parser

_ABOUT = """\
Show where AdaptiveWarmup would have ended the warm-up of past runs, and what would have ended it, beside the warm-up
that was used. The losses of the log go to the schedule's own rule.

FILE: transformers' trainer_state.json, Lightning's metrics.csv, TensorBoard's event files or their folder, an export of
Weights & Biases, metrics.jsonl, or any CSV, JSON lines or plain table of steps and losses.
"""


def run(argv: list[str]) -> int:
    """Print a table of the runs in all files, and write a figure and a page of them."""
    options = _parser().parse_args(argv)

    from autowarm.logs import Replay, read, replay

    columns = {name: getattr(options, name) for name in ("loss", "step", "lr", "total_steps", "first_loss")}
    settings = {"trained": options.trained, "geometry": options.geometry}
    if options.max_warmup is not None:
        settings["max_warmup"] = options.max_warmup
    replays: list[Replay] = []
    for path in options.files:
        try:
            logs = read(path, **columns)
            if not (chosen := [log for log in logs if options.run in log.name]):
                names = ", ".join(repr(log.name) for log in logs)
                raise UsageError(f"{path}: no run has {options.run!r} in its name: {names}")
            replays += [replay(log, **settings) for log in chosen]
        except ValueError as error:
            raise UsageError(str(error)) from None
        except OSError as error:
            raise LabError(f"{path}: {error.strerror or error}") from None

    from rich.console import Console

    from ..analysis.figures import encoded
    from ..analysis.replay import figure, html, numbers, show
    from ..files import write_atomically

    if options.json:
        print(json.dumps([numbers(one) for one in replays], indent=1, allow_nan=False))
    else:
        show(replays, Console(highlight=False))
    if options.figure is not None:
        write_atomically(options.figure, encoded(figure(replays), options.figure.suffix[1:]))
    if options.html is not None:
        write_atomically(options.html, html(replays))
    for path in filter(None, (options.figure, options.html)):
        print(path, file=sys.stderr if options.json else sys.stdout)
    return 0


def _parser() -> Parser:
    parser = Parser("autowarm replay", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Any = parser.add_argument
    add("files", nargs="+", metavar="FILE", type=Path, help="logs of past runs, files or folders")
    add("--loss", metavar="COLUMN", help="the training loss, if it has an unusual name")
    add("--step", metavar="COLUMN", help="the number of updates")
    add("--lr", metavar="COLUMN", help="the learning rate")
    add("--run", metavar="TEXT", default="", help="only the runs with this in their names")
    add("--total-steps", metavar="T", type=int, help="the run's planned length, if the log ends earlier")
    add("--first-loss", metavar="LOSS", type=float, help="the loss at update 1, if the log begins later")
    add(
        "--max-warmup",
        metavar="LIMIT",
        type=share_or_updates,
        help="the longest warm-up, a share of the run (1: all) or updates",
    )
    kinds = "the optimizer's: sign for Adam's kind and Lion (default), spectral for Muon, frobenius for normSGD"
    add("--geometry", choices=[*PEAK_SHARES], default="sign", help=kinds)
    add("--trained", action="store_true", help="the run began with trained weights, as fine-tuning does")
    add("--figure", metavar="FILE.png", type=_file(".png", ".svg"), help="draw losses and rates; .svg works, too")
    add("--html", metavar="FILE.html", type=_file(".html", ".htm"), help="write a page with the table and the figures")
    add("--json", action="store_true", help="print JSON in place of the table")
    return parser


def share_or_updates(text: str) -> float | int:
    """A whole number from 2 is a number of updates; what is at most 1 is a share of the run, so that 1 is all of it."""
    return int(text) if text.isdecimal() else float(text)


def _file(*endings: str) -> Callable[[str], Path]:
    """Files with these endings, and no log that was meant to be read."""

    def file(text: str) -> Path:
        if Path(text).suffix not in endings:
            raise UsageError(f"{text} cannot be written: its name must end in {' or '.join(endings)}")
        return Path(text)

    return file
