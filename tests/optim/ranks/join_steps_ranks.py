"""One rank of test_join_steps.py: optimizers that exchange messages, within `Join`, on ranks with uneven inputs."""

import copy
import os
import pickle
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

from autowarm import LMO, AdaptiveWarmup, Muon
from autowarm.optim import Together


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))


def pair(model, ranks):
    weights = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    muon = Muon(weights, lr=0.05, dtype=torch.float32, process_group=ranks)
    return Together(torch.optim.SGD(vectors, lr=0.1, momentum=0.9), Together(muon))


MAKERS = {
    "muon": lambda m, ranks: Muon.from_model(m, lr=0.05, dtype=torch.float32, process_group=ranks),
    "svd": lambda m, ranks: LMO([p for p in m.parameters() if p.ndim == 2], lr=0.05, process_group=ranks),
    "together": pair,
}
LENGTHS = ((7, 3), (0, 5), (4, 4))
UNEVEN = ((5, 6), (1, 0))


def batch(rank, t):
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(100 * rank + t))


def loss_of(model, x, bad):
    return model(x).square().mean() * (float("nan") if bad else 1.0)


def life(make, ranks, rank, inputs, *, bad=-1, order="after", loads=-1):
    """The weights, the optimizer's state and the rates once all ranks have joined, and an even epoch was made."""
    model = DistributedDataParallel(net(), process_group=ranks)
    opt = make(model.module, ranks)
    sched = AdaptiveWarmup(opt, 40, max_nonfinite=None, trained=False, process_group=ranks)
    joining = [model, opt, sched] if order == "after" else [model, sched, opt]
    with Join(joining, divide_by_initial_world_size=False):
        for t in range(inputs[rank]):
            update(model, opt, sched, batch(rank, t), t == bad, order)
            if t == loads:
                opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    epoch = [p.detach().clone() for p in model.parameters()]
    with Join(joining, divide_by_initial_world_size=False):
        for t in range(3):
            update(model, opt, sched, batch(rank, 50 + t), False, order)
    momenta = [
        {name: torch.as_tensor(x).clone() for name, x in opt.state.get(p, {}).items() if x is not None}
        for p in model.parameters()
    ]
    return epoch, [p.detach().clone() for p in model.parameters()], momenta, sched.get_last_lr()


def update(model, opt, sched, x, bad, order):
    opt.zero_grad()
    loss = loss_of(model, x, bad)
    loss.backward()
    for step in (opt.step, lambda: sched.step(loss)) if order == "after" else (lambda: sched.step(loss), opt.step):
        step()


def alone(make, inputs, *, bad=-1):
    """The weights of one process, whose gradients are the means over the ranks that have inputs."""
    model = net()
    opt = make(model, None)
    sched = AdaptiveWarmup(opt, 40, max_nonfinite=None, trained=False)
    found = []
    for t in [*range(max(inputs)), *range(50, 53)]:
        if t == 50:
            found.append([p.detach().clone() for p in model.parameters()])
        ranks = [rank for rank in (0, 1) if t >= 50 or t < inputs[rank]]
        losses = [loss_of(model, batch(rank, t), t == bad) for rank in ranks]
        opt.zero_grad()
        (sum(losses) / len(losses)).backward()
        opt.step()
        sched.step(sum(losses) / len(losses))
    return [*found, [p.detach().clone() for p in model.parameters()]]


def error_of(make, ranks, rank, listed):
    """What a rank is told if `Join` does not know of the optimizer, or one rank's gradients are missing."""
    model = DistributedDataParallel(net(), process_group=ranks)
    opt = make(model.module, ranks)
    sched = AdaptiveWarmup(opt, 40, process_group=ranks)
    try:
        with Join([model, *([opt] if listed else []), sched]):
            for t in range((3, 2, 1)[rank]):
                opt.zero_grad()
                loss = loss_of(model, batch(rank, t), False)
                loss.backward()
                if t == 1 and rank == 1:
                    model.module[0].weight.grad = None
                opt.step()
                sched.step(loss)
    except RuntimeError as error:
        return str(error)
    return None


def uneven(make, rank, steps):
    """What a rank is told that makes more steps than the other, without `Join`."""
    two = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    if rank == 2:
        return None
    model = net()
    opt = make(model, two)
    try:
        for t in range(steps[rank]):
            opt.zero_grad()
            loss_of(model, batch(0, t), False).backward()
            opt.step()
    except RuntimeError as error:
        return str(error)
    return None


def main(folder):
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=3, timeout=timedelta(seconds=60))
    two = dist.new_group([0, 1])
    found = {}
    if rank < 2:
        for name, make in MAKERS.items():
            for inputs in LENGTHS:
                for order in ("after", "before"):
                    found[name, inputs, order] = life(make, two, rank, inputs, order=order)
            if name != "together":  # whose SGD would not skip the update
                found[name, (7, 3), "bad"] = life(make, two, rank, (7, 3), bad=5)
                found[name, (7, 3), "loads"] = life(make, two, rank, (7, 3), loads=1)
    everyone = dist.new_group([0, 1, 2])
    for name in ("muon", "together"):
        for listed in (True, False):
            # After an error the ranks' messages no longer match, so each try has a group of its own.
            found["error", name, listed] = error_of(MAKERS[name], dist.new_group([0, 1, 2]), rank, listed)
    for name in MAKERS:
        for steps in UNEVEN:
            dist.barrier(everyone)
            found["uneven", name, steps] = uneven(MAKERS[name], rank, steps)
    dist.barrier(everyone)
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(found))
    dist.barrier()
    os._exit(0)  # a group that has timed out is not to be waited for


if __name__ == "__main__":
    main(sys.argv[1])
