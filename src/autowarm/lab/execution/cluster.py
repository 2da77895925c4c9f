"""Jobs on a Ray cluster (extra `ray`): one task per job, which Ray restarts elsewhere if its machine dies.

Every machine must see the same files at the same paths and have autowarm installed. A restarted run continues from its
newest intact checkpoint.
"""

import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

from ..errors import LabError, needs
from ..processes import Interrupted, Stop
from .display import Display
from .pool import Event, Job, follow, message_of, perform, set_up

_LIVES = 4  # do not restart a job that has lost this many workers


class Board:
    """An actor on the caller's machine: tasks report to it, and learn from it when to stop."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stopped = False

    def report(self, event: Event) -> bool:
        """Store an event; return whether the task must stop."""
        self.events.append(event)
        return self.stopped

    def read(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def stop(self) -> None:
        self.stopped = True


def _work(job: Job, board: Any, folder: str) -> dict[str, Any]:
    import ray

    os.chdir(folder)  # resolve relative paths as the caller does
    set_up()
    stopped = False

    def report(event: Event) -> None:
        nonlocal stopped
        stopped = ray.get(board.report.remote(event))

    return perform(job, report, lambda: stopped)


def _join(address: str | None) -> None:
    """Join the cluster; LabError if there is none. Ray itself would retry for minutes where nothing answers."""
    import ray

    try:
        if address not in (None, "auto") and "://" not in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        dashboard = False if address is None else None  # of a cluster that runs already, its own setting counts
        ray.init(address=address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError) as error:  # ConnectionError is an OSError
        raise LabError(f"no Ray cluster at {address}: {' '.join(str(error).split())}") from None


def run_jobs(jobs: Sequence[Job], address: str | None, display: Display, done: int) -> dict[str, str]:
    """Do every job on the cluster; return the messages of those that failed. Like `pool.run_jobs`.

    The address HOST:PORT or "auto" is a running cluster; None starts Ray on this machine and stops it afterwards.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # do not send usage data
    with needs("engine ray", "ray"):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    display.note("joining the cluster")
    _join(address)
    try:
        on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board: Any = ray.remote(Board).options(num_cpus=0, scheduling_strategy=on_this_node).remote()
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        slots = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 0))  # more may join later
        display.begin([(job.name, job.steps) for job in jobs], done=done, workers=min(max(1, slots), len(jobs)))
        work = ray.remote(_work).options(num_cpus=1, num_gpus=gpus, max_retries=_LIVES - 1)
        refs = [work.remote(job, board, os.getcwd()) for job in jobs]
        pending = {ref.future(): job.name for ref, job in zip(refs, jobs, strict=True)}

        def news() -> list[Event]:
            ray.wait(refs, num_returns=len(refs), timeout=0.3)
            return ray.get(board.read.remote())

        with Stop() as asked, asked.gently():
            try:
                return follow(pending, news, asked, display, _message)
            except Interrupted:
                ray.get(board.stop.remote())
                for ref in refs:
                    ray.cancel(ref, force=False)  # cancels tasks that have not begun; the board stops running ones
                ray.wait(refs, num_returns=len(refs), timeout=30)
                raise
    finally:
        ray.shutdown()


def _message(error: Exception) -> str:
    """Return the message of a job's error, unwrapped from Ray's."""
    if cause := getattr(error, "cause", None):
        return message_of(cause)
    return f"lost with its worker {_LIVES} times: {' '.join(str(error).split())[:300]}"  # one machine after the other
