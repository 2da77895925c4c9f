"""Accelerate: a loop of one's own with gradient accumulation, on any number of processes.

On two processes: torchrun --nproc_per_node 2 accelerate_loop.py, or accelerate launch where there are GPUs.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autowarm import Muon
from autowarm.integrations.accelerate import WarmupScheduler

torch.manual_seed(0)
ACCUMULATION, EPOCHS = 2, 16
x = torch.randn(2048, 32)
y = (x @ torch.randn(32, 10)).argmax(dim=1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
opt = Muon.from_model(model, lr=1e-2)
model, opt, loader = accelerator.prepare(model, opt, DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
# Updates, so many on every process. The scheduler is left out of prepare.
sched = WarmupScheduler(accelerator, opt, total_steps=EPOCHS * len(loader) // ACCUMULATION)
for _ in range(EPOCHS):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            opt.step()
            sched.step(loss, weight=len(labels))
            opt.zero_grad()
accelerator.print(f"warm-up took {sched.warmup_steps} of {sched.total_steps} steps; final loss {loss.item():.3f}")
accelerator.end_training()
