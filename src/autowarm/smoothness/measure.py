"""Curvature from two gradients on one mini-batch, without any state."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._torch.modes import without_autocast
from ..geometry import MaxOverLayers


@dataclass(frozen=True)
class Point:
    """One measured step x^t → x^{t+1} = x^t + δ, with g = ∇f(x^t) and g⁺ = ∇f(x^{t+1}) on the same mini-batch.

    Attributes:
        step: t, counted from 0.
        rate: η of the optimizer's first group.
        loss: f(x^t). The paper's Δ^t is ``loss − f*``.
        loss_after: f(x^{t+1}).
        gradient_change: ‖g⁺ − g‖⋆, in units of loss per ``step_norm``.
        step_norm: ‖δ‖, in the geometry's units.
        slope: ⟨g, δ⟩ over all trained tensors, in units of the loss; negative if the step goes downhill.
        slope_after: ⟨g⁺, δ⟩.
        step_l2: ‖δ‖₂ over all trained tensors.

    Example:
        f(x) = x² from x = 1 to x = 0.5:

        >>> from autowarm.smoothness import Point
        >>> p = Point(step=0, rate=0.5, loss=1.0, loss_after=0.25, gradient_change=1.0, step_norm=0.5, slope=-1.0,
        ...           slope_after=-0.5, step_l2=0.5)
        >>> p.smoothness, p.curvature_by_slopes, p.best_rate
        (2.0, 2.0, 1.0)
    """

    step: int
    rate: float
    loss: float
    loss_after: float
    gradient_change: float
    step_norm: float
    slope: float
    slope_after: float
    step_l2: float

    @property
    def smoothness(self) -> float:
        """K^t = ‖g⁺ − g‖⋆/‖δ‖ (paper, Sec. "ass"); NaN if the step is zero."""
        return _ratio(self.gradient_change, self.step_norm)

    @property
    def curvature_by_slopes(self) -> float:
        """⟨g⁺ − g, δ⟩/‖δ‖², the curvature along δ only: at most `smoothness` if all tensors are measured."""
        return _ratio(self.slope_after - self.slope, self.step_norm**2)

    @property
    def curvature_l2(self) -> float:
        """⟨g⁺ − g, δ⟩/‖δ‖₂²: a Rayleigh quotient, to compare with the Hessian's eigenvalues."""
        return _ratio(self.slope_after - self.slope, self.step_l2**2)

    @property
    def best_rate(self) -> float | None:
        """η⋆ = −⟨g, d⟩/(K‖d‖²), d = δ/η: the minimiser along δ of the parabola with ⟨g, δ⟩ and `curvature_by_slopes`.

        None if there is no minimiser: ⟨g, d⟩ ≥ 0, or the curvature is not positive.
        """
        # The parabola f(x) + s⟨g, δ⟩ + s²·bend/2 along x + s·δ has its minimum at s = −⟨g, δ⟩/bend.
        bend = self.slope_after - self.slope
        return -self.slope / bend * self.rate if self.slope < 0 and bend > 0 else None


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else math.nan


@without_autocast
@torch.no_grad()
def measure(
    grads: Sequence[Tensor | None],
    grads_after: Sequence[Tensor | None],
    steps: Sequence[Tensor],
    geometry: MaxOverLayers,
    measured: Sequence[bool] | None = None,
) -> dict[str, Tensor]:
    """The numbers of a `Point` that come from tensors, as scalar tensors, in float64 if the device supports it.

    ``grads`` are g, None for zero, ``grads_after`` g⁺, ``steps`` δ. The tensors that are ``measured`` (None: all) enter
    the norms, in the order of ``geometry``; all enter the inner products. All ranks gather DTensors together, one
    tensor at a time, and free each at once.
    """
    # One geometry for each measured tensor. The norms compose as those of a maximum over layers: ‖δ‖ is the largest of
    # the layers' norms, and its dual the sum of their duals.
    which = [True] * len(steps) if measured is None else list(measured)
    geometries = iter(geometry.each(sum(which)))
    duals, norms, slopes, slopes_after, squares = [], [], [], [], []
    for g, g_after, step, counts in zip(grads, grads_after, steps, which, strict=True):
        # δ, g and g⁺ of one tensor, gathered if it is sharded and freed before the next
        d = whole(step)
        before = torch.zeros_like(d) if g is None else whole(g)
        after = torch.zeros_like(d) if g_after is None else whole(g_after)
        if counts:
            norms_of = next(geometries)
            duals.append(double(norms_of.dual(after - before)))
            norms.append(double(norms_of.norm(d)))
        # ⟨g, δ⟩, ⟨g⁺, δ⟩ and ‖δ‖₂² over all tensors: their differences cancel, hence double precision
        wide = double(d).flatten()
        slopes.append(torch.dot(double(before).flatten(), wide))
        slopes_after.append(torch.dot(double(after).flatten(), wide))
        squares.append(torch.dot(wide, wide))
    return {
        # Over the measured tensors: the dual of a maximum is the sum.
        "gradient_change": _gather(duals).sum(),
        "step_norm": _gather(norms).amax(),
        # Over all tensors: inner products add up.
        "slope": _gather(slopes).sum(),
        "slope_after": _gather(slopes_after).sum(),
        "step_l2": _gather(squares).sum().sqrt(),
    }


def whole(x: Tensor) -> Tensor:
    """The full tensor in at least float32: differences and norms in bfloat16 would have two digits."""
    if hasattr(x, "full_tensor"):
        x = x.full_tensor()
    return x if x.dtype == torch.float64 else x.float()


def double(x: Tensor) -> Tensor:
    """The same in double precision, unless the device has none."""
    return x if x.device.type == "mps" else x.double()


def _gather(scalars: Sequence[Tensor]) -> Tensor:
    # A model spread over devices brings its scalars to the first device.
    return torch.stack([scalar.to(scalars[0].device) for scalar in scalars])
