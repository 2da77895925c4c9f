"""A small comparison that several tests make, break off and compare with."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..helpers import numbers

RUNS = 6
WORDS = [
    "--config", "smoke", "--run.model.vocab_size", "280", "--run.steps", "40", "--run.checkpoint_every", "10",
    "--rates", "{muon: [0.01]}", "--warmups", "[0.2]",
]  # fmt: skip


def words(corpus: Path, out: Path, *more: str) -> list[str]:
    return ["compare", *WORDS, "--run.data.corpus", str(corpus), "--out", str(out), *more]


@contextmanager
def started(corpus: Path, out: Path, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """The command in a session of its own, ended with the block however that ends."""
    command = [sys.executable, "-m", "autowarm", *words(corpus, out, *more)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()  # its workers follow by themselves


def rows(out: Path) -> list[dict[str, Any]]:
    """The finished runs, without what differs from machine to machine."""
    return [numbers(row) for row in json.loads((out / "results.json").read_text())["runs"]]
