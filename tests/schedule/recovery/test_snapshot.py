"""What a copy of the run holds beside weights and the optimizer's ``state``."""

import math
import warnings
from typing import Any

import torch

from autowarm import AdaptiveWarmup
from autowarm.rate.restore import Snapshot


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


def test_buffers_go_back_but_not_a_cache_that_has_grown_or_joined_since_on_which_the_module_counts() -> None:
    model = torch.nn.Linear(2, 2)
    for name, buffer in {"cache": torch.ones(4), "mean": torch.ones(4), "expanded": torch.ones(1).expand(4)}.items():
        model.register_buffer(name, buffer)
    optimizer = torch.optim.SGD(model.parameters())
    snapshot = Snapshot(optimizer, model)
    model.cache, model.mean, model.expanded = torch.zeros(8), torch.zeros(4), torch.zeros(4)
    model.register_buffer("other", torch.zeros(1))
    snapshot.restore(optimizer)
    found = {name: buffer.tolist() for name, buffer in model.named_buffers()}
    assert found == {"cache": [0.0] * 8, "mean": [1.0] * 4, "expanded": [1.0] * 4, "other": [0.0]}


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
        with warnings.catch_warnings(action="ignore"):
            scheduler.step(loss)
        losses.append(float(loss))
    assert len(scheduler.recoveries) == 1
    assert losses[-1] < losses[149]
