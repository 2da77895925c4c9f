"""Measure on a GPU whatever needs one, within a given time, and go on where an earlier call stopped.

    make gpu                                                              # up to 35 minutes; writes docs/data/gpu.json
    PYTHONPATH=src python3 benchmarks/gpu.py --minutes 9 --out FOLDER     # again and again, until it says it is done
    PYTHONPATH=src python3 benchmarks/gpu.py steps llama                  # these parts, anew
    make gpu DRY=1                                                        # without a GPU: tiny shapes, no GPU's numbers

Each part (see `gpu_parts.py`) runs in a process of its own, for one that crashes or hangs must not take the others
along. Every result is written to gpu.json at once. A part that failed is tried again by the next call, after all
others. It needs torch and numpy; pytest for the tests, and what `pip install autowarm[lab]` brings for LLaMA-124M.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gpu_page
import torch
from gpu_parts import PARTS, Found, Known, Setting

import autowarm

_WORTH_STARTING = 0.3  # of a part's seconds


class Store:
    """gpu.json: of each part its results so far, whether it is finished, and why it failed.

    Results of another machine or other versions do not count; they are kept beside.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.path = folder / "gpu.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.content: dict[str, Any] = {"environment": environment, "parts": {}}
        if self.path.exists():
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            if stored["environment"] == environment:
                self.content = stored
            else:
                self.path.replace(self.path.with_suffix(".other.json"))
        self.parts: dict[str, dict[str, Any]] = self.content["parts"]

    def write(self) -> None:
        scratch = self.path.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        scratch.replace(self.path)


def measure(name: str, part: Callable[[Known, Setting], Found], store: Store, dry: bool) -> None:
    """Run one part here; its results, or what went wrong, are in the store."""
    start = time.monotonic()
    entry = store.parts.setdefault(name, {"finished": False, "results": {}})
    entry.pop("failed", None)
    known: Known = dict(entry["results"])
    try:
        for key, result in part(known, Setting(dry)):
            entry["results"][key] = result
            store.write()
            print(f"{name}: {key}: {result}", flush=True)
        entry["finished"] = True
    except Exception as error:
        entry["failed"] = f"{type(error).__name__}: {error}"[:500]
    entry["seconds"] = round(entry.get("seconds", 0.0) + time.monotonic() - start, 1)
    store.write()


def measure_apart(name: str, folder: Path, dry: bool, seconds: float) -> str | None:
    """The same in a process of its own; why it ended, where it did not end by itself."""
    words = [sys.executable, __file__, name, "--inner", "--out", str(folder), *["--dry-run"] * dry]
    with subprocess.Popen(words, start_new_session=True) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with all that it started
            return f"stopped after {seconds:.0f} s"
    return f"ended with code {code}" if code else None


def environment(dry: bool) -> dict[str, str]:
    """What numbers may depend on."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "autowarm": autowarm.__version__}
    for package in ("transformers", "dion"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions | {"device": "none: a dry run" if dry else torch.cuda.get_device_name()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"measure these anew, of {', '.join(PARTS)}; default: what is missing")
    parser.add_argument("--minutes", type=float, default=35.0, help="stop after so many (default 35)")
    parser.add_argument("--out", type=Path, help="folder of gpu.json (default docs/data; of a dry run a new one)")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the processor")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)  # a part's process
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}: use some of {', '.join(PARTS)}")
    if not options.dry_run and not torch.cuda.is_available():
        sys.exit("no GPU is at hand; `make gpu DRY=1` tries everything without one")
    default = Path(tempfile.mkdtemp(prefix="gpu-dry-run-")) if options.dry_run else gpu_page.STORED.parent
    folder = options.out or default
    here = environment(options.dry_run)
    if options.inner:
        (name,) = options.parts
        measure(name, PARTS[name][0], Store(folder, here), options.dry_run)
        return

    deadline = time.monotonic() + 60 * options.minutes
    store = Store(folder, here)
    for name in options.parts:
        store.parts.pop(name, None)
    store.write()
    missing = options.parts or [name for name in PARTS if not store.parts.get(name, {}).get("finished")]
    for name in sorted(missing, key=lambda name: "failed" in store.parts.get(name, {})):
        limit = PARTS[name][1]
        seconds = min(limit, deadline - time.monotonic())
        if seconds < _WORTH_STARTING * limit:
            print(f"{name}: left for another call, {seconds:.0f} s are too few", flush=True)
            continue
        ended = measure_apart(name, folder, options.dry_run, seconds)
        store = Store(folder, here)
        entry = store.parts.setdefault(name, {"finished": False, "results": {}})
        if ended is not None:
            entry |= {"finished": False, "failed": ended}
            store.write()
        print(f"{name}: {'finished' if entry['finished'] else 'failed: ' + entry['failed']}", flush=True)
    left = [name for name in PARTS if not store.parts.get(name, {}).get("finished")]
    print(f"{store.path}: " + (f"still missing: {', '.join(left)}; call again" if left else "done"))
    if store.path == gpu_page.STORED:
        gpu_page.main()


if __name__ == "__main__":
    main()
