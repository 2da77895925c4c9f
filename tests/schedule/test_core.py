"""The rule, against whole runs that were stored before it was stated in one file."""

import subprocess
import sys

import pytest

from tests.schedule.trajectories import COUNT, PEAK, drawn, followed, stored

STORED = stored()


def test_enough_runs_are_stored() -> None:
    assert len(STORED) == COUNT >= 60


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_run_has_the_stored_rates(seed: int) -> None:
    case = drawn(seed)
    rates = followed(case)
    assert len(rates) == len(STORED[seed]) == len(case["losses"])
    worst = max(
        abs(x - y) for ours, theirs in zip(rates, STORED[seed], strict=True) for x, y in zip(ours, theirs, strict=True)
    )
    assert worst <= 1e-12 * PEAK


def test_the_rule_needs_neither_torch_nor_numpy() -> None:
    hide = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; "
    use = (
        "from autowarm.schedule.core import Plan, advance, begin; print(advance(Plan(9), begin(Plan(9)), 1, 2.0).share)"
    )
    ran = subprocess.run([sys.executable, "-c", hide + use], capture_output=True, text=True, check=True)
    assert float(ran.stdout) == pytest.approx(0.1 + 0.9 / 4.5)
