"""`autowarm plan`: the rates that it shows are the scheduler's, and its messages."""

import math
import re
from pathlib import Path

import pytest
import torch

from autowarm import AdaptiveWarmup
from autowarm.lab.commands import main


def test_the_rates_are_those_of_the_scheduler(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    assert main(["plan", "--steps", "400", "--lr", "3e-3", "--decay", "linear", "--figure", str(picture)]) == 0
    heading, *rows, written = capsys.readouterr().out.splitlines()
    assert max(map(len, [heading, *rows])) <= 80
    assert written == str(picture)
    assert picture.read_text().startswith("<?xml")
    for row, end in zip(rows, (20, 40, 120, math.inf), strict=True):
        opt = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=3e-3)
        sched = AdaptiveWarmup(opt, 400, decay="linear")
        rates = []
        for update in range(1, 401):
            rates.append(opt.param_groups[0]["lr"])
            opt.step()
            sched.step(0.65 ** (max(0, update - 10) / (end - 10)))
        ends = f"{sched.warmup_steps} ({100 * sched.warmup_steps / 400:.1f}%), {'loss' if end < 400 else 'clock'}"
        assert ends in row
        assert row.startswith("never" if end == math.inf else f"at update {end} ({end / 4:.0f}%)")
        assert row.split()[-4:] == [f"{rates[int(part * 399)]:.3g}" for part in (0, 0.25, 0.5, 0.75)]


@pytest.mark.parametrize("more", ["", "--trained", "--max-warmup 1", "--max-warmup 0.9 --div 3", "--max-warmup 5"])
def test_a_loss_that_falls_later_ends_the_warm_up_no_sooner(capsys: pytest.CaptureFixture[str], more: str) -> None:
    for steps in (2, 3, 9, 10, 11, 20, 21, 30, 50, 60, 100, 200, 700):
        assert main(["plan", "--steps", str(steps), "--lr", "1", *more.split()]) == 0
        _, *rows = capsys.readouterr().out.splitlines()
        falls = [int(row.split()[2]) for row in rows[:-1]]
        ends = [int(found[1]) for row in rows if (found := re.search(r"(\d+) \([\d.]+%\), (?:loss|clock)", row))]
        assert (len(ends), sorted(ends)) == (len(rows), ends)
        assert sorted(set(falls)) == falls
        assert max(falls, default=0) < steps
