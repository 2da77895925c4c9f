"""Runs scripts as processes of their own, without paying for the same imports each time.

A `Launcher` is one process that imports some packages and does nothing else. For each script it forks, and the child
runs it: a fresh interpreter's state, its own environment, its own exit status, killed or not.
"""

import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

__all__ = ["Ended", "Launcher", "clean_environment", "free_port", "leave", "rank_environment", "results"]


class Ended(NamedTuple):
    """A process that has ended: its exit status, −n if signal n ended it, and what it wrote to stderr."""

    status: int
    stderr: str


class Launcher:
    """Starts scripts in children of one process.

    Args:
        imports: packages imported beforehand, and files run beforehand; a package that is missing is left to the
            script to miss.
        environment: the children's, as these packages find it.
        folder: for what the children write to stderr.
    """

    def __init__(self, imports: Sequence[str | Path], environment: Mapping[str, str], folder: Path) -> None:
        self._folder, self._started = folder, 0
        self._server = subprocess.Popen(
            [sys.executable, __file__, *map(str, imports)],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Ended:
        """A script and its arguments, run to its end."""
        return self.run_together(command, [environment or {}])[0]

    def run_together(self, command: Sequence[str | Path], environments: Sequence[Mapping[str, str]]) -> list[Ended]:
        """The same command once for each environment, at the same time."""
        jobs = []
        for environment in environments:
            self._started += 1
            stderr = str(self._folder / f"stderr-{self._started}")
            jobs.append({"command": [str(part) for part in command], "environment": environment, "stderr": stderr})
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(jobs) + "\n")
        self._server.stdin.flush()
        statuses = json.loads(self._server.stdout.readline())
        return [Ended(status, Path(job["stderr"]).read_text()) for status, job in zip(statuses, jobs, strict=True)]

    def run_ranks(self, ranks: int, command: Sequence[str | Path], port: int = 0) -> None:
        """A script as so many ranks of one run, none of which may fail. Ranks that meet in a file need no port."""
        ended = self.run_together(command, [rank_environment(rank, ranks, port) for rank in range(ranks)])
        assert not any(one.status for one in ended), "".join(one.stderr[-6000:] for one in ended)

    def close(self) -> None:
        """End the process; its children have ended."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


def clean_environment(home: Path) -> dict[str, str]:
    """Nothing of this process's environment but where programs and this package are; an empty home, no network."""
    kept = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
    own = {"HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return {name: os.environ[name] for name in kept if name in os.environ} | own


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells each process of a run on one machine."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    return {name: str(value) for name, value in numbers.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "none",
    }


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def leave(folder: str | Path, found: Any, name: str = "") -> NoReturn:
    """Write what a rank has found, whole or not at all, and go when the others' is there, too.

    A rank that leaves while another is still reading from it can take it down: all wait, by no collective.
    """
    import torch  # which not every launcher's children need
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = Path(folder, f"{name}{rank}.part")
    torch.save(found, part)
    part.rename(part.with_suffix(".pt"))
    while not all(Path(folder, f"{name}{other}.pt").exists() for other in range(ranks)):
        time.sleep(0.02)
    os._exit(0)


def results(folder: Path, ranks: int = 2, name: str = "") -> list[Any]:
    """What each rank has left."""
    import torch

    return [torch.load(folder / f"{name}{rank}.pt", weights_only=True) for rank in range(ranks)]


def _serve(imports: Sequence[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints while it is imported
    for name in imports:
        with contextlib.suppress(ImportError):
            runpy.run_path(name) if name.endswith(".py") else __import__(name)
    gc.collect()
    gc.freeze()  # or the children walk through all that is imported, and so copy its memory
    for line in sys.stdin:
        statuses = _statuses([_fork(job) for job in json.loads(line)])
        print(json.dumps(statuses), file=answers, flush=True)


def _statuses(children: list[int]) -> list[int]:
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        child, status = os.wait()
        statuses[child] = os.waitstatus_to_exitcode(status)
        if statuses[child]:  # the others would wait for it
            for other in set(children) - statuses.keys():
                os.kill(other, signal.SIGTERM)
    return [statuses[child] for child in children]


def _fork(job: dict) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        stderr = os.open(job["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stderr, 2)
        os.dup2(stderr, 1)
        os.environ.update(job["environment"])
        script = job["command"][0]
        sys.argv, sys.path[:1] = job["command"], [str(Path(script).parent), str(Path(__file__).parents[1])]
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1:])
    os._exit(0)  # what the packages would tidy up is nobody's
