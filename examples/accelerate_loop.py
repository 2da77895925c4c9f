"""Accelerate: a loop of one's own with gradient accumulation, on any number of processes.

On two processes: torchrun --nproc_per_node 2 accelerate_loop.py, or accelerate launch where there are GPUs.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autowarm.integrations.accelerate import WarmupScheduler

torch.manual_seed(0)
ACCUMULATION = 2
teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))  # whose classes the network learns
hidden = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), *hidden, nn.Linear(128, 10))
x = torch.randn(128_000, 32)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(x, teacher(x).argmax(1)), batch_size=64, shuffle=True)
model, opt, loader = accelerator.prepare(model, opt, loader)
# Updates, so many on every process. The scheduler is left out of prepare.
sched = WarmupScheduler(accelerator, opt, total_steps=len(loader) // ACCUMULATION)
for inputs, labels in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        opt.step()
        sched.step(loss, weight=len(labels))
        opt.zero_grad()
accelerator.print(f"warm-up took {sched.warmup_steps} of {sched.total_steps} steps; final loss {loss.item():.3f}")
accelerator.end_training()
