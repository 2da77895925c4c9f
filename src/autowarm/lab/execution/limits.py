"""How many workers this machine has room for, or the container that this process runs in (cgroup v2)."""

import math
import os
from contextlib import suppress
from pathlib import Path

_GROUPS, _OWN, _MEMORY = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")
_OF_A_WORKER = 400 << 20  # bytes for a small run; one with a large network has `--workers` set


def room(groups: Path = _GROUPS, own: Path = _OWN, meminfo: Path = _MEMORY) -> int:
    """The number of single-threaded workers that the cores, the memory and a container's quotas of both allow."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free: float = _number(meminfo, "MemAvailable:") * 1024
    for group in _groups(groups, own):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            cores = min(cores, math.inf if quota == "max" else int(quota) / int(period))
        with suppress(OSError, ValueError):  # files that were read and can be read again are no use
            used = int((group / "memory.current").read_text()) - _number(group / "memory.stat", "inactive_file", 0)
            free = min(free, int((group / "memory.max").read_text()) - used)
    return max(1, int(min(cores, free // _OF_A_WORKER)))


def _groups(groups: Path, own: Path) -> list[Path]:
    """This process's group and those around it, each of which may have a limit."""
    with suppress(OSError):
        for place in (groups / line[4:] for line in own.read_text().splitlines() if line.startswith("0::/")):
            return [place, *(group for group in place.parents if group.is_relative_to(groups))]
    return []


def _number(file: Path, name: str, otherwise: float = math.inf) -> float:
    """The number after a name in a file of such lines."""
    with suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return otherwise
