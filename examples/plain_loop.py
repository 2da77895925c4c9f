"""A plain PyTorch loop: a classifier on made-up data, Muon, and no warm-up to choose."""

import torch
from torch import nn

from autowarm import AdaptiveWarmup, Muon

torch.manual_seed(0)
STEPS = 200
x = torch.randn(2048, 32)
y = (x @ torch.randn(32, 10)).argmax(dim=1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

opt = Muon.from_model(model, lr=1e-2)
sched = AdaptiveWarmup(opt, total_steps=STEPS)
for step in range(STEPS):
    batch = torch.randint(len(x), (128,))
    loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
    loss.backward()
    opt.step()
    sched.step(loss)
    opt.zero_grad()
    if step % 20 == 0:
        print(f"step {step:3d}  loss {loss.item():.3f}  rate {sched.get_last_lr()[0]:.2e}  {sched.phase}")
print(f"warm-up took {sched.warmup_steps} of {STEPS} steps; final loss {loss.item():.3f}")
