"""Measures K^t in a training loop without disturbing it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .._torch.devices import check_member
from .._torch.modes import autocast_off
from .._torch.undisturbed import generators, set_generators, untouched
from ..geometry import Geometry, MaxOverLayers, resolve
from ..losses import run_closure
from ..optim.ranks.dtensors import local
from ..others import geometry_of
from ..others.known import geometry_in
from .measure import Point, double, measure, whole

Closure = Callable[[], Tensor]


class Probe:
    """Measures K^t = ‖∇f(x^{t+1}) − ∇f(x^t)‖⋆/‖x^{t+1} − x^t‖ along a run (paper, Sec. "ass" and App. "smooth").

    Both gradients come from the same mini-batch, before clipping, with the same dropout masks. The primal norm is the
    largest over the model's matrices, or its vectors if it has no matrix; the dual norm is the sum. A probed step costs
    one more forward and backward pass, and memory for a copy of the weights and gradients.

    The weights are bit-identical with and without the probe. After the extra pass it restores the random number
    generators (Python, NumPy, PyTorch on CPU and CUDA), the modules' buffers and ``p.grad``.

    Args:
        model: the module to train, wrapped (DDP, FSDP2) or not.
        optimizer: the optimizer that trains it.
        every: measure steps 0, n, 2n, …; the same on all ranks.
        geometry: geometry of each matrix, by name or as a `Geometry`. None for the optimizer's main geometry at radius
            1, as in the paper.
        process_group: ranks over which losses are averaged; None for all ranks, if `torch.distributed` is in use.
            Gradients must already be reduced, as DDP and FSDP2 do.

    The closure runs forward and backward on the *current* mini-batch, with all its micro-batches, and returns the mean
    loss. Gradients are zero or None when it starts, and it must not scale them, as a GradScaler would. It runs again
    after the step, so keep anything that must happen once, such as a scheduler's ``observe``, out of it.

    Attributes:
        points: the measured `Point`s, in order.
        step: the number of the next step. The probe counts its calls; set it if some steps are made without the probe.

    Raises:
        ValueError: ``every < 1``, or an unknown name of a geometry; the message lists the known ones.
        RuntimeError: at a probed step, gradients of an earlier step are still present.
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
        self._geometry = resolve(geometry or geometry_of(optimizer))
        check_member(process_group)
        self._process_group = process_group
        self.step = 0

    @contextmanager
    def __call__(self, closure: Closure) -> Iterator[Tensor]:
        """Wrap clipping and ``optimizer.step()`` in ``with probe(closure) as loss:``."""
        step = self.step
        self.step += 1
        # A step that is not measured: one pass, no copies.
        if step % self.every:
            yield closure()
            return
        params, measured, geometry = self._tensors()
        # Gradients of an earlier step would be part of the first gradient and not of the second.
        if any(p.grad is not None and bool(local(p.grad).any()) for p in params):
            raise RuntimeError(
                "a probed step must start with gradients of zero, but those of an earlier step are still there: call "
                "optimizer.zero_grad() before the probe runs the closure"
            )
        # At x^t: the loss, and copies of what clipping and the step will change. The generators' states are for the
        # second pass, which must draw the same dropout masks.
        states = generators()
        loss = run_closure(closure, params)
        if not isinstance(loss, Tensor):
            raise TypeError(f"the closure returns a {type(loss).__name__}: let it return the loss as a tensor")
        loss_before, rate = loss.detach().clone(), float(self.optimizer.param_groups[0]["lr"])
        weights = [p.detach().clone() for p in params]
        grads = [None if p.grad is None else p.grad.detach().clone() for p in params]
        yield loss
        # At x^{t+1}, on the same batch. The copies of the weights go before the second pass needs the memory.
        with torch.no_grad():
            steps = [p.detach() - x for p, x in zip(params, weights, strict=True)]
        weights.clear()
        # Buffers, gradients and generators are put back afterwards.
        with untouched(self.model, params):
            set_generators(states)
            loss_after = closure().detach()
            numbers = measure(grads, [p.grad for p in params], steps, geometry, measured)
        with autocast_off():
            losses = self._mean_over_ranks([loss_before, loss_after])
            scalars = [*losses, *(number.to(losses[0].device, losses[0].dtype) for number in numbers.values())]
            before, after, *rest = torch.stack(scalars).tolist()  # wait for the device once, for all numbers
        self.points.append(Point(step, rate, before, after, **dict(zip(numbers, rest, strict=True))))

    def _tensors(self) -> tuple[list[Tensor], list[bool], MaxOverLayers]:
        """Return all tensors that the optimizer trains, each once, which of them are measured, and their norms."""
        geometry_by_tensor: dict[Tensor, Any] = {}
        # A tensor in two groups counts once, with the geometry of the first.
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    geometry_by_tensor.setdefault(p, geometry_in(group, p, self._geometry))
        # The paper's norms are over matrices; a model without any is measured by its vectors.
        measured = [p.ndim >= 2 for p in geometry_by_tensor]
        if not any(measured):
            measured = [True] * len(measured)
        geometries = [one for one, counts in zip(geometry_by_tensor.values(), measured, strict=True) if counts]
        return list(geometry_by_tensor), measured, MaxOverLayers(geometries)

    def _mean_over_ranks(self, losses: list[Tensor]) -> list[Tensor]:
        # (2,): the losses before and after the step, on this rank
        local_losses = torch.stack([double(whole(loss)).reshape(()) for loss in losses])
        if not (dist.is_available() and dist.is_initialized()):
            return list(local_losses)
        world = dist.get_world_size(self._process_group)
        # (2·ranks,): rank 0's two losses, then rank 1's, …
        all_losses = local_losses.new_empty(world * len(losses))
        dist.all_gather_into_tensor(all_losses, local_losses, group=self._process_group)
        # Every rank sums in rank order, so that all get bit-identical results.
        return list(all_losses.reshape(world, -1).mean(0))
