"""A loop of one's own around ``torch.compile(model)``: clipping, evaluation, a checkpoint every ten updates.

``compiled.py FOLDER UPDATES``; it goes on from ``FOLDER/checkpoint.pt`` where there is one. The backend is the one that
needs no C++ compiler; the graphs are those of the default.
"""

import os
import sys
from pathlib import Path

import torch
from client import Record
from torch import nn

from autowarm import AdaptiveWarmup, Muon


def main(folder: Path, updates: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(1024, 24)
    y = (x @ torch.randn(24, 6)).argmax(dim=1)
    model = nn.Sequential(
        nn.Linear(24, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 6)
    )
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    opt = Muon.from_model(compiled, lr=1e-2)
    sched = AdaptiveWarmup(opt, total_steps=updates)
    saved_at, record, start = folder / "checkpoint.pt", Record(folder), 0
    parts = {"model": compiled, "optimizer": opt, "scheduler": sched}
    if saved_at.exists():
        saved = torch.load(saved_at, weights_only=True)
        start = saved.pop("updates")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    for update in range(start, updates):
        batch = torch.randint(len(x), (64,), generator=torch.Generator().manual_seed(update))
        lr = sched.get_last_lr()[0]
        loss = nn.functional.cross_entropy(compiled(x[batch]), y[batch])
        loss.backward()
        nn.utils.clip_grad_norm_(compiled.parameters(), 1.0)
        opt.step()
        sched.step(loss)
        opt.zero_grad()
        if (update + 1) % 10 == 0:
            states = {name: part.state_dict() for name, part in parts.items()} | {"updates": update + 1}
            torch.save(states, saved_at.with_suffix(".part"))
            os.replace(saved_at.with_suffix(".part"), saved_at)
        record.update(update + 1, lr, loss.item())
    record.finish(model, sched)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
