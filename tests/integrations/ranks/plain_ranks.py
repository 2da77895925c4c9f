"""Run on two processes, as by ``torchrun``: a loop of one's own under DDP, whole and resumed."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from leaving import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autowarm import AdaptiveWarmup, Muon
from autowarm.optim import geometry_of, kappa_of

torch.set_num_threads(1)
STEPS, LR, FOLDER = 12, 0.02, Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()


def make() -> tuple[nn.Module, Muon, AdaptiveWarmup]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    opt = Muon.from_model(model, lr=LR)
    return DistributedDataParallel(model), opt, AdaptiveWarmup(opt, STEPS)


def train(model: nn.Module, opt: Muon, sched: AdaptiveWarmup, steps: range) -> tuple[list[float], list[list[float]]]:
    rates, losses = [], []
    for t in steps:
        rates.append(sched.get_last_lr()[0])
        losses.append([])
        for micro in (0, 1):
            x = torch.randn(6, 6, generator=torch.Generator().manual_seed(100 * t + 10 * micro + rank))
            loss = model(x).square().mean() + 1
            (loss / 2).backward()
            sched.observe(loss, weight=len(x))
            losses[-1].append(loss.item())
        opt.step()
        sched.step()
        opt.zero_grad()
    return rates, losses


model, opt, sched = make()
rates, losses = train(model, opt, sched, range(5))
saved = {"model": model.state_dict(), "optimizer": opt.state_dict(), "scheduler": sched.state_dict()}
torch.save(saved, FOLDER / f"saved-{rank}.pt")
more, more_losses = train(model, opt, sched, range(5, STEPS))

model, opt, sched = make()
loaded = torch.load(FOLDER / f"saved-{rank}.pt", weights_only=True)
for part, name in ((model, "model"), (opt, "optimizer"), (sched, "scheduler")):
    part.load_state_dict(loaded[name])
resumed, resumed_losses = train(model, opt, sched, range(5, STEPS))
result = {
    "rates": rates + more,
    "resumed": rates + resumed,
    "losses": losses + more_losses,
    "resumed losses": losses + resumed_losses,
    "kappa": kappa_of(opt, geometry_of(opt)),
    "phase": sched.phase,
}
leave(FOLDER, rank, result)
