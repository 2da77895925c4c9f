"""A plain PyTorch loop: AdamW on a deep network, and no warm-up to choose."""

import torch
from torch import nn

from autowarm import AdaptiveWarmup

torch.manual_seed(0)
STEPS = 1000
teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))  # whose classes the network learns
hidden = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), *hidden, nn.Linear(128, 10))

opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
sched = AdaptiveWarmup(opt, STEPS)
for step in range(STEPS):
    x = torch.randn(128, 32)
    loss = nn.functional.cross_entropy(model(x), teacher(x).argmax(1))
    loss.backward()
    opt.step()
    sched.step(loss)
    opt.zero_grad()
    if step % 100 == 0:
        print(f"step {step:3d}  loss {loss.item():.3f}  rate {sched.get_last_lr()[0]:.2e}  {sched.phase}")
print(f"warm-up took {sched.warmup_steps} of {STEPS} steps; final loss {loss.item():.3f}")
