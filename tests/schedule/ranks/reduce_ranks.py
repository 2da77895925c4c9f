"""One rank of test_reduce.py: the scenarios it is told, and what it saw of each, in a file of its own."""

import math
import os
import sys
import warnings

import torch
import torch.distributed as dist

from autowarm import AdaptiveWarmup, Lion
from autowarm import losses as reduce
from tests.programs import leave

rank, folder, scenarios = int(os.environ["RANK"]), sys.argv[1], sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
warnings.simplefilter("ignore")
results = {}
for scenario in scenarios:
    w = torch.nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    peak = 0.02 if scenario == "peak" and rank else 0.01
    groups = [{"params": [w]}]
    if "stage" in scenario and rank:  # of a pipeline, which holds other groups than the first one
        other = {"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 0.0 if "frozen" in scenario else 0.03}
        groups.insert(0 if "frozen" in scenario else 1, other | {"warmup": "steady" not in scenario})
    opt = Lion(groups, lr=torch.tensor(peak, dtype=torch.float64) if "tensor" in scenario else peak)
    reduce.AT_ONCE = () if scenario.startswith("late") else ("cpu",)  # as on an accelerator
    reduce.__version__ = "0.0" if scenario == "version" and rank else "1.0"
    decays = [lambda p: 1 - p, lambda p: 1 - p * p]  # of one name
    decay = decays[rank] if scenario == "function" else "cosine"
    sched = AdaptiveWarmup(opt, 60, div=50.0 if scenario == "settings" and rank else 10.0, decay=decay)
    rates, error = [], None
    try:
        for t in range(40):
            loss = 1 + 9 * math.exp(-t / 20) + (0.3 if rank else -0.3) * math.sin(t)
            if "nan" in scenario and rank and t % 3 == 0:
                loss = math.nan
            if "steps" in scenario and rank and t == 15:
                sched._state = sched._state._replace(updates=sched.last_epoch + 1)
            if "base_lrs" in scenario and rank and t == 15:
                sched.base_lrs = [2 * peak for peak in sched.base_lrs]
            if "extended" in scenario and rank and t == 20:
                sched.extend(80)
            if not (scenario == "skipped" and rank and t == 5):
                opt.step()
            if not (scenario == "missing" and rank):
                sched.observe(loss, weight=1 + rank)
            sched.step()
            rates.append(next(float(group["lr"]) for group in opt.param_groups if group["params"][0] is w))
    except RuntimeError as problem:
        error = str(problem)
    results[scenario] = {"rates": rates, "error": error, "switch": sched.warmup_steps}
leave(folder, results)
