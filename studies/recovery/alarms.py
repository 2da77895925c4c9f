"""Counts the false alarms of ``recover`` on recorded loss curves: the detector sees them, and nothing is restored.

    python -m studies.recovery.alarms CURVES.jsonl.gz

The format of the curves is that of `studies.curves`. A curve that records every hundredth loss is read as a run of that
many updates, which gives the detector the least to average.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.schedule.recovery.detector import Detector

from ..cells import DEFAULT, TUNING, TUNING_SCHEDULE, tuned_rates
from ..curves import read_curves
from ..rows import Cell, Rows


def main() -> None:
    """Print the alarms on each curve that has any, then the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", type=Path)
    print(summary(read_curves(parser.parse_args().curves)))


def alarms(losses: Sequence[float]) -> list[tuple[int, str]]:
    """The places in a curve where an alarm is raised, with its reason; the level counts anew after each."""
    detector, found = Detector.over(len(losses)), []
    for i, loss in enumerate(losses, 1):
        if (reason := detector.see(float(loss))) is not None:
            found.append((i, reason))
            detector = Detector.over(len(losses))
    return found


def watched_table(studies: Mapping[str, Rows]) -> str:
    """CSV: how many fault-free runs of the default that were watched raised an alarm, by kind.

    Args:
        studies: the rows of the studies by name. Those of "warm-up" are at a third, one and three times a tuned rate;
            the others are at tuned rates.
    """
    kinds: dict[str, list[bool]] = {"tuned rates": [], "three times a tuned rate": [], "a policy gradient": []}
    tuned = tuned_rates(studies["warm-up"], TUNING, TUNING_SCHEDULE)
    for name, rows in studies.items():
        for row in rows:
            if row["schedule"] == DEFAULT and "alarms" in row:
                cell = Cell(**row["cell"])
                rate = tuned.get((cell.task, cell.optimizer, cell.steps), math.inf) if name == "warm-up" else math.inf
                hot = "three times a tuned rate" if cell.lr > 2 * rate else "tuned rates"
                kinds["a policy gradient" if cell.task == "policy" else hot].append(bool(row["alarms"]))
    return comma_separated(
        ["fault-free runs", "watched", "with an alarm"], [[kind, len(some), sum(some)] for kind, some in kinds.items()]
    )


def summary(curves: Iterable[Mapping[str, Any]]) -> str:
    """A line for each alarm, then the number of curves with any."""
    lines, with_any = [], []
    for curve in curves:
        found = alarms(curve["losses"])
        with_any.append(bool(found))
        lines += [f"{curve['name']}: loss {i} of {len(curve['losses'])}: {reason}" for i, reason in found]
    return "\n".join([*lines, f"alarms on {sum(with_any)} of {len(with_any)} curves"])


if __name__ == "__main__":
    main()
