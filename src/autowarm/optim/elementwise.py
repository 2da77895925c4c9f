"""Optimizers that need no matrix products: signSGD, Lion and normSGD."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.optim.optimizer import ParamsT

from .lmo import LMO
from .step.update import FromWeights, Rule, TwoMomenta


class SignSGD(LMO):
    """signSGD, the LMO in the ℓ∞ norm: x ← (1 − λη)x − η·sign(m) (paper, App. "optimizers").

    Args:
        params, lr, weight_decay, capturable, max_nonfinite, skip_outliers: see `LMO`.
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

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        capturable: bool = False,
        max_nonfinite: int | None = 20,
        skip_outliers: float | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            geometry="sign",
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            capturable=capturable,
            max_nonfinite=max_nonfinite,
            skip_outliers=skip_outliers,
        )


class Lion(LMO):
    """Lion: sign steps, with one β for the step and one for the momentum (paper, App. "optimizers"; Chen et al. 2023).

    x ← (1 − λη)x − η·sign(β1·m + (1−β1)·g), then m ← β2·m + (1−β2)·g.

    Args:
        params, lr, weight_decay, capturable, max_nonfinite, skip_outliers: see `LMO`.
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

    _rules: ClassVar[dict[str, Rule]] = {"": TwoMomenta()}
    _own_options = frozenset({"betas"})
    _not_of_a_group = LMO._not_of_a_group | dict.fromkeys(("momentum", "nesterov"), "give betas")
    _ends: ClassVar[dict[str, float]] = LMO._ends | {"betas": 1.0}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        capturable: bool = False,
        max_nonfinite: int | None = 20,
        skip_outliers: float | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            geometry="sign",
            momentum=0.0,
            weight_decay=weight_decay,
            capturable=capturable,
            max_nonfinite=max_nonfinite,
            skip_outliers=skip_outliers,
            betas=betas,
        )


class NormSGD(LMO):
    """normSGD, which normalises each tensor's step: x ← (1 − λη)x − η·m/‖m‖_F (paper, App. "optimizers").

    Args:
        params, lr, weight_decay, capturable, max_nonfinite, skip_outliers: see `LMO`.
        momentum: β of the momentum m.
        nesterov: follow β·m + (1−β)·g instead of m.
        momentum_init: "zeros", or "weights" for m = (1 − β)(1 − λη)·x before the first step. With ``nesterov=True``
            these are the steps of the authors' code, whose momentum b ← βb + g starts as a copy of the weights. That
            pulls the first steps towards the origin; the paper's published curves have it.

    Raises:
        ValueError: ``momentum_init`` is unknown.

    Example:
        >>> import torch
        >>> from autowarm import NormSGD
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> w.grad = torch.tensor([3.0, 4.0])
        >>> NormSGD([w], lr=1.0).step()
        >>> [round(x, 4) for x in w.tolist()]
        [-0.6, -0.8]
    """

    _rules: ClassVar[dict[str, Rule]] = {"": FromWeights()}
    _own_options = frozenset({"momentum_init"})

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        momentum: float = 0.95,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        momentum_init: Literal["zeros", "weights"] = "zeros",
        capturable: bool = False,
        max_nonfinite: int | None = 20,
        skip_outliers: float | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            geometry="frobenius",
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            capturable=capturable,
            max_nonfinite=max_nonfinite,
            skip_outliers=skip_outliers,
            momentum_init=momentum_init,
        )

    def _check_group(self, options: Mapping[str, Any]) -> None:
        super()._check_group(options)
        if options["momentum_init"] not in ("zeros", "weights"):
            raise ValueError(f'momentum_init must be "zeros" or "weights", got {options["momentum_init"]!r}')
