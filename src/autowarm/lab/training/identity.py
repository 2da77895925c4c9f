"""A run's id: a hash of everything that determines its numbers."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .. import data, tasks
from ..config import RunConfig


@cache
def code_fingerprint() -> str:
    """Hash of the code that determines a run's numbers, so that results of edited code are never reused.

    It covers the library and the parts of the lab that compute a run: training, tasks and data.
    """
    training = Path(__file__).parent
    lab, package = training.parent, training.parents[1]
    sources = [path for path in package.rglob("*.py") if lab not in path.parents]
    rooms = [training, *map(Path, data.__path__), *map(Path, tasks.__path__)]
    sources += [lab / "registry.py", *(path for room in rooms for path in room.rglob("*.py"))]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(sources))).hexdigest()[:12]


def identity(run: RunConfig, corpus_sha256: str) -> dict[str, Any]:
    """Everything that determines a run's numbers. Runs with the same identity are the same run."""
    return {
        "config": dataclasses.asdict(run),
        "corpus": corpus_sha256,
        "code": code_fingerprint(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def run_id(who: Mapping[str, Any]) -> str:
    """A short hash of an identity."""
    canonical = json.dumps(who, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
