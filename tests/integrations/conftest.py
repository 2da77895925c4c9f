"""Two processes: forked, which takes a moment, and in the long tests by the launcher people use."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Launcher, free_port, results

HERE, ROOT = Path(__file__).parent / "ranks", Path(__file__).parents[2]
# Without MPI `--cpu` starts one process, whatever the number. `--multi_gpu` starts two; the script asks for CPUs.
LAUNCH = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
          "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port"]  # fmt: skip


class TwoProcesses:
    """Runs the scripts in `ranks` on two processes."""

    def __init__(self, launcher: Callable[[], Launcher]) -> None:
        self._launcher = launcher

    def run(self, script: str, folder: Path, by: str) -> list[dict[str, Any]]:
        """What each of them wrote.

        Args:
            script: which.
            folder: where they write it.
            by: "forked", "accelerate launch", or "itself", for a script whose trainer starts the second process.
        """
        port = free_port()
        if by == "forked":
            self._launcher().run_ranks(2, [HERE / script, folder], port)
        else:
            launch = [] if by == "itself" else [*LAUNCH, str(port)]
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
            command = [sys.executable, *launch, str(HERE / script), str(folder)]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
            assert done.returncode == 0, done.stderr[-6000:]
        return results(folder)


@pytest.fixture(scope="session")
def two_processes(request: pytest.FixtureRequest) -> TwoProcesses:
    return TwoProcesses(lambda: request.getfixturevalue("trainer_launcher"))  # which imports trainers for seconds


@pytest.fixture(scope="session", params=["forked", pytest.param("accelerate launch", marks=pytest.mark.long)])
def accelerated(
    request: pytest.FixtureRequest, two_processes: TwoProcesses, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each process saw of ``accelerated.py``, which serves every test of Trainer and Accelerate on two."""
    return two_processes.run("accelerated.py", tmp_path_factory.mktemp("accelerated"), request.param)


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps its state in globals: each test begins and ends without."""
    from accelerate.state import AcceleratorState, GradientState

    for reset in (True, False):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        if reset:
            yield
