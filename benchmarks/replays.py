"""Measures `autowarm.replay` on long logs: CPU seconds and the most memory, each in a process of its own.

python benchmarks/replays.py
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

UPDATES = 1_000_000


def main() -> None:
    """Write a table of a million rows and a trainer_state.json of as many, and replay both."""
    steps = np.arange(1, UPDATES + 1)
    losses = 2.0 + 8.0 * np.exp(-steps / 60_000) + 0.05 * np.random.default_rng(0).standard_normal(UPDATES)
    rates = 3e-4 * np.minimum(1.0, steps / 20_000)
    rows = list(zip(steps.tolist(), losses.tolist(), rates.tolist(), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        table, state = Path(folder, "log.csv"), Path(folder, "trainer_state.json")
        table.write_text("step,loss,lr\n" + "".join(f"{s},{x:.6f},{r:.6g}\n" for s, x, r in rows))
        history = [
            {"epoch": s / 300_000, "grad_norm": 1.2345678, "learning_rate": r, "loss": round(x, 4), "step": s}
            for s, x, r in rows
        ]
        state.write_text(json.dumps({"global_step": UPDATES, "max_steps": UPDATES, "log_history": history}))
        for path in (table, state):
            said = subprocess.run([sys.executable, __file__, str(path)], check=True, capture_output=True, text=True)
            print(f"{path.name}, {path.stat().st_size / 1e6:.0f} MB: {said.stdout.strip()}")


def measure(path: str) -> None:
    """Replay one log, and print what it took, imports included."""
    import autowarm

    found = autowarm.replay(path)
    [most] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(f"{time.process_time():.1f} CPU-s, {int(most.split()[1]) / 1024:.0f} MB; ended at {found.reading}")


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
