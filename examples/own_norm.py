"""A norm of your own, as a geometry, with another target of the calibration and another ρ.

It needs the norm, its dual, the step of unit norm along which the loss falls fastest, and κ.
"""

from dataclasses import dataclass

import torch

from autowarm import LMO, AdaptiveWarmup
from autowarm.geometry import Geometry, total_kappa
from autowarm.schedule import Calibration


@dataclass(frozen=True)
class Mean(Geometry):  # another norm
    def _norm(self, x):
        return x.square().mean().sqrt()

    def _dual(self, g):
        return g.norm() * g.numel() ** 0.5

    def _lmo(self, g):
        return -g * (g.numel() ** 0.5 / g.norm().clamp_min(1e-30))

    def _kappa(self, shape):
        return float(torch.Size(shape).numel())


def decay(p):  # another target
    return (1 - p) ** 3


torch.manual_seed(0)
STEPS = 200
gru = torch.nn.GRU(8, 16, batch_first=True)  # another architecture
kappa = total_kappa(gru.parameters(), Mean())
cubic = Calibration(Mean(), kappa, rho=3)  # another ρ, calibrated at the first loss for this decay

optimizer = LMO(gru.parameters(), lr=0.02, geometry=Mean())
sched = AdaptiveWarmup.paper(optimizer, STEPS, target_loss=0.1, calibration=cubic, decay=decay)
for _ in range(STEPS):
    x = torch.randn(64, 12, 8)
    loss = (gru(x)[0][..., :8] - x.roll(1, dims=1).tanh()).square().mean()  # what came before
    loss.backward()
    optimizer.step()
    sched.step(loss)
    optimizer.zero_grad()
print(f"warm-up took {sched.warmup_steps} of {STEPS} steps; final loss {loss.item():.3f}")
