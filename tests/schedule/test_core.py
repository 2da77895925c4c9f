"""The rule, against whole runs that were stored before it was stated in one file.

They are of commit 2f582c60, whose rule lay in five files, and hold every later statement of the rule to it: do not
store other rates, unless the rule is to change. Each has its arguments, the loss of each update (null for none), what a
user changes on the way, and the rates of two groups, the second without a warm-up.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autowarm import AdaptiveWarmup
from autowarm.schedule import Calibration, core, planning
from tests.schedule.schedule_runs import PEAK

DATA = Path(__file__).parents[1] / "data" / "trajectories.jsonl.gz"
STORED = [json.loads(line) for line in gzip.decompress(DATA.read_bytes()).splitlines()]


def followed(case: dict[str, Any]) -> list[list[float]]:
    """The rates of each update."""
    first, second = (torch.nn.Parameter(torch.zeros(1, 1)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "warmup": False, "lr": 3 * PEAK}]
    optimizer, options = torch.optim.SGD(groups, lr=PEAK), dict(case["options"])
    if case["mode"] == "paper":
        options.pop("trained")
    if "kappa" in options:
        options["calibration"] = Calibration("spectral", options.pop("kappa"))
    make = AdaptiveWarmup.paper if case["mode"] == "paper" else AdaptiveWarmup
    scheduler, rates = make(optimizer, case["total_steps"], **options), []
    changes = {t: change for t, *change in case["changes"]}
    for t, loss in enumerate(case["losses"]):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step(loss)
        if t in changes:
            name, (first, *given), named = changes[t]
            if name != "rewarm":
                getattr(scheduler, name)(first, *given, **named)
                continue
            for group in optimizer.param_groups:  # of another peak, or of that so far
                group["lr"] = group["initial_lr"] * named.get("peak", PEAK) / PEAK
            given_loss = {} if named["target_loss"] is None else {"target_loss": named["target_loss"]}
            scheduler = make(optimizer, first - scheduler.last_epoch, **options | given_loss)
    return rates


@pytest.fixture
def constants_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Δ' was half of Δ0 for every optimizer; long runs had shorter limits, and longer averages."""
    for geometry in planning.PEAK_SHARES:
        monkeypatch.setitem(planning.PEAK_SHARES, geometry, 0.5)
    for name, value in {"MAX_WARMUPS": (0.5, 2_000, 0.2), "AVERAGES": (0.05, 1, 0.05)}.items():
        monkeypatch.setattr(core, name, value)


@pytest.mark.usefixtures("constants_of_then")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", STORED, ids=lambda case: case["mode"])
def test_a_run_has_the_stored_rates(case: dict[str, Any]) -> None:
    assert len(STORED) == 96
    rates = followed(case)
    assert len(rates) == len(case["rates"]) == len(case["losses"])
    pairs = zip(rates, case["rates"], strict=True)
    assert max(abs(x - y) for ours, theirs in pairs for x, y in zip(ours, theirs, strict=True)) <= 1e-12 * PEAK


def test_the_rule_needs_neither_torch_nor_numpy() -> None:
    hide = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; "
    use = (
        "from autowarm.schedule.core import Plan, advance, begin; print(advance(Plan(9), begin(Plan(9)), 1, 2.0).share)"
    )
    ran = subprocess.run([sys.executable, "-c", hide + use], capture_output=True, text=True, check=True)
    assert float(ran.stdout) == pytest.approx(0.1 + 0.9 / 4.5)
