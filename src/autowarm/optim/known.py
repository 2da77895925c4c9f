"""The geometry in which an optimizer steps, known by its class."""

import warnings

from torch import Tensor
from torch.optim import Optimizer

from ..geometry import Geometry, resolve, total_kappa
from .lmo import LMO

__all__ = ["geometry_of", "kappa_of"]

# By class name, whatever package it is from: torch, timm, lion-pytorch, pytorch-optimizer, HeavyBall, bitsandbytes…
_BY_CLASS = {
    "Muon": "spectral",
    "ForeachMuon": "spectral",
    "SingleDeviceMuon": "spectral",
    "MuonWithAuxAdam": "spectral",
    "SingleDeviceMuonWithAuxAdam": "spectral",
    "Dion": "spectral",
    "NorMuon": "spectral",
    "Lion": "sign",
    "Lion8bit": "sign",
    "PagedLion": "sign",
    "PagedLion8bit": "sign",
    "SignSGD": "sign",
    "Signum": "sign",
}
# Adam's step has entries of about ±1, so the sign geometry is its nearest; the theory does not cover it.
_NEARLY_SIGN = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "AdamW8bit", "PagedAdamW8bit", "Adam8bit"}
_said: set[str] = set()


def geometry_of(optimizer: Optimizer) -> Geometry:
    """The optimizer's main geometry, at radius 1.

    Ours carry it; others are known by class. Adam and its kin are taken as sign geometry, which the paper's theory does
    not cover; a warning says so once.

    Raises:
        ValueError: the class is unknown; the message names the choices.

    Example:
        >>> import torch
        >>> from autowarm.optim import geometry_of
        >>> geometry_of(torch.optim.Muon([torch.nn.Parameter(torch.ones(2, 2))]))
        Spectral(radius=1.0, stacked=False, method='svd', steps=None, blocks=1, dtype=None)
    """
    if isinstance(optimizer, LMO):
        for group in optimizer.param_groups:
            if group.get("algorithm") != "adamw":
                geometry: Geometry = group["geometry"]
                return geometry.at_radius(1.0)
    # A wrapper (a trainer's, or PyTorch's own for schedulers) may subclass: the nearest known class decides.
    for cls in type(optimizer).__mro__:
        name = cls.__name__
        if name in _BY_CLASS:
            return resolve(_BY_CLASS[name])
        if name in _NEARLY_SIGN:
            if name not in _said:
                _said.add(name)
                warnings.warn(
                    f"{name} is no norm-constrained optimizer: its steps are taken as sign geometry, "
                    "which the theory behind the schedule does not cover",
                    stacklevel=2,
                )
            return resolve("sign")
    raise ValueError(
        f"the geometry of {type(optimizer).__name__} is not known: pass geometry='spectral', 'sign', 'frobenius' or a "
        "Geometry of your own, or pass kappa="
    )


def kappa_of(optimizer: Optimizer, geometry: Geometry) -> float:
    """κ of all matrices an optimizer trains, in the paper's mode: under its main geometry, at radius 1.

    Tensors that one of our optimizers keeps as stacks of matrices (experts) count matrix by matrix.

    Raises:
        ValueError: there is no matrix among them.
    """
    counted: dict[Geometry, list[Tensor]] = {}
    for group in optimizer.param_groups:
        own, measured = group.get("geometry"), geometry
        if isinstance(own, Geometry) and type(own) is type(geometry):
            measured = own.at_radius(geometry.radius)
        counted.setdefault(measured, []).extend(p for p in group["params"] if p.ndim >= 2 and p.requires_grad)
    if not any(counted.values()):
        total_kappa([], geometry)  # says what is missing
    return sum(total_kappa(matrices, measured) for measured, matrices in counted.items() if matrices)
