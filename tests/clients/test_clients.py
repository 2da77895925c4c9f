"""A whole program of the kind that people train with: run, killed and resumed to the bit, and run for longer.

It runs in a process of its own, with an empty home folder and no network. `tests/integrations` does the same with the
trainers of transformers and Lightning and with the recipes.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Launcher, clean_environment

GPT = Path(__file__).with_name("gpt.py")
HORIZON, LONGER = 60, 100  # it makes one update more
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    folder = tmp_path_factory.mktemp("launcher")
    launcher = Launcher(["torch"], clean_environment(folder), folder)
    yield launcher
    launcher.close()


def log_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def test_a_program_runs_resumes_to_the_bit_and_goes_on_for_longer(launcher: Launcher, tmp_path: Path) -> None:
    def run(folder: Path, horizon: int, *words: str, die_at: int = 0) -> str:
        command = [GPT, f"--out_dir={folder}", f"--max_iters={horizon}", *words]
        ended = launcher.run(command, {"DIE_AT": str(die_at)})
        assert ended.status == (-signal.SIGKILL if die_at else 0), ended.stderr[-6000:]
        return ended.stderr

    whole, killed, resume = tmp_path / "whole", tmp_path / "killed", "--init_from=resume"
    assert "total_steps" not in run(whole, HORIZON)
    made, log, result = HORIZON + 1, log_of(whole), result_of(whole)
    assert [row["update"] for row in log] == list(range(1, made + 1))
    rates, losses = [row["lr"] for row in log], [row["loss"] for row in log]
    peak = max(rates)
    assert rates[0] == pytest.approx(peak / 10)
    assert 0 < rates[-1] < peak / 10
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert (result["phase"], result["updates"]) == ("decay", made)

    run(killed, HORIZON, die_at=47)  # some way after a checkpoint and past the end of warm-up
    run(killed, HORIZON, resume)
    # Updates after the last checkpoint were made twice, and alike.
    assert all(row == log[int(row["update"]) - 1] for row in log_of(killed))
    assert len(log_of(killed)) > made
    assert result_of(killed) == result

    heard = run(whole, LONGER, resume)
    [warning] = [line for line in heard.splitlines() if "the schedule was saved for total_steps=" in line]
    assert f"total_steps={HORIZON} " in warning
    assert f"total_steps={LONGER}:" in warning
    longer = result_of(whole)
    assert (longer["total_steps"], longer["updates"]) == (LONGER, LONGER + 1)
    assert longer["weights"] != result["weights"]
    added = [row["lr"] for row in log_of(whole) if row["update"] > made]
    assert len(added) == LONGER - HORIZON
    assert all(0 < rate <= peak for rate in added)
    assert max(longer["rates"]) < peak / 10
