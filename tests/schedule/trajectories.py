"""Whole runs of the schedule, drawn at random and stored with their rates.

`python tests/schedule/trajectories.py` stores them. They are of commit 2f582c60, whose rule lay in five files, and hold
every later statement of the rule to it: do not store them again, unless the rule is to change.
"""

import gzip
import json
import math
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from autowarm import AdaptiveWarmup

STORED = Path(__file__).parents[1] / "data" / "trajectories.jsonl.gz"
COUNT = 96
PEAK = 0.01

Case = dict[str, Any]


def drawn(seed: int) -> Case:
    """A run: arguments, the loss of each update (None for no loss), and what a user changes on the way."""
    draw = random.Random(seed)
    total = draw.choice([12, 40, 75, 150, 300, 500])
    modes = ("default", "paper", "trained", "extend", "rewarm", "decay_now", "open", "bare")
    mode = modes[seed % len(modes)]
    start = draw.choice([0.7, 2.3, 10.9])
    end, pace, noise = draw.uniform(0.02, 0.8) * start, draw.uniform(0.02, 0.6) * total, draw.choice([0.0, 0.02, 0.2])
    losses: list[float | None] = []
    for t in range(total + 30):
        fallen = end + (start - end) * math.exp(-t / pace)
        losses.append(fallen + noise * fallen * draw.gauss(0.0, 1.0))
    for _ in range(draw.choice([0, 0, 3])):
        at = draw.randrange(1, len(losses))
        losses[at] = draw.choice([None, math.nan, math.inf, 40.0 * start])
    shift = draw.choice([0.0, 0.0, 0.0, -start])  # a loss around zero
    losses = [x if x is None or mode in ("paper", "bare") else x + shift for x in losses]

    options: dict[str, Any] = {"trained": mode == "trained"}
    options["decay"] = draw.choice(["cosine", "linear", "1-sqrt", "power", "wsd"])
    options["warmup"] = draw.choice(["linear", "cosine"])
    options["final_ratio"] = draw.choice([0.0, 0.1])
    if mode == "paper":
        options |= {"target_loss": 0.1 * start, "div": draw.choice([2.0, 100.0]), "max_nonfinite": None}
        options |= draw.choice([{"kappa": 46848.0}, {"kappa": 61.0}, {"peak_gap": 0.3 * start}])
    else:
        options["div"] = draw.choice([3.0, 10.0])
        options["max_warmup"] = draw.choice(["auto", "auto", 0.3, 25, 1.0])
        options["smoothing"] = draw.choice([0.05, 0.05, 0.01, 0.2])
        options |= draw.choice([{}, {}, {"chance_loss": start}, {"peak_gap": 0.2 * start}, {"kappa": 2000.0}])
    if losses[-1] is not None and losses[-1] < 0.0:
        options.pop("peak_gap", None)
    if mode == "bare":
        options |= {"smoothing": 0.0, "max_warmup": draw.choice([None, 0.5])}
    if mode == "open":
        total, options["decay"] = None, "wso"

    length = len(losses) - 30
    changes: dict[int, tuple[str, list[Any], dict[str, Any]]] = {}
    if mode == "extend":
        for _ in range(draw.choice([1, 2])):
            at = draw.randrange(length)
            changes[at] = ("extend", [at + 1 + draw.randrange(length)], {})
    if mode == "rewarm":
        peak = draw.choice([{}, {"peak": 0.004}])
        changes[draw.randrange(length)] = ("rewarm", [2 * length], {"target_loss": draw.choice([None, -5.0])} | peak)
    if mode == "decay_now" or mode == "open":
        changes[draw.randrange(length)] = (
            "decay_now",
            [1 + draw.randrange(30)],
            {"decay": draw.choice(["linear", "1-sqrt"])},
        )
    if mode == "decay_now":
        changes[length - 1] = ("extend", [length + 20], {})
    return {"mode": mode, "total_steps": total, "options": options, "losses": losses, "changes": changes}


def followed(case: Case, peak: float = PEAK) -> list[list[float]]:
    """The rates of each update of two groups, the second without a warm-up."""
    first, second = (torch.nn.Parameter(torch.zeros(1, 1)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "warmup": False, "lr": 3 * peak}]
    optimizer = torch.optim.SGD(groups, lr=peak)
    options = dict(case["options"])
    make = AdaptiveWarmup
    if case["mode"] == "paper":
        make = AdaptiveWarmup.paper
        options.pop("trained")
    if "kappa" in options:
        options["geometry"] = "spectral"
    rates = []
    with warnings.catch_warnings(action="ignore"):
        scheduler = make(optimizer, case["total_steps"], **options)
        for t, loss in enumerate(case["losses"]):
            rates.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            scheduler.step(loss)
            if t in case["changes"]:
                name, given, named = case["changes"][t]
                getattr(scheduler, name)(*given, **named)
    return rates


def stored() -> list[list[list[float]]]:
    with gzip.open(STORED, "rt") as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    rows = [
        json.dumps([[float(f"{rate:.15g}") for rate in pair] for pair in followed(drawn(seed))])
        for seed in range(COUNT)
    ]
    STORED.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))
    print(f"{len(rows)} runs", file=sys.stderr)
