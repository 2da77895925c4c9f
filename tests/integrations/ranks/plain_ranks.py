"""Run on two processes, as by ``torchrun``: a loop of one's own under DDP, whole and resumed."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autowarm import AdaptiveWarmup, Muon
from autowarm.optim import geometry_of, kappa_of
from tests.integrations import plain
from tests.programs import leave

torch.set_num_threads(1)
STEPS, LR, FOLDER = 12, 0.02, Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()


def make() -> tuple[nn.Module, Muon, AdaptiveWarmup]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    opt = Muon.from_model(model, lr=LR)
    return DistributedDataParallel(model), opt, AdaptiveWarmup(opt, STEPS)


def train(updates: range) -> tuple[list[float], list[list[float]]]:
    losses: list[float] = []

    def micro_loss(model: nn.Module, i: int) -> torch.Tensor:
        x = torch.randn(6, 6, generator=torch.Generator().manual_seed(10 * i + rank))
        losses.append(float(loss := model(x).square().mean() + 1))
        return loss

    rates = plain.train(model, opt, micro_loss, 2, lambda i: 6, sched, updates)
    return rates, [losses[i : i + 2] for i in range(0, len(losses), 2)]


model, opt, sched = make()
rates, losses = train(range(5))
saved = {"model": model.state_dict(), "optimizer": opt.state_dict(), "scheduler": sched.state_dict()}
torch.save(saved, FOLDER / f"saved-{rank}.pt")
more, more_losses = train(range(5, STEPS))

model, opt, sched = make()
loaded = torch.load(FOLDER / f"saved-{rank}.pt", weights_only=True)
for part, name in ((model, "model"), (opt, "optimizer"), (sched, "scheduler")):
    part.load_state_dict(loaded[name])
resumed, resumed_losses = train(range(5, STEPS))
result = {
    "rates": rates + more,
    "resumed": rates + resumed,
    "losses": losses + more_losses,
    "resumed losses": losses + resumed_losses,
    "kappa": kappa_of(opt, geometry_of(opt)),
    "phase": sched.phase,
}
leave(FOLDER, result)
