"""A real Ray cluster on loopback: a head and a worker machine, the second killed while it is at work."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autowarm.lab.config import LabError
from autowarm.lab.execution.cluster import run_jobs
from autowarm.lab.execution.display import Display
from autowarm.lab.execution.pool import Job

from ..helpers import MODEL, PATIENCE, wait_for

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the processes")
# A token that some other cluster left in the home directory would be asked of this one.
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "OMP_NUM_THREADS": "1",
               "RAY_AUTH_MODE": "disabled"}  # fmt: skip


def start(*words: str) -> subprocess.Popen[bytes]:
    """One machine of the cluster, as a process group of its own that is here to be killed."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats",
               "--object-store-memory", "100000000", *words]  # fmt: skip
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def family(pid: int) -> list[int]:
    """A process and all that descend from it: Ray puts some of them into groups of their own."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


def end(process: subprocess.Popen[bytes]) -> None:
    """A power cut: every process of the machine at once, with no word to anyone."""
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def address() -> Iterator[str]:
    """A head that does no work itself, so that every run is on a machine that may die."""
    port = 20000 + os.getpid() % 20000
    folder = Path("/tmp") / f"ray-{port}"  # sockets need a short path
    head = start("--head", "--node-ip-address", "127.0.0.1", "--port", str(port), "--num-cpus", "0",
                 "--include-dashboard", "false", "--temp-dir", str(folder))  # fmt: skip
    try:
        wait_for(lambda: answers(port), lambda: head.poll() is None, "the head did not start")
        yield f"127.0.0.1:{port}"
    finally:
        end(head)
        shutil.rmtree(folder, ignore_errors=True)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.long
@needs_proc
def test_a_killed_worker_costs_nothing_but_time(address: str, corpus_folder: Path, tmp_path: Path) -> None:
    out, message = tmp_path / "out", tmp_path / "said.txt"
    base = {"model": MODEL, "data": {"corpus": str(corpus_folder)}, "optimizer": {"name": "muon", "lr": 0.01},
            "steps": 400, "batch_size": 4, "eval_batches": 2, "checkpoint_every": 20}  # fmt: skip
    words = ["sweep", "--base", json.dumps(base), "--cells", "{muon: {}}",
             "--grid", "[{schedule.kind: linear, schedule.warmup_steps: [1, 50]}]",
             "--engine", "ray", "--address", address, "--out", str(out)]  # fmt: skip
    with open(message, "w") as file:
        driver = subprocess.Popen([sys.executable, "-m", "autowarm", *words], env=ENVIRONMENT, stdout=file,
                                  stderr=subprocess.STDOUT)  # fmt: skip
    machines, alive = [], lambda: driver.poll() is None
    try:
        wait_for(lambda: "2 runs" in message.read_text(), alive, message.read_text)
        machines.append(start("--address", address, "--num-cpus", "1"))
        wait_for(lambda: list(out.glob("runs/*/checkpoint-*")), alive, message.read_text)
        end(machines[0])
        assert len(list(out.glob("runs/*/result.json"))) < 2
        machines.append(start("--address", address, "--num-cpus", "1"))
        assert driver.wait(timeout=PATIENCE) == 0, message.read_text()
    finally:
        for process in (driver, *machines):
            end(process)
    rows = json.loads((out / "results.json").read_text())["runs"]
    assert len(rows) == 2
    assert all(row["val_loss"] is not None for row in rows)
    # Each step is there once, whatever was done twice.
    for path in out.glob("runs/*/metrics.jsonl"):
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(1, 401))


def test_an_address_with_no_cluster_is_one_line(tmp_path: Path) -> None:
    job = Job("nothing", 1, lambda on_step: {}, tmp_path)
    with pytest.raises(LabError, match="no Ray cluster at 127.0.0.1:9"):
        run_jobs([job], "127.0.0.1:9", Display(), 0)
