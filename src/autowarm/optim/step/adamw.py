"""AdamW's step for the tensors that Muon leaves to it: PyTorch's own, skipped if a gradient is not finite."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

__all__ = ["adamw_", "has_fused_adamw"]


def has_fused_adamw(device: torch.device) -> bool:
    """Whether PyTorch has a fused kernel, which passes over memory once, for this device."""
    return device.type in _get_fused_kernels_supported_devices()


def adamw_(
    xs: list[Tensor],
    gs: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    flags: Sequence[Tensor],
    *,
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    capturable: bool,
) -> None:
    """Update tensors by AdamW, in place, unless a flag says that a gradient is not finite.

    Args:
        xs, gs, exp_avgs, exp_avg_sqs, steps: parameters, gradients and their states.
        flags: whether gradients are finite, on their devices; empty if all are known to be finite.
        lr, betas, eps, weight_decay, capturable: see `torch.optim.AdamW`.
    """
    options: dict[str, Any] = {
        "amsgrad": False,
        "beta1": betas[0],
        "beta2": betas[1],
        "lr": lr,
        "weight_decay": weight_decay,
        "eps": eps,
        "maximize": False,
    }
    finite = None
    if flags:
        finite = torch.stack([flag.all().to(flags[0].device, non_blocking=True) for flag in flags]).all()
    fused, others = _by_kernel(xs, gs, exp_avgs)
    tensors = xs, gs, exp_avgs, exp_avg_sqs, steps
    if fused:
        ps, ds, ms, vs, counts = ([ts[i] for i in fused] for ts in tensors)
        found_inf = None if finite is None else 1.0 - finite.to(torch.float32)
        adamw(ps, ds, ms, vs, [], counts, fused=True, found_inf=found_inf, capturable=capturable, **options)
    if others:
        ps, ds, ms, vs, counts = olds = [[ts[i] for i in others] for ts in tensors]
        if finite is not None:
            # Only the fused kernel can skip an update. The others update copies, which are then kept or discarded.
            ps, ms, vs, counts = ([t.clone() for t in ts] for ts in (ps, ms, vs, counts))
        foreach = xs[0].device.type != "cpu"
        # The capturable implementation is the only one that reads step counts on a device.
        capturable = torch.compiler.is_compiling() or steps[0].device.type != "cpu"
        adamw(ps, ds, ms, vs, [], counts, foreach=foreach, capturable=capturable, **options)
        if finite is not None:
            for before, after in zip((olds[0], *olds[2:]), (ps, ms, vs, counts), strict=True):
                for old, new in zip(before, after, strict=True):
                    old.copy_(torch.where(finite.to(old.device), new, old))


def _by_kernel(xs: list[Tensor], gs: list[Tensor], exp_avgs: list[Tensor]) -> tuple[list[int], list[int]]:
    """Return the indices of the tensors that the fused kernel can update, and of the others.

    The kernel assumes that a tensor, its gradient and its state have the same memory layout. A compiler fuses by
    itself.
    """
    fused: list[int] = []
    others: list[int] = []
    for i, (x, g, m) in enumerate(zip(xs, gs, exp_avgs, strict=True)):
        alike = x.stride() == g.stride() == m.stride() and has_fused_adamw(x.device)
        (fused if alike and not torch.compiler.is_compiling() else others).append(i)
    return fused, others
