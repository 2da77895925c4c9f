"""One launch of two processes serves every test that needs them: starting them is what takes the time."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def run(command: list[str], folder: Path) -> None:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-6000:]


def free_port() -> str:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process saw of `two_processes.py` under ``accelerate launch``."""
    folder = tmp_path_factory.mktemp("launch")
    # Without MPI `--cpu` starts one process, whatever the number. `--multi_gpu` starts two; the script asks for CPUs.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    options = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    run([*launch, *options, "--main_process_port", free_port(), str(HERE / "two_processes.py"), str(folder)], folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps its state in globals: each test begins and ends without."""
    from accelerate.state import AcceleratorState, GradientState

    for reset in (True, False):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        if reset:
            yield
