"""Stores a checkpoint and a scheduler's state of the present schema here: python tests/data/make_samples.py

They are made anew when a schema is raised, and kept from then on: later versions must load them or name their schema.
"""

import json
import math
import os
import shutil
from pathlib import Path

import torch

from autowarm import AdaptiveWarmup, Lion, Muon
from autowarm.lab.training.checkpoint import SCHEMA, Checkpoints
from autowarm.lab.training.parallel import Ranks
from autowarm.schedule.state import STATE_VERSION

STEPS, AT = 40, 12


def small() -> tuple[torch.nn.Module, Muon]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
    return model, Muon.from_model(model, lr=0.01, heads=[])  # as the first samples were made


def scheduled() -> AdaptiveWarmup:
    p = torch.nn.Parameter(torch.zeros(4, 4))
    p.grad = torch.ones(4, 4)
    return AdaptiveWarmup(Lion([p], lr=0.01), STEPS)


def rates(scheduler: AdaptiveWarmup, first: int, last: int) -> list[float]:
    found = []
    for t in range(first, last):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step(1 + 9 * math.exp(-t / 10))
    return found


def main() -> None:
    os.chdir(Path(__file__).parent)
    model, optimizer = small()
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = Path(f"checkpoints-{SCHEMA}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    Checkpoints(folder, Ranks(0, 1, torch.device("cpu")), "sample").save(3, model, optimizer, {"note": 7})
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    (folder / "weights.json").write_text(json.dumps(weights) + "\n")
    scheduler = scheduled()
    before = rates(scheduler, 0, AT)
    sample = {"state": scheduler.state_dict(), "rates": before + rates(scheduler, AT, STEPS)}
    Path(f"scheduler-{STATE_VERSION}.json").write_text(json.dumps(sample, indent=1) + "\n")


if __name__ == "__main__":
    main()
