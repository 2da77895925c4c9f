"""What autowarm adds: a scheduler's step, recovery. What is compared is timed in turns.

python benchmarks/overhead.py scheduler
OMP_NUM_THREADS=1 python benchmarks/overhead.py recovery                    # writes docs/data/tables/recovery-costs.csv
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from optimizers import measure_peak
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from autowarm import AdaptiveWarmup, Lion, Muon, NormSGD
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.config import ModelConfig
from autowarm.lab.tasks.models import llama, token_loss
from autowarm.rate.restore import Snapshot

TABLES = Path(__file__).parents[1] / "docs" / "data" / "tables"


def medians(calls: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Seconds of each call. They take turns, so that a busy machine slows all alike; the first two warm caches."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[2:]) for name, taken in times.items()}


def scheduler(given: argparse.Namespace) -> None:
    """A float rate, then a tensor rate, which stays on its device. The optimizer's own step is taken off."""
    repeats, total, loss = 400, 10**7, torch.tensor(5.0)

    def make(lr: float | torch.Tensor, kind: Callable[..., LRScheduler] | None, **options: float) -> Callable[[], None]:
        w = torch.nn.Parameter(torch.zeros(2, 2))
        w.grad = torch.ones(2, 2)
        optimizer = Lion([w], lr=lr)
        sched = kind(optimizer, total, **options) if kind else None

        def steps() -> None:
            for _ in range(repeats):
                optimizer.step()
                if sched is not None:
                    sched.step(*[loss] * isinstance(sched, AdaptiveWarmup))

        return steps

    for kind, lr in (("float", lambda: 0.01), ("tensor", lambda: torch.tensor(0.01))):
        found = medians({"optimizer": make(lr(), None), "CosineAnnealingLR": make(lr(), CosineAnnealingLR),
                         "warm-up": make(lr(), AdaptiveWarmup),
                         "decay": make(lr(), AdaptiveWarmup, max_warmup=1e-9)}, given.turns)  # fmt: skip
        alone = found.pop("optimizer")
        for name, seconds in found.items():
            print(f"{kind:6} lr  {name:18} {(seconds - alone) / repeats * 1e6:6.1f} µs")


def recovery(given: argparse.Namespace) -> None:
    """Whole runs with recovery and without it, in turns: the copy's bytes, and the share of a run's time in the guard.

    A share of wall time would drown in what else the machine does, so the thread's CPU time in `scheduler.step` counts.
    """
    total, config = 1000, ModelConfig(layers=2, width=128, heads=4, ff=352, vocab_size=512, seq_len=64)
    tokens = torch.randint(512, (8, 65), generator=torch.Generator().manual_seed(0))

    def run(make: Callable[[nn.Module], Optimizer], **options: bool) -> tuple[float, float, list[int]]:
        model = llama(config, seed=0)
        optimizer = make(model)
        scheduler = AdaptiveWarmup(optimizer, total, **options)
        inside, start = 0.0, time.thread_time()
        for _ in range(total):
            loss = token_loss(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            before = time.thread_time()
            scheduler.step(loss.detach())
            inside += time.thread_time() - before
        whole = time.thread_time() - start
        assert not options or scheduler.recoveries == []
        copied = measure_peak(lambda: Snapshot(optimizer), torch.device("cpu"))
        return inside, whole, [copied, sum(p.nbytes for p in model.parameters())]

    makers: dict[str, Callable[[nn.Module], Optimizer]] = {
        "Muon": lambda model: Muon.from_model(model, lr=3e-3),
        "Lion": lambda model: Lion.from_model(model, lr=1e-4),
        "normSGD": lambda model: NormSGD.from_model(model, lr=3e-2),
        "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    }
    rows = []
    for name, make in makers.items():
        plain, _, _ = run(make)
        guarded, whole, (copied, weights) = run(make, recover=True)
        rows.append([name, f"{copied / weights:.2f}", f"{100 * (guarded - plain) / whole:.2f}"])
        print(*rows[-1], flush=True)
    headings = ["optimizer", "a copy, × the weights", "% of a run's time"]
    (TABLES / "recovery-costs.csv").write_text(comma_separated(headings, rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = {"scheduler": scheduler, "recovery": recovery}
    parser.add_argument("what", choices=what)
    parser.add_argument("--turns", type=int, default=20)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    what[given.what](given)


if __name__ == "__main__":
    main()
