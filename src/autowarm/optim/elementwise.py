"""Optimizers that need no matrix products: signSGD, Lion and normSGD."""

import math
from typing import ClassVar, Unpack

from torch import Tensor
from torch.optim.optimizer import ParamsT

from ..geometry import GeometryName
from .lmo import LMO, Common
from .step.update import Rule, TwoMomenta


class SignSGD(LMO):
    """signSGD, the LMO in the ℓ∞ norm: x ← (1 − λη)x − η·sign(m) (paper, App. "optimizers").

    Args:
        params, lr, common: see `LMO`.
        momentum: β of the momentum m; 0 gives plain signSGD.
        nesterov: follow β·m + (1−β)·g instead of m.

    Example:
        >>> import torch
        >>> from autowarm import SignSGD
        >>> w = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> w.grad = torch.tensor([0.3, -7.0])
        >>> SignSGD([w], lr=0.5).step()
        >>> w.tolist()
        [0.5, -0.5]
    """

    _geometry: ClassVar[GeometryName] = "sign"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        **common: Unpack[Common],
    ) -> None:
        self._build(params, lr, common, geometry=self._geometry, momentum=momentum, nesterov=nesterov)


class Lion(LMO):
    """Lion: sign steps, with one β for the step and one for the momentum (paper, App. "optimizers"; Chen et al. 2023).

    x ← (1 − λη)x − η·sign(β1·m + (1−β1)·g), then m ← β2·m + (1−β2)·g.

    Args:
        params, lr, common: see `LMO`.
        betas: (β1, β2), both in [0, 1).

    Raises:
        ValueError: a β is outside [0, 1).

    Example:
        >>> import torch
        >>> from autowarm import Lion
        >>> model = torch.nn.Linear(8, 4)
        >>> model(torch.ones(2, 8)).square().mean().backward()
        >>> Lion.from_model(model, lr=1e-4).step()
    """

    _geometry: ClassVar[GeometryName] = "sign"
    _rules: ClassVar[dict[str, Rule]] = {"": TwoMomenta()}
    _ends: ClassVar[dict[str, float]] = {"lr": math.inf, "weight_decay": math.inf, "betas": 1.0}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        **common: Unpack[Common],
    ) -> None:
        self._build(params, lr, common, geometry=self._geometry, betas=betas)


class NormSGD(LMO):
    """normSGD, which normalises each tensor's step: x ← (1 − λη)x − η·m/‖m‖_F (paper, App. "optimizers").

    Args:
        params, lr, common: see `LMO`.
        momentum: β of the momentum m.
        nesterov: follow β·m + (1−β)·g instead of m.

    Example:
        >>> import torch
        >>> from autowarm import NormSGD
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> w.grad = torch.tensor([3.0, 4.0])
        >>> NormSGD([w], lr=1.0).step()
        >>> [round(x, 4) for x in w.tolist()]
        [-0.6, -0.8]
    """

    _geometry: ClassVar[GeometryName] = "frobenius"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        momentum: float = 0.95,
        nesterov: bool = False,
        **common: Unpack[Common],
    ) -> None:
        self._build(params, lr, common, geometry=self._geometry, momentum=momentum, nesterov=nesterov)
