"""What the fast paths compute, in plain code. Tests hold them to it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from autowarm.geometry import Geometry
from autowarm.orthogonalize.coefficients import checked_steps, schedule_of
from autowarm.orthogonalize.precision import least_norm


def lmo_step_(group: Mapping[str, Any], x: Tensor, g: Tensor, state: dict[str, Tensor]) -> None:
    """Step one tensor as `LMO`, `SignSGD`, `NormSGD`, `Lion` and Muon's matrices do, in place, and its momentum.

    One gradient that is not finite skips the whole update: call this for none of the tensors then.
    """
    geometry: Geometry = group["geometry"]
    direction = g
    if "betas" in group:  # Lion
        beta1, beta2 = group["betas"]
        m = state.setdefault("momentum_buffer", torch.zeros_like(x))
        direction = beta1 * m + (1 - beta1) * g
        m.copy_(beta2 * m + (1 - beta2) * g)
    elif beta := group["momentum"]:
        m = state.setdefault("momentum_buffer", torch.zeros_like(x))
        m.copy_(beta * m + (1 - beta) * g)
        direction = beta * m + (1 - beta) * g if group["nesterov"] else m
    lr, decay = group["lr"], group["weight_decay"]
    x.copy_((1 - lr * decay) * x + lr * geometry.lmo(direction))


def adamw_step_(group: Mapping[str, Any], x: Tensor, g: Tensor, state: dict[str, Tensor]) -> None:
    """Step one tensor as Muon's AdamW groups do, in place, and its averages and step count."""
    lr, (beta1, beta2) = group["lr"], group["adamw_betas"]
    m, v = (state.setdefault(name, torch.zeros_like(x)) for name in ("exp_avg", "exp_avg_sq"))
    state["step"] = state.get("step", torch.zeros(())) + 1
    t = int(state["step"])
    m.copy_(beta1 * m + (1 - beta1) * g)
    v.copy_(beta2 * v + (1 - beta2) * g.square())
    x.mul_(1 - lr * group["weight_decay"])
    x.sub_(lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + group["adamw_eps"]))


def orthogonalize_reference(G: Tensor, *, method: Any = "polar-express", steps: int | None = None) -> Tensor:
    """`orthogonalize` one matrix (m, n) by the plain formulas, in G's precision."""
    if method == "svd":
        checked_steps(method, steps)
        U, S, Vh = torch.linalg.svd(G, full_matrices=False)
        rounding = max(G.shape) * torch.finfo(S.dtype).eps * S.amax()
        return U @ torch.diag((rounding < S).to(G.dtype)) @ Vh
    if G.shape[0] > G.shape[1]:
        return orthogonalize_reference(G.T, method=method, steps=steps).T
    X = G / torch.linalg.matrix_norm(G).clamp(min=least_norm(G.dtype))
    if method == "polar-express":
        R = X @ X.T
        X = X / torch.linalg.matrix_norm(R @ R).clamp(min=least_norm(G.dtype)) ** 0.25
    for a, b, c in schedule_of(method, steps):
        R = X @ X.T
        X = a * X + (b * R + c * (R @ R)) @ X
    return X
