"""Measures K^t in a training loop without disturbing it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..devices import check_member
from ..geometry import Geometry, MaxOverLayers, resolve
from ..losses import run_closure
from ..modes import autocast_off
from ..optim import geometry_of
from ..optim.known import geometry_in
from ..optim.step.dtensors import local
from ..undisturbed import generators, set_generators, untouched
from .measure import Point, measure

Closure = Callable[[], Tensor]


class Probe:
    """Measures K^t = ‖∇f(x^{t+1}) − ∇f(x^t)‖⋆/‖x^{t+1} − x^t‖ along a run (paper, Sec. "ass" and App. "smooth").

    Both gradients come from the same mini-batch, before clipping, with the same dropout masks. The norms are those of
    the whole model: the primal norm is the largest over its matrices, the dual norm the sum. A probed step costs one
    more forward and backward pass, and memory for a copy of the weights and gradients.

    The probe does not disturb training: the weights are bit-identical with and without it. After the extra pass it
    restores the random number generators (Python, NumPy, PyTorch on CPU and CUDA), the modules' buffers and ``p.grad``.

    Args:
        model: the module to train, wrapped (DDP, FSDP2) or not.
        optimizer: the optimizer that trains it.
        every: measure steps 0, n, 2n, …; the same on all ranks.
        geometry: geometry of each matrix, by name or as a `Geometry`. None for the optimizer's main geometry at radius
            1, as in the paper; "groups" for each parameter group's own geometry and radius, with vectors.
        process_group: ranks over which losses are averaged; None for all ranks, if `torch.distributed` is in use.
            Gradients must already be reduced, as DDP and FSDP2 do.

    The closure runs forward and backward on the *current* mini-batch, with all its micro-batches, and returns the mean
    loss. Gradients are zero or None when it starts, and it must not scale them, as a GradScaler would. It runs again
    after the step, so keep anything that must happen once, such as a scheduler's ``observe``, out of it.

    If a model has no matrix, its vectors are measured.

    Attributes:
        points: the measured `Point`s, in order.
        step: the number of the next step. The probe counts its calls; set it if some steps are made without the probe.

    Raises:
        ValueError: ``every < 1``, or an unknown name of a geometry; the message lists the known ones.
        RuntimeError: gradients of an earlier step are still present at a probed step.
        TypeError, ValueError: at a probed step, the closure returns no tensor or runs no backward pass.

    Example:
        >>> import torch
        >>> from autowarm import Lion
        >>> from autowarm.smoothness import Probe
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(4, 2)
        >>> opt = Lion(model.parameters(), lr=1e-2)
        >>> probe = Probe(model, opt, every=5)
        >>> for _ in range(10):
        ...     x = torch.randn(8, 4)
        ...     def closure():
        ...         loss = model(x).square().mean()
        ...         loss.backward()
        ...         return loss
        ...     with probe(closure) as loss:  # runs closure
        ...         opt.step()                # after clipping, if you clip
        ...     opt.zero_grad()
        >>> [(p.step, p.smoothness > 0) for p in probe.points]
        [(0, True), (5, True)]
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        every: int = 1,
        geometry: str | Geometry | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.model = model
        self.optimizer = optimizer
        self.every = every
        self.points: list[Point] = []
        self._geometry = None if geometry == "groups" else resolve(geometry or geometry_of(optimizer))
        check_member(process_group)
        self._process_group = process_group
        self.step = 0
        self._pending: _Pending | None = None

    @contextmanager
    def __call__(self, closure: Closure) -> Iterator[Tensor]:
        """Wrap clipping and ``optimizer.step()`` in ``with probe(closure) as loss:``; calls `before`, then `after`."""
        loss = self.before(closure)
        try:
            yield loss
        except BaseException:
            self._pending = None
            raise
        self.after()

    def before(self, closure: Closure) -> Tensor:
        """Run the closure and return its loss; at a probed step, store what the second pass needs."""
        probed = self.step % self.every == 0
        self.step += 1
        if not probed:
            self._pending = None
            return closure()
        params, measured, geometry = self._tensors()
        if any(p.grad is not None and bool(local(p.grad).any()) for p in params):
            raise RuntimeError(
                "a probed step must start with gradients of zero, but those of an earlier step are still there: call "
                "optimizer.zero_grad() before the probe runs the closure"
            )
        before = generators()
        loss = run_closure(closure, params)
        if not isinstance(loss, Tensor):
            raise TypeError(f"the closure returns a {type(loss).__name__}: let it return the loss as a tensor")
        self._pending = _Pending(
            closure=closure,
            generators=before,
            loss=loss.detach().clone(),
            rate=float(self.optimizer.param_groups[0]["lr"]),
            params=params,
            weights=[p.detach().clone() for p in params],
            grads=[None if p.grad is None else p.grad.detach().clone() for p in params],
            measured=measured,
            geometry=geometry,
        )
        return loss

    def after(self) -> Point | None:
        """Measure the step made since `before`; return None if the step is not probed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        with torch.no_grad():
            steps = [p.detach() - x for p, x in zip(pending.params, pending.weights, strict=True)]
        pending.weights.clear()
        with untouched(self.model, pending.params):
            set_generators(pending.generators)
            loss_after = pending.closure().detach()
            found = measure(pending.grads, [p.grad for p in pending.params], steps, pending.geometry, pending.measured)
        names = list(found)
        with autocast_off():
            losses = self._mean_over_ranks([pending.loss, loss_after])
            numbers = [*losses, *(found[name].to(losses[0].device, losses[0].dtype) for name in names)]
            values = torch.stack(numbers).tolist()  # wait for the device once, for all numbers
        loss, after, *rest = values
        point = Point(self.step - 1, pending.rate, loss, after, **dict(zip(names, rest, strict=True)))
        self.points.append(point)
        return point

    def _tensors(self) -> tuple[list[Tensor], list[bool], MaxOverLayers]:
        """Return all tensors that the optimizer trains, each once, which of them are measured, and their norms."""
        seen: dict[int, tuple[Tensor, Any]] = {}
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    seen.setdefault(id(p), (p, self._geometry_of(group, p)))
        params = [p for p, _ in seen.values()]
        own_geometries = self._geometry is None
        measured = [own_geometries or p.ndim >= 2 for p in params]
        if not any(measured):
            measured = [True] * len(params)
        geometries = [own for (_, own), counts in zip(seen.values(), measured, strict=True) if counts]
        if own_geometries and not all(isinstance(own, Geometry) for own in geometries):
            raise ValueError(
                f'geometry="groups" needs a geometry in every group, which {type(self.optimizer).__name__} lacks: '
                "pass geometry='spectral', 'sign', 'frobenius' or a Geometry of your own"
            )
        return params, measured, MaxOverLayers(geometries)

    def _geometry_of(self, group: dict[str, Any], p: Tensor) -> Any:
        return group.get("geometry") if self._geometry is None else geometry_in(group, p, self._geometry)

    def _mean_over_ranks(self, losses: list[Tensor]) -> list[Tensor]:
        mine = torch.stack([loss.full_tensor() if hasattr(loss, "full_tensor") else loss for loss in losses])
        mine = mine.reshape(len(losses)).to(torch.float32 if mine.device.type == "mps" else torch.float64)
        if not (dist.is_available() and dist.is_initialized()):
            return list(mine)
        world = dist.get_world_size(self._process_group)
        everyone = mine.new_empty(world * len(losses))
        dist.all_gather_into_tensor(everyone, mine, group=self._process_group)
        # Every rank sums in rank order, so that all get bit-identical results.
        return list(everyone.reshape(world, -1).mean(0))


@dataclass
class _Pending:
    """The data stored at x^t until the step is made."""

    closure: Closure
    generators: dict[str, Any]
    loss: Tensor
    rate: float
    params: list[Tensor]
    weights: list[Tensor]
    grads: list[Tensor | None]
    measured: list[bool]
    geometry: MaxOverLayers
