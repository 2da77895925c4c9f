"""AdamW's rule, for the tensors that Muon leaves to it: PyTorch's own, skipped if a gradient is not finite."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from ...geometry import Rate
from ...orthogonalize import HALVES
from .plan import Plans, cut
from .update import State, Update, resized

# The dtype of the averages: in float16 v underflows, and in bfloat16 0.999·v rounds to v and cannot fall.
_WIDE = dict.fromkeys(HALVES, torch.float32)


class AdamW:
    """x ← (1 − λη)x − η·m̂/(√v̂ + ε), with the group's ``adamw_betas`` and ``adamw_eps``.

    With ``adamw_eps_hat``, ε is the ε̂ of Kingma and Ba (2015, Sec. 2), which is added before the bias correction:
    x ← (1 − λη)x − η·√(1 − β2ᵗ)/(1 − β1ᵗ)·m/(√v + ε̂).

    The averages of weights in half precision are kept in single: 8 bytes an entry in place of 4.
    """

    entries: tuple[str, ...] = ("exp_avg", "exp_avg_sq", "step")
    options: tuple[str, ...] | None = ("algorithm", "lr", "weight_decay", "adamw_betas", "adamw_eps", "adamw_eps_hat")

    def state_of(self, group: dict[str, Any], params: list[Tensor], state: State) -> list[list[Tensor]]:
        """See `update.Rule`."""
        found: list[list[Tensor]] = [[], [], []]
        fused = _get_fused_kernels_supported_devices()
        for p in params:
            own = state[p]
            # PyTorch's kernels expect the step count on the tensor's own device, or on the host.
            on_device = group["capturable"] or p.device.type in fused
            wanted = p.device if on_device else torch.device("cpu")
            dtype = _WIDE.get(p.dtype, p.dtype)
            if "step" not in own:  # a state may hold what others keep there
                own["step"] = torch.zeros((), dtype=torch.float32, device=wanted)
                own["exp_avg"] = torch.zeros_like(p, dtype=dtype)
                own["exp_avg_sq"] = torch.zeros_like(p, dtype=dtype)
            if own["step"].device != wanted:
                own["step"] = own["step"].to(wanted)  # a state that was loaded from another device
            for name in ("exp_avg", "exp_avg_sq"):
                if own[name].shape != p.shape:
                    raise resized(name, own, p)
            if own["exp_avg"].dtype != dtype:  # the model has been converted
                own |= {name: own[name].to(dtype) for name in ("exp_avg", "exp_avg_sq")}
            for entries, name in zip(found, self.entries, strict=True):
                entries.append(own[name])
        return found

    def ready(self, group: dict[str, Any], params: list[Tensor], state: State) -> bool:
        """Always: the first update makes a state of constants, which a graph may do."""
        return True

    def update_(self, update: Update, plans: Plans) -> None:
        """See `update.Rule`."""
        for places, fused in zip(_by_kernel(update), (True, False), strict=True):
            if not places:
                continue
            own = update if len(places) == len(update.xs) else update.at(places)
            sizes: list[int] = []
            for x, m in zip(own.xs, own.state[0], strict=True):
                sizes.append(2 * m.nbytes * (x.dtype != m.dtype))
            for some in cut(sizes, own.xs[0].device) if any(sizes) else ():  # which take copies
                _step_(own[some], fused=fused)
            if not any(sizes):
                _step_(own, fused=fused)


def _step_(own: Update, *, fused: bool) -> None:
    """Update copies where there is need, and take over or discard what comes of them.

    Weights of half precision are updated in single. Only the fused kernel can skip an update by itself.
    """
    finite = None if fused else own.finite
    ms = own.state[0]
    xs = [x.to(m.dtype, copy=finite is not None) for x, m in zip(own.xs, ms, strict=True)]
    gs = [g.to(m.dtype) for g, m in zip(own.gs, ms, strict=True)]
    state = own.state if finite is None else [[x.clone() for x in each] for each in own.state]
    how: dict[str, Any] = {"fused": True, "capturable": own.group["capturable"]}
    if fused:
        how["found_inf"] = None if own.finite is None else 1.0 - own.finite.to(torch.float32)
    else:
        # The capturable implementation is the only one that reads step counts on a device.
        capturable = torch.compiler.is_compiling() or state[2][0].device.type != "cpu"
        how = {"foreach": xs[0].device.type != "cpu", "capturable": capturable}
    _adamw(replace(own, xs=xs, gs=gs, state=state), **how)
    for olds, news in zip((own.xs, *own.state), (xs, *state), strict=True):
        for old, new in zip(olds, news, strict=True):
            if new is not old:
                old.copy_(new if finite is None else torch.where(finite.to(old.device), new, old))


def _adamw(update: Update, **how: Any) -> None:
    group = update.group
    xs, gs, (ms, vs, steps) = update.xs, update.gs, update.state
    beta1, beta2 = group["adamw_betas"]
    if group["adamw_eps_hat"]:  # no kernel of PyTorch's has it
        by_device: dict[torch.device, list[int]] = {}
        for i, x in enumerate(xs):
            by_device.setdefault(x.device, []).append(i)
        for places in by_device.values():
            _adamw_eps_hat(group, *([each[i] for i in places] for each in (xs, gs, ms, vs, steps)))
        return
    how |= {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["adamw_eps"]}
    how |= {"weight_decay": group["weight_decay"], "maximize": group.get("maximize", False)}
    adamw(xs, gs, ms, vs, [], steps, amsgrad=False, **how)


def _adamw_eps_hat(
    group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], ms: list[Tensor], vs: list[Tensor], steps: list[Tensor]
) -> None:
    """Update tensors on one device, and their state, as `AdamW` says of ``adamw_eps_hat``."""
    beta1, beta2 = group["adamw_betas"]
    torch._foreach_add_(steps, 1)
    torch._foreach_lerp_(ms, gs, 1 - beta1)
    torch._foreach_mul_(vs, beta2)
    torch._foreach_addcmul_(vs, gs, gs, 1 - beta2)
    roots = torch._foreach_sqrt(vs)
    torch._foreach_add_(roots, group["adamw_eps"])
    updates = list(torch._foreach_div(ms, roots))
    made = torch.stack(steps).to(torch.promote_types(xs[0].dtype, torch.float32))
    # 1 − βᵗ, to full precision in the first steps of a β near 1.
    one, two = (-torch.expm1(made * math.log(beta)) if beta else torch.ones_like(made) for beta in (beta1, beta2))
    torch._foreach_mul_(updates, (-two.sqrt() / one).unbind())
    Rate.of_group(group, xs[0].device).step_(xs, updates)


def _by_kernel(update: Update) -> tuple[list[int], list[int]]:
    """Return the indices of the tensors that the fused kernel can update, and of the others.

    The kernel assumes that a tensor, its gradient and its state have the same memory layout, as shards may not have if
    their DTensors do. A compiler fuses by itself, and no kernel has ``adamw_eps_hat``.
    """
    by_itself = torch.compiler.is_compiling() or update.group["adamw_eps_hat"]
    kinds = () if by_itself else _get_fused_kernels_supported_devices()
    fused: list[int] = []
    others: list[int] = []
    for i, (x, g, m) in enumerate(zip(update.xs, update.gs, update.state[0], strict=True)):
        (fused if x.device.type in kinds and x.stride() == g.stride() == m.stride() else others).append(i)
    return fused, others
