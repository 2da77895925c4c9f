"""What runs cost before their first update: `python benchmarks/starts.py`, in an environment with the extra `lab`.

Prints the processor's seconds and the private memory of a worker at its first update, and of all processes of a
comparison of ten runs of 100 updates on two workers, and of `autowarm train` with 200. Linux only; nothing is stored.
"""

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: what a child leaves behind is ours to wait for, and to count
_TEN = {"rates": "{muon: [0.01]}", "run.steps": 100, "seeds": "[0, 1]", "warmups": "[1, 0.1, 0.2, 0.4]", "workers": 2}


def first_update(folder: Path, on_step: object) -> dict[str, object]:
    """Run one update in a worker, and return what the worker has cost by then."""
    from autowarm.lab.config import DataConfig, ModelConfig, RunConfig
    from autowarm.lab.training.loop import train

    found: dict[str, object] = {}

    def look(_: object) -> None:
        rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
        found["MB"] = sum(int(row[1]) for row in rows if row[0].startswith("Private_")) / 1e3
        used = resource.getrusage(resource.RUSAGE_SELF)
        found["CPU-s"] = used.ru_utime + used.ru_stime

    model = ModelConfig(layers=2, width=64, heads=4, ff=176, vocab_size=512, seq_len=64)
    train(RunConfig(model=model, data=DataConfig(), steps=1, batch_size=8), folder, on_step=look)
    return {"val_loss": 0.0, "diverged": False, "warmup_steps": 0, "seconds": 0.0, **found}


def workers(folder: Path) -> None:
    """Start a worker three times: what is not shared, such as files that only the first reads, shows in the first."""
    from autowarm.lab.execution.display import Display
    from autowarm.lab.execution.pool import Job, called, run_jobs

    for index in range(3):
        call = partial(called, "starts:first_update", folder / str(index))
        rows: list[dict[str, object]] = []
        job = Job("first", 1, call, folder, ("transformers.models.llama.modeling_llama",))
        failed = run_jobs([job], 1, Display(), 0, lambda _, row, to=rows: to.append(row))
        print(f"worker {index}: {rows[0]['CPU-s']:.2f} CPU-s, {rows[0]['MB']:.0f} MB private" if rows else failed)


def command(*words: object) -> None:
    """Run the command and print the seconds of all its processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "autowarm", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    try:
        while True:
            os.wait()
    except ChildProcessError:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"autowarm {words[0]}: {used:.1f} CPU-s, {wall:.1f} s")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as scratch:
        command("compare", "--out", f"{scratch}/compare", *(f"--{key}={value}" for key, value in _TEN.items()))
        command("train", "--out", f"{scratch}/train", "--steps", 200, "--data.max_bytes", 600000)
        workers(Path(scratch))
