"""How long the library takes to import beyond torch itself: medians of fresh interpreters.

``python benchmarks/import_time.py [ROUNDS]``
"""

import statistics
import subprocess
import sys

CODE = """
import time
start = time.perf_counter()
import torch, numpy
middle = time.perf_counter()
import autowarm
autowarm.AdaptiveWarmup, autowarm.Muon
print(middle - start, time.perf_counter() - middle)
"""


def main(rounds: int = 7) -> None:
    """Prints both times."""
    times = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        times.append([float(word) for word in done.stdout.split()])
    torch_alone, ours = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"torch and numpy {torch_alone:.2f} s, autowarm beyond them {ours * 1e3:.0f} ms (of {rounds} runs)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
