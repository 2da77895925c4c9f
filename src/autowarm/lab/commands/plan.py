"""`autowarm plan`: the rates of a run before it is made, for losses that fall sooner or later."""

import argparse
import math
from typing import Any

from ..config import UsageError
from ..config.build import Parser
from ..errors import as_usage_error
from .replay import limit, picture

_ABOUT = """\
Show the rates that AdaptiveWarmup would set, without a model or data, for losses that fall to 65% of the first one
sooner or later. The losses are made up: the first ten, which give f(x0), are alike, then they fall. The schedule
averages them, and so acts a little later.
"""
_FALLS, _SOONEST = (0.02, 0.1, 0.3), 20  # when the loss is at 65%: shares of the run, but at this update or later


def run(argv: list[str]) -> int:
    """Print the rates for each of these losses, and draw them."""
    parser = Parser("autowarm plan", description=_ABOUT, argument_default=argparse.SUPPRESS)
    add: Any = parser.add_argument
    add("--steps", metavar="T", type=int, required=True, help="the number of updates")
    add("--lr", metavar="LR", type=float, required=True, help="the peak rate")
    add("--div", type=float, help="the peak rate over the first one (default: 10)")
    add("--max-warmup", metavar="LIMIT", type=limit, help="the longest warm-up, a share of the run (1: all) or updates")
    add("--decay", metavar="NAME", help="cosine (the default), linear, 1-sqrt, power, wsd or wso")
    add("--final-ratio", metavar="RATIO", type=float, help="the last rate over the peak rate (default: 0)")
    add("--trained", action="store_true", help="the run begins with trained weights, as fine-tuning does")
    add("--figure", metavar="FILE.png", type=picture, help="draw the rates; .svg works, too")
    given = vars(parser.parse_args(argv))
    steps, lr, file = given.pop("steps"), given.pop("lr"), given.pop("figure", None)
    if not 0 < lr < math.inf or steps < 2:
        raise UsageError(f"plan: --steps must be at least 2 and --lr above 0, got {steps} and {lr:g}")

    import numpy as np

    from autowarm.logs import replay

    update = np.arange(1, steps + 1)
    falls = sorted({max(_SOONEST, round(share * steps)) for share in _FALLS})
    ends = {f"at update {end:,} ({end / steps:.0%})": end for end in falls if end < steps} | {"never": math.inf}
    with as_usage_error("plan: "):
        readings = {label: replay((update, 0.65 ** (np.maximum(update - 10, 0) / (end - 10))), **given).recorded
                    for label, end in ends.items()}  # fmt: skip

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("the loss is at 65%")
    for heading in ("warm-up ends at", "rate: first", "at 25%", "at 50%", "at 75%"):
        table.add_column(heading, justify="right")
    for label, reading in readings.items():
        shown = [lr * reading.rates[int(share * (steps - 1))] for share in (0.0, 0.25, 0.5, 0.75)]
        table.add_row(label, str(reading).replace(" by the", ""), *(f"{rate:.3g}" for rate in shown))
    Console(highlight=False).print(table)
    if file is not None:
        from ..analysis.figures import encoded
        from ..analysis.replay import planned
        from ..files import write_atomically

        write_atomically(file, encoded(planned(readings, lr), file.suffix[1:]))
        print(file)
    return 0
