"""What the authors' optimizers do otherwise than ours, as hooks before each step."""

from typing import Any

import torch
from torch.optim import Optimizer

from autowarm.geometry import Rate
from autowarm.optim.ranks.dtensors import local


def seed_momenta(optimizer: Optimizer) -> None:
    """Let momenta start as m = (1 − β)(1 − λη)·x.

    The authors' momentum b ← βb + g starts as a copy of the weights, taken after their decay, and m is (1 − β)b. With
    Nesterov's momentum, the steps are those of their code. That pulls the first steps towards the origin; the paper's
    published curves have it.
    """

    def seed(*_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None or "momentum_buffer" in optimizer.state[p]:
                    continue
                m = p.detach().clone()
                keep = Rate.of_group(group, p.device).keep
                local(m).mul_((1 - group.get("momentum", 0.0)) * (1.0 if keep is None else keep))
                optimizer.state[p]["momentum_buffer"] = m

    optimizer.register_step_pre_hook(torch.no_grad()(seed))


def add_eps_before_correction(optimizer: Optimizer) -> None:
    """Take ``adamw_eps`` for the ε̂ of Kingma and Ba (2015, Sec. 2), which is added before the bias correction.

    √v̂ + ε is (√v + ε̂)/√(1 − β2ᵗ) for ε = ε̂/√(1 − β2ᵗ). It matters in the first 1/(1 − β2) steps.
    """
    eps_hat = [group["adamw_eps"] for group in optimizer.param_groups]

    def set_eps(*_: Any) -> None:
        for group, eps in zip(optimizer.param_groups, eps_hat, strict=True):
            counts = [optimizer.state[p].get("step", 0) for p in group["params"] if p.grad is not None]
            if group["algorithm"] == "adamw" and counts:
                group["adamw_eps"] = eps / (1 - group["adamw_betas"][1] ** (float(counts[0]) + 1)) ** 0.5

    optimizer.register_step_pre_hook(set_eps)
