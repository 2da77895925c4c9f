"""Ranks with losses of their own, in real processes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autowarm import AdaptiveWarmup, Lion

SCENARIOS = [
    "plain",
    "nan",
    "missing",
    "settings",
    "steps",
    "skipped",
    "version",
    "tensor",
    "tensor nan",
    "tensor steps",
    "extended",
    "tensor extended",
]
WORKER = """
import json, math, os, sys, time
import torch
import torch.distributed as dist
from autowarm import AdaptiveWarmup, Lion
from autowarm.schedule.rule import reduce

rank, folder, scenarios = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
results = {}
for scenario in scenarios:
    w = torch.nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    opt = Lion([w], lr=torch.tensor(0.01, dtype=torch.float64) if "tensor" in scenario else 0.01)
    reduce.__version__ = "0.0" if scenario == "version" and rank else "1.0"
    sched = AdaptiveWarmup(opt, 60, div=50.0 if scenario == "settings" and rank else 10.0)
    rates, error = [], None
    try:
        for t in range(40):
            loss = 1 + 9 * math.exp(-t / 20) + (0.3 if rank else -0.3) * math.sin(t)
            if "nan" in scenario and rank and t % 3 == 0:
                loss = math.nan
            if "steps" in scenario and rank and t == 5:
                sched.last_epoch += 1
            if "extended" in scenario and rank and t == 20:
                sched.extend(80)
            if not (scenario == "skipped" and rank and t == 5):
                opt.step()
            if not (scenario == "missing" and rank):
                sched.observe(loss, weight=1 + rank)
            sched.step()
            rates.append(float(sched.get_last_lr()[0]))
    except RuntimeError as problem:
        error = str(problem)
    results[scenario] = {"rates": rates, "error": error, "switch": sched.warmup_steps}
with open(f"{folder}/{rank}.part", "w") as file:
    json.dump(results, file)
os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}.json")
# A rank that leaves while the other is still reading from it can take it down: both wait, by no collective, and go.
while not all(os.path.exists(f"{folder}/{r}.json") for r in (0, 1)):
    time.sleep(0.02)
os._exit(0)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict]]:
    """What two gloo ranks saw, by scenario; one pair of processes serves all, for starting them is what takes time."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, str(rank), str(folder), *SCENARIOS],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=240)
        assert worker.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("scenario", ["plain", "nan", "missing", "tensor", "tensor nan"])
def test_rates_are_the_same_to_the_bit(scenario: str, ranks: list[dict[str, dict]]) -> None:
    a, b = ranks[0][scenario], ranks[1][scenario]
    assert a == b
    assert a["error"] is None
    assert len(set(a["rates"])) > 20


def test_the_mean_is_weighted_over_ranks(ranks: list[dict[str, dict]]) -> None:
    w = nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    opt = Lion([w], lr=0.01)
    alone = AdaptiveWarmup(opt, 60)
    rates = []
    for t in range(40):
        base = 1 + 9 * math.exp(-t / 20)
        opt.step()
        alone.step((base - 0.3 * math.sin(t) + 2 * (base + 0.3 * math.sin(t))) / 3)
        rates += alone.get_last_lr()
    assert ranks[0]["plain"]["rates"] == pytest.approx(rates, rel=1e-9)


def test_tensor_rates_are_those_of_float_ones(ranks: list[dict[str, dict]]) -> None:
    for scenario in ("plain", "nan"):
        found = ranks[0]["tensor" if scenario == "plain" else "tensor nan"]
        assert found["rates"] == pytest.approx(ranks[0][scenario]["rates"], rel=1e-12)
        assert found["switch"] == ranks[0][scenario]["switch"]


@pytest.mark.parametrize(
    ("scenario", "what"),
    [
        ("settings", "settings"),
        ("version", "settings"),
        ("steps", "steps"),
        ("skipped", "steps"),
        ("tensor steps", "steps or settings"),
        ("extended", "settings"),
        ("tensor extended", "steps or settings"),
    ],
)
def test_ranks_that_disagree_fail_together(scenario: str, what: str, ranks: list[dict[str, dict]]) -> None:
    for seen in ranks:
        assert f"ranks disagree: AdaptiveWarmup has different {what}" in seen[scenario]["error"]
