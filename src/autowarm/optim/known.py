"""The geometry in which an optimizer steps, known by its class."""

import warnings

from torch import Tensor
from torch.optim import Optimizer

from ..geometry import Geometry, resolve, total_kappa
from .lmo import LMO

__all__ = ["geometry_of", "kappa_of", "unwrapped"]

# By class name, whatever package it is from: torch, timm, lion-pytorch, pytorch-optimizer, HeavyBall, bitsandbytes,
# dion, torchtitan and the scripts that Muon spread by. A subclass goes by its nearest known parent.
_SPECTRAL = """
    Muon ForeachMuon SingleDeviceMuon MuonWithAuxAdam SingleDeviceMuonWithAuxAdam MuonKellerJordan MuonAdamW
    DistributedMuon DistMuon MuonClip AdaMuon NorMuon Dion Dion2 NorDion2 Scion SCION SCIONLight
"""
_SIGN = "Lion Lion8bit Lion32bit PagedLion PagedLion8bit PagedLion32bit SignSGD Signum Tiger"
_BY_CLASS = dict.fromkeys(_SPECTRAL.split(), "spectral") | dict.fromkeys(_SIGN.split(), "sign")
# Adam's step has entries of about ±1, so the sign geometry is its nearest; the theory does not cover it.
_ADAMS = """
    Adam AdamW NAdam NAdamW RAdam Adamax AdEMAMix FlashAdamW AdamWLegacy NAdamLegacy RAdamLegacy
    Adam8bit Adam32bit PagedAdam PagedAdam8bit PagedAdam32bit
    AdamW8bit AdamW32bit PagedAdamW PagedAdamW8bit PagedAdamW32bit
"""
_NEARLY_SIGN = frozenset(_ADAMS.split())
_said: set[str] = set()


def geometry_of(optimizer: Optimizer) -> Geometry:
    """The optimizer's main geometry, at radius 1.

    Ours carry it; others are known by class. Several in one (`Together`) go by the first that is norm-constrained, and
    a wrapper that keeps the real one as ``optimizer`` (Accelerate's) by that. Adam and its kin are taken as sign
    geometry, which the paper's theory does not cover; a warning says so once.

    Raises:
        ValueError: the class is unknown; the message names the choices.

    Example:
        >>> import torch
        >>> from autowarm.optim import geometry_of
        >>> geometry_of(torch.optim.Muon([torch.nn.Parameter(torch.ones(2, 2))]))
        Spectral(radius=1.0, stacked=False, method='svd', steps=None, blocks=1, dtype=None)
    """
    nearly = None
    for one in _inside(optimizer):
        if isinstance(one, LMO):
            for group in one.param_groups:
                if group.get("algorithm") != "adamw":
                    geometry: Geometry = group["geometry"]
                    return geometry.at_radius(1.0)
        # A wrapper (a trainer's, or PyTorch's own for schedulers) may subclass: the nearest known class decides.
        for cls in type(one).__mro__:
            if cls.__name__ in _BY_CLASS:
                return resolve(_BY_CLASS[cls.__name__])
            if cls.__name__ in _NEARLY_SIGN:
                nearly = nearly or cls.__name__
                break
    if nearly is None:
        raise ValueError(
            f"the geometry of {type(optimizer).__name__} is not known: pass geometry='spectral', 'sign', 'frobenius' "
            "or a Geometry of your own, or pass kappa="
        )
    if nearly not in _said:
        _said.add(nearly)
        warnings.warn(
            f"{nearly} is no norm-constrained optimizer: its steps are taken as sign geometry, which the theory behind "
            "the schedule does not cover. geometry='sign' says the same, and is not warned of",
            stacklevel=3,  # the line that makes the scheduler
        )
    return resolve("sign")


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer that a trainer's wrapper (Accelerate's, Lightning's) keeps as ``optimizer``; itself if it is none.

    A scheduler is made on this one: its step hooks fire when an update is made, and only then.
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _inside(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizers that take the steps: those inside a wrapper, or the optimizer itself."""
    optimizer = unwrapped(optimizer)
    several = getattr(optimizer, "optimizers", None)
    if not isinstance(several, (list, tuple)):
        return [optimizer]
    seen = {id(group) for group in optimizer.param_groups}
    if not all(id(group) in seen for one in several for group in one.param_groups):
        # A rate written into such a wrapper's groups changes nothing, and nobody would notice.
        raise ValueError(
            f"{type(optimizer).__name__} does not step by the rates in its own param_groups, so no scheduler can reach "
            "them: hand autowarm.optim.Together(*optimizer.optimizers) to the scheduler, and step that"
        )
    return [inner for one in several for inner in _inside(one)]


def _is_matrix(p: Tensor) -> bool:
    # A scale by channel, of shape (C, 1, 1), is a vector that is kept so to be broadcast.
    return p.ndim == 2 or (p.ndim > 2 and sum(size > 1 for size in p.shape) > 1)


def kappa_of(optimizer: Optimizer, geometry: Geometry) -> float:
    """κ of all matrices an optimizer trains, in the paper's mode: under its main geometry, at radius 1.

    Tensors that one of our optimizers keeps as stacks of matrices (experts) count matrix by matrix. Frozen tensors do
    not count, nor do scales by channel, of shape (C, 1, 1).

    Raises:
        ValueError: there is no matrix among them.
    """
    counted: dict[Geometry, list[Tensor]] = {}
    for group in optimizer.param_groups:
        own, measured = group.get("geometry"), geometry
        if isinstance(own, Geometry) and type(own) is type(geometry):
            measured = own.at_radius(geometry.radius)
        counted.setdefault(measured, []).extend(p for p in group["params"] if p.requires_grad and _is_matrix(p))
    if not any(counted.values()):
        total_kappa([], geometry)  # says what is missing
    return sum(total_kappa(matrices, measured) for measured, matrices in counted.items() if matrices)
