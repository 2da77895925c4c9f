"""What a copy of the run holds beside weights and the optimizer's ``state``."""

import math
import warnings
from typing import Any

import torch

from autowarm import AdaptiveWarmup


class GlobalMoment(torch.optim.Optimizer):
    """Divides by one mean of all squared gradients, which it keeps as an attribute."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})
        self.mean = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        params = [p for group in self.param_groups for p in group["params"]]
        self.mean.lerp_(torch.stack([p.grad.square().sum() for p in params]).sum(), 0.05)
        for p in params:
            p.sub_(p.grad / (self.mean.sqrt() + 1e-8), alpha=self.param_groups[0]["lr"])


def test_a_moment_that_an_optimizer_keeps_as_an_attribute_goes_back_too() -> None:
    torch.manual_seed(0)
    model, true = torch.nn.Linear(8, 8), torch.randn(8, 8)
    opt = GlobalMoment(model.parameters())
    scheduler, losses = AdaptiveWarmup(opt, 300, recover=True), []
    for update in range(300):
        x = torch.randn(16, 8)
        loss = (model(x) - x @ true).square().mean() * (math.nan if update == 150 else 1.0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step(loss)
        losses.append(float(loss))
    assert len(scheduler.recoveries) == 1
    assert losses[-1] < losses[149]
