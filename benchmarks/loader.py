"""What reading batches of tokens costs a training step.

`python benchmarks/loader.py` writes shards of random tokens and measures the median time to read a batch, and how long
a step waits for its batch while it lets a device compute. Reading ahead is compared with reading when the batch is
needed, and with no reading at all. The table goes to docs/data/tables/loader.csv, or to --out.

The files are in the page cache. A device's step is a sleep: the host waits for it without Python's lock.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.config import LLAMA_124M
from autowarm.lab.data.batches import batch, training_batches
from autowarm.lab.data.shards import Shards, write_shard

H100 = 989e12  # bfloat16 operations a second, by its data sheet: no step is faster
PARAMETERS = 123_587_328  # of the 124M model


def waits(batches: Iterator[Any], steps: int, seconds: float) -> list[float]:
    """Seconds that each of these steps waits for its batch, without the first two."""
    found = []
    for _ in range(steps):
        start = time.perf_counter()
        next(batches)
        found.append(time.perf_counter() - start)
        if seconds:
            time.sleep(seconds)
    return found[2:]


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", type=int, default=103)
    parser.add_argument("--tokens", type=int, default=10**6, help="in each shard")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=52)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/data/tables/loader.csv")
    args = parser.parse_args()
    seq_len, rows, steps = LLAMA_124M.seq_len, args.rows, args.steps
    seconds = 6 * PARAMETERS * rows * seq_len / H100
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"train_{i:06d}.bin" for i in range(args.shards)]
        for path in paths:
            write_shard(path, random.integers(0, 50257, size=args.tokens).astype(np.uint16))
        shards = Shards(paths, 50304)
        same = torch.from_numpy(batch(shards, 0, 0, rows, seq_len))
        readers = {
            "nothing": lambda: itertools.repeat(same),
            "sorted windows": lambda: (torch.from_numpy(batch(shards, 0, step, rows, seq_len))
                                       for step in itertools.count()),
            "sorted windows, read ahead": lambda: training_batches(shards, 0, 0, steps, rows, seq_len),
            "the same, in epochs": lambda: training_batches(shards, 0, 0, steps, rows, seq_len, sampling="epochs"),
        }  # fmt: skip
        headings, lines = ("reads", "ms a batch", "a step waits, ms", "share of a step, %"), []
        for name, reader in readers.items():
            alone = statistics.median(waits(reader(), steps, 0.0))
            waited = statistics.median(waits(reader(), steps, seconds))
            lines.append((name, f"{1e3 * alone:.2f}", f"{1e3 * waited:.2f}", f"{100 * waited / seconds:.2f}"))
    print(f"{rows} rows of {seq_len} tokens from {args.shards} shards; a step takes {1e3 * seconds:.0f} ms")
    for line in [headings, *lines]:
        print("  ".join(f"{cell:>26}" for cell in line))
    args.out.write_text(comma_separated(headings, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
