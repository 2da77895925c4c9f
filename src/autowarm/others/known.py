"""What an optimizer is, by its class: its geometry, and whether it sets its own rate."""

import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._torch.frames import frames_of_ours
from ..geometry import Geometry, Spectral, resolve, total_kappa
from ..optim.lmo import LMO
from .wrapped import inside, named

# By class name, whichever package it comes from: torch, timm, lion-pytorch, pytorch-optimizer, HeavyBall, bitsandbytes,
# dion, torchtitan, ultralytics and the scripts through which Muon spread, sharded or not. A subclass counts as its
# nearest known parent.
_SPECTRAL = re.compile(r"(Muon|Dion)(?![a-z])|^(MuSGD|Scion|SCION|SCIONLight)$")
_SIGN = re.compile(r"Lion(?![a-z])|^(SignSGD|Signum|Tiger)$")
_SECOND_MOMENTS = re.compile(r"Adam|RMSprop|Adagrad|Adadelta|Adafactor|AdaFactor|MADGRAD")
# The Adams, of which nothing is said: the schedule was measured with AdamW and is recommended for it.
_ADAM = re.compile(r"Adam|AdEMAMix")
# What sets its own rate or schedule, and so has two of them under ours.
_OWN_RATE = re.compile(r"ScheduleFree|Prodigy|DAdapt|^(L?DoG|DoWG|COCOB|Mechanic|AdamG|TRAC|Ranger21)$")
_ADAM_RMS = 0.35  # of the entries of an Adam's step at rate 1, once its moments have settled
_warned_of: set[str] = set()


def geometry_of(optimizer: Optimizer, *, warn: bool = True) -> Geometry:
    """Return the optimizer's main geometry, at radius 1.

    Our optimizers carry their geometry; others are recognised by class. A `Together` has the geometry of its first
    norm-constrained optimizer, and a wrapper that keeps the real optimizer as ``optimizer`` (Accelerate's) has that
    one's.

    The paper's theory covers no other optimizers. One that keeps second moments, as Adam does, takes steps with entries
    of about ±1, so it counts as sign geometry; any other counts as Frobenius geometry, where only the length of a step
    matters. A warning says so once per class, unless you name a geometry or it is an Adam: AdamW, NAdam and the like.

    Example:
        >>> import torch
        >>> from autowarm.others import geometry_of
        >>> geometry_of(torch.optim.Muon([torch.nn.Parameter(torch.ones(2, 2))]))
        Spectral(radius=1.0, stacked=None, method='svd', steps=None, blocks=1, dtype=None)
    """
    others = inside(optimizer)
    for one in others:
        geometry = _known(one)
        if geometry is not None:
            return geometry
    like_adamw = []
    for one in others:  # second moments are known by the class, or by a second β that is not 0
        betas = (group.get("betas") for group in one.param_groups)
        if named(one, _SECOND_MOMENTS) or any(isinstance(b, tuple | list) and len(b) > 1 and b[1] for b in betas):
            like_adamw.append(one)
    name = type((like_adamw or others)[0]).__name__
    if like_adamw:
        kind, why = "sign", f"{name} is no norm-constrained optimizer, and its step has entries of about the same size"
    else:
        kind, why = "frobenius", f"the geometry of {name} is not known"
    adam = bool(like_adamw) and named(like_adamw[0], _ADAM)
    if warn and not (adam or name in _warned_of or any(_sets_own_rate(one) for one in others)):
        _warned_of.add(name)
        warnings.warn(
            f"{why}: its steps are taken as {kind} geometry, which the theory behind the schedule does not cover. "
            f"Pass calibration={kind!r} to confirm it, or another one if you know better",
            stacklevel=frames_of_ours(),
        )
    return resolve(kind)


def warn_of_own_rates(optimizer: Optimizer) -> None:
    """Warn if an optimizer, or one inside it, sets its own schedule or rate."""
    for one in {id(one): one for one in (optimizer, *inside(optimizer))}.values():
        if _sets_own_rate(one):
            warnings.warn(
                f"{type(one).__name__} sets its own rate or schedule, and AdaptiveWarmup sets a second one on top: use "
                'it without AdaptiveWarmup, with relative_step=False and an lr, or, if you mean it, with decay="wso", '
                "which is flat; its lr is then a factor of its own rate, usually 1",
                stacklevel=frames_of_ours(),
            )


def _sets_own_rate(optimizer: Optimizer) -> bool:
    """Whether this optimizer sets its own rate or schedule."""
    relative = any(group.get("relative_step") for group in getattr(optimizer, "param_groups", ()))
    return relative or named(optimizer, _OWN_RATE)


def _known(optimizer: Optimizer) -> Geometry | None:
    """The geometry of a norm-constrained optimizer, at radius 1; None for other optimizers."""
    if isinstance(optimizer, LMO):
        for group in optimizer.param_groups:
            if group.get("algorithm") != "adamw":
                # How the first group's tensors are laid out says nothing of the other groups.
                return group["geometry"].plain()
    # A wrapper (a trainer's, or PyTorch's own for schedulers) may subclass: the nearest known class decides.
    for cls in type(optimizer).__mro__:
        if _SPECTRAL.search(cls.__name__):
            return resolve("spectral")
        if _SIGN.search(cls.__name__):
            return resolve("sign")
    return None


def geometry_in(group: dict[str, Any], p: Tensor, main: Geometry) -> Geometry:
    """Return the optimizer's main geometry as it reads a tensor of this group: matrix by matrix, at the same radius."""
    geometry = group.get("geometry")
    if isinstance(geometry, Geometry) and type(geometry) is type(main):
        return geometry.at_radius(main.radius)
    if group.get("depthwise"):
        return main.reading(blocks=p.shape[0])  # each row acts on its own
    return main


def kappa_of(optimizer: Optimizer, geometry: Geometry) -> float:
    """Return κ of all the matrices that an optimizer trains, as the paper counts it: main geometry, radius 1.

    A tensor that one of our optimizers treats as several matrices (experts, blocks) counts once per matrix. Frozen
    tensors and scales per channel, of shape (C, 1, 1), do not count.

    Raises:
        ValueError: the optimizer trains no matrix.
    """
    total = 0.0
    for group in optimizer.param_groups:
        for p in group["params"]:
            is_matrix = p.ndim == 2 or sum(size > 1 for size in p.shape) > 1
            if p.requires_grad and is_matrix:
                total += total_kappa([p], geometry_in(group, p, geometry))
    return total or total_kappa([], geometry)  # which says what is missing


def step_norm(optimizer: Optimizer, group: dict[str, Any], shape: Sequence[int]) -> float:
    """Return ‖d‖, the Frobenius norm of a tensor's step at rate 1 without decay, or NaN if the class does not tell it.

    A step by an oracle has norm √κ in every geometry. That of an Adam has entries of about 0.35, and Lion's of 1. The
    steps of SGD are as long as its gradients. Other Muons scale theirs in several ways: only PyTorch's is known.
    """
    entries = math.prod(shape)
    if isinstance(optimizer, LMO):
        is_adamw = group.get("algorithm") == "adamw"
        return _ADAM_RMS * math.sqrt(entries) if is_adamw else math.sqrt(group["geometry"].kappa(shape))
    if isinstance(optimizer, torch.optim.Muon):
        return math.sqrt(Spectral(group.get("adjust_lr_fn") or "original").kappa(shape))
    if named(optimizer, _SPECTRAL) or _sets_own_rate(optimizer):
        return math.nan
    if named(optimizer, _ADAM):
        return _ADAM_RMS * math.sqrt(entries)
    return math.sqrt(entries) if named(optimizer, _SIGN) else math.nan
