"""Every example runs as a user would run it."""

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import Launcher, free_port, rank_environment

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {"smoothness": "K2"}
SHORTER = {"smoothness": ["300"], "own_task_nanogpt": ["10"], "own_task_finetune": ["10"]}  # updates
ON_RANKS = {"fsdp2"}
COMPARISONS = sorted(EXAMPLES.glob("own_task_*.py"))  # on worker processes


@pytest.mark.parametrize("example", sorted(set(EXAMPLES.glob("*.py")) - set(COMPARISONS)), ids=lambda path: path.stem)
def test_it_runs(example: Path, trainer_launcher: Launcher) -> None:
    port = free_port()
    ranks = [rank_environment(rank, 2, port) for rank in (0, 1)] if example.stem in ON_RANKS else [{}]
    ended = trainer_launcher.run_together([example, *SHORTER.get(example.stem, [])], ranks)
    said = "".join(one.stderr for one in ended)  # stdout goes there as well
    assert {one.status for one in ended} == {0}, said
    assert SAYS.get(example.stem, "warm-up took") in said


@pytest.mark.long
@pytest.mark.parametrize("example", sorted(ON_RANKS))
def test_it_runs_under_torchrun(example: str, tmp_path: Path) -> None:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*launch, str(EXAMPLES / f"{example}.py")], capture_output=True, text=True, timeout=1200,
                          cwd=tmp_path, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warm-up took" in done.stdout


@pytest.fixture
def one_core() -> Iterator[None]:
    """As many workers are started as there are cores, and to start takes longer than they have to do."""
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {sorted(before)[os.getpid() % len(before)]})
        yield
        os.sched_setaffinity(0, before)
    else:
        yield


@pytest.mark.long
@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("example", COMPARISONS, ids=lambda path: path.stem)
def test_a_comparison_on_a_task_of_ones_own(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here: what a process of its own would import takes longer than what it does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [str(example), *SHORTER[example.stem]])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out.split()
    assert " ".join(said).count("Best hand-set warm-up: ") == 2  # a verdict for each optimizer
    assert (tmp_path / said[-1]).name == "report.html"
    assert (tmp_path / said[-1]).is_file()
