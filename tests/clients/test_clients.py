"""Whole programs of the kinds people train with: run, killed and resumed to the bit, and run for longer than planned.

Each is a script beside this file. It runs in a process of its own, with an empty home folder and no network. In
`tests/integrations` the trainers of transformers and Lightning are resumed and run for longer, too.
"""

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Launcher, clean_environment, free_port

HERE = Path(__file__).parent
pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Client:
    """How a script is called.

    Args:
        command: its arguments for a folder, a horizon in its own unit, and whether it is to go on.
        horizon, longer: in that unit.
        updates: how many one unit is.
        extra: updates made beyond the horizon.
        die_at: the update after which it is killed, some way after a checkpoint and past the end of warm-up.
        falls_to: the last losses' mean is below this share of the first ones'.
    """

    command: Callable[[Path, int, bool], list[str]]
    horizon: int
    longer: int
    updates: int
    die_at: int
    extra: int = 0
    falls_to: float = 0.7

    def made(self, horizon: int) -> int:
        return horizon * self.updates + self.extra


def gpt(folder: Path, horizon: int, resume: bool) -> list[str]:
    return ["gpt.py", f"--out_dir={folder}", f"--max_iters={horizon}", *(["--init_from=resume"] if resume else [])]


def images(folder: Path, horizon: int, resume: bool) -> list[str]:
    return ["images.py", str(folder), str(horizon), *([f"{folder}/last.pth.tar"] if resume else [])]


CLIENTS = {
    "trl, SFTTrainer": Client(lambda folder, epochs, _: ["sft.py", str(folder), str(epochs)], 3, 5, 20, 45),
    "nanoGPT, train.py": Client(gpt, 60, 100, 1, 47, extra=1),
    "timm, train.py": Client(images, 12, 18, 3, 29, falls_to=0.9),
}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """One for all: what takes the time is importing the trainers."""
    folder = tmp_path_factory.mktemp("launcher")
    launcher = Launcher(["trl.trainer.sft_trainer", "timm", "datasets"], clean_environment(folder), folder)
    yield launcher
    launcher.close()


@dataclass(frozen=True)
class Run:
    """A client's run in a folder."""

    launcher: Launcher
    client: Client
    folder: Path

    def to(self, horizon: int, *, resume: bool = False, die_at: int = 0) -> str:
        """What the program writes to stderr."""
        script, *arguments = self.client.command(self.folder, horizon, resume)
        ended = self.launcher.run([HERE / script, *arguments], {"DIE_AT": str(die_at)})
        assert ended.status == (-signal.SIGKILL if die_at else 0), ended.stderr[-6000:]
        return ended.stderr


def log_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
def test_a_client_runs_resumes_to_the_bit_and_goes_on_for_longer(
    client: Client, launcher: Launcher, tmp_path: Path
) -> None:
    whole, killed = (Run(launcher, client, tmp_path / name) for name in ("whole", "killed"))
    said = whole.to(client.horizon)
    assert "total_steps" not in said
    made, log, result = client.made(client.horizon), log_of(whole.folder), result_of(whole.folder)
    assert [row["update"] for row in log] == list(range(1, made + 1))
    rates, losses = [row["lr"] for row in log], [row["loss"] for row in log]
    peak = max(rates)
    assert rates[0] == pytest.approx(peak / 10)
    assert 0 < rates[-1] < peak / 10
    assert sum(losses[-5:]) < client.falls_to * sum(losses[:5])
    assert result["phase"] == "decay"
    assert result["updates"] == made

    killed.to(client.horizon, die_at=client.die_at)
    killed.to(client.horizon, resume=True)
    # Updates after the last checkpoint were made twice, and alike.
    assert all(row == log[int(row["update"]) - 1] for row in log_of(killed.folder))
    assert len(log_of(killed.folder)) > made
    assert result_of(killed.folder) == result

    said = whole.to(client.longer, resume=True)
    planned, more = client.longer * client.updates, client.made(client.longer)
    warned = [line for line in said.splitlines() if "the schedule was saved for total_steps=" in line]
    assert len(warned) == 1, said
    assert f"total_steps={client.horizon * client.updates} " in warned[0]
    assert f"total_steps={planned}:" in warned[0]
    longer = result_of(whole.folder)
    assert (longer["total_steps"], longer["updates"]) == (planned, more)
    assert longer["weights"] != result["weights"]
    added = [row["lr"] for row in log_of(whole.folder) if row["update"] > made]
    assert len(added) == more - made
    assert all(0 < rate <= peak for rate in added)
    assert max(longer["rates"]) < peak / 10


def test_nanogpt_on_two_ranks(launcher: Launcher, tmp_path: Path) -> None:
    script, *arguments = gpt(tmp_path, 20, False)
    launcher.run_ranks(2, [HERE / script, *arguments], free_port())
    a, b = (log_of(tmp_path / f"rank-{rank}") for rank in (0, 1))
    assert [row["lr"] for row in a] == [row["lr"] for row in b]
    assert [row["loss"] for row in a] != [row["loss"] for row in b]
    assert result_of(tmp_path / "rank-0") == result_of(tmp_path / "rank-1")
