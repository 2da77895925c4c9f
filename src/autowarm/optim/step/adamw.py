"""AdamW's rule, for the tensors that Muon leaves to it: PyTorch's own, skipped if a gradient is not finite."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from ...geometry import Rate
from ...orthogonalize import HALVES
from .plan import Plans, cut
from .update import Rule, Update


class AdamW(Rule):
    """x ← (1 − λη)x − η·m̂/(√v̂ + ε), with the group's ``adamw_betas`` and ``adamw_eps``.

    The averages of weights in half precision are kept in single: 8 bytes an entry in place of 4.
    """

    entries = ("exp_avg", "exp_avg_sq", "step")
    # In float16 v underflows, and in bfloat16 0.999·v rounds to v and cannot fall.
    wide: ClassVar = dict.fromkeys(HALVES, torch.float32)

    def first(self, group: dict[str, Any], p: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        zeros = {name: torch.zeros_like(p, dtype=dtype) for name in self.entries[:2]}
        return {**zeros, "step": torch.zeros((), dtype=torch.float32, device=_counts_on(group, p))}

    def loaded(self, group: dict[str, Any], p: Tensor, name: str, entry: Tensor) -> Tensor:
        return entry.to(_counts_on(group, p)) if name == "step" else entry.to(p.device)

    def update_(self, update: Update, plans: Plans) -> None:
        for (device, fused), places in _by_kernel(update).items():
            part = update if len(places) == len(update.xs) else update.at(places)
            sizes: list[int] = []
            for x, m in zip(part.xs, part.state[0], strict=True):
                sizes.append(2 * m.nbytes * (x.dtype != m.dtype))
            # A part at a time where copies in single precision are needed, all at once otherwise
            for some in cut(sizes, device) if any(sizes) else ():  # which take copies
                _step_(part[some], fused=fused)
            if not any(sizes):
                _step_(part, fused=fused)


def _counts_on(group: dict[str, Any], p: Tensor) -> torch.device:
    """Where PyTorch's kernels expect a tensor's step count: on its own device, or on the host."""
    on_device = group["capturable"] or p.device.type in _get_fused_kernels_supported_devices()
    return p.device if on_device else torch.device("cpu")


def _by_kernel(update: Update) -> dict[tuple[torch.device, bool], list[int]]:
    """Return the indices of the tensors on each device that its fused kernel can update, and of the others.

    The kernel assumes that a tensor, its gradient and its state have the same memory layout, as shards may not have if
    their DTensors do. A compiler fuses by itself.
    """
    kinds = () if torch.compiler.is_compiling() else _get_fused_kernels_supported_devices()
    places: dict[tuple[torch.device, bool], list[int]] = {}
    for i, (x, g, m) in enumerate(zip(update.xs, update.gs, update.state[0], strict=True)):
        fused = x.device.type in kinds and x.stride() == g.stride() == m.stride()
        places.setdefault((x.device, fused), []).append(i)
    return places


def _step_(update: Update, *, fused: bool) -> None:
    """Update copies where there is need, and take over or discard what comes of them.

    Weights of half precision are updated in single. Only the fused kernel can skip an update by itself.
    """
    group, finite = update.group, None if fused else update.finite
    ms = update.state[0]
    xs = [x.to(m.dtype, copy=finite is not None) for x, m in zip(update.xs, ms, strict=True)]
    gs = [g.to(m.dtype) for g, m in zip(update.gs, ms, strict=True)]
    if group.get("maximize"):  # the averages are those of −g, whichever way is taken
        gs = list(torch._foreach_neg(gs))
    state = update.state if finite is None else [[x.clone() for x in each] for each in update.state]
    ms, vs, steps = state
    beta1, beta2 = group["adamw_betas"]  # of m and of v
    if fused:
        how: dict[str, Any] = {name: group[name] for name in ("lr", "weight_decay", "capturable")}
        how |= {"maximize": False, "beta1": beta1, "beta2": beta2, "eps": group["adamw_eps"]}
        how["found_inf"] = None if update.finite is None else 1.0 - update.finite.to(torch.float32)
        adamw(xs, gs, ms, vs, [], steps, fused=True, amsgrad=False, **how)
    else:
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(ms, gs, 1 - beta1)  # m ← β1·m + (1 − β1)g
        torch._foreach_mul_(vs, beta2)
        torch._foreach_addcmul_(vs, gs, gs, 1 - beta2)  # v ← β2·v + (1 − β2)g²
        counts = torch.stack(steps).to(torch.promote_types(xs[0].dtype, torch.float32))
        # 1 − βᵗ, to full precision in the first steps of a β near 1.
        one, two = (-torch.expm1(counts * math.log(b)) if b else torch.ones_like(counts) for b in (beta1, beta2))
        roots = torch._foreach_sqrt(vs)
        # √v̂ + ε = (√v + ε·√(1 − β2ᵗ))/√(1 − β2ᵗ)
        torch._foreach_add_(roots, (two.sqrt() * group["adamw_eps"]).unbind())
        updates = list(torch._foreach_div(ms, roots))  # m/(√v + ε·√(1 − β2ᵗ))
        torch._foreach_mul_(updates, (-two.sqrt() / one).unbind())
        Rate.of_group({**group, "maximize": False}, xs[0].device).step_(xs, updates)
    for olds, news in zip((update.xs, *update.state), (xs, *state), strict=True):
        for old, new in zip(olds, news, strict=True):
            if new is not old:
                old.copy_(new if finite is None else torch.where(finite.to(old.device), new, old))
