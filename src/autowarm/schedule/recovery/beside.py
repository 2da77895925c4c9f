"""Recovery beside any schedule: what ``recover=True`` does, for a run whose rates another scheduler sets."""

import math
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._torch.frames import frames_of_ours
from ...losses import Losses, Ranks
from ...optim.ranks.dtensors import is_dtensor
from ...optim.step.nonfinite import measured
from ...optim.step.outliers import Outliers
from ...others.wrapped import hook, inside, unwrapped
from ..alarms import MOST_IDLE
from ..clock import UpdateClock, only_makes_state
from ..groups import first_peak
from ..planning import clean
from ..state import opened, sealed
from .guard import Guard, Recovery
from .order import Order, check_recover


class SpikeGuard:
    """Go back to healthy weights when the loss spikes or diverges, beside any learning-rate schedule or none.

    `AdaptiveWarmup` does the same with ``recover=True``; see docs/recovery.md for when it acts and what it does. The
    schedule goes on as if nothing had happened, and `factor` multiplies its rates while the optimizer steps: below 1
    for a while after each restart, and longer after an alarm that comes again before the loss has reached a new low.

    Call `step` with the loss of each update after ``loss.backward()``, before or after ``optimizer.step()`` and the
    schedule's own ``step``.

    Args:
        optimizer: the one whose updates are watched, and whose weights and state are restored.
        total_steps: T, the number of updates in the whole run, whose fiftieth is the memory for losses. None for a run
            without an end, which counts as one of 4000.
        recover: True; the model, whose buffers (and parameters that the optimizer does not hold) are then restored
            too; or "warn" to warn only.
        veto: skip an update whose gradient norm is so many standard deviations above the mean of the last 128 and 16
            times their largest, or not finite: the gradients are set to None, at which PyTorch's optimizers change no
            tensor and no state. At most one in ten. An accelerator is waited for before each update. Not for an
            optimizer that takes a closure, or beside a GradScaler; ours have ``skip_outliers``.
        process_group: the ranks that share the run, as for `AdaptiveWarmup`. All of them must call `step` as often.

    Attributes:
        recoveries: what happened at each alarm, see `AdaptiveWarmup.recoveries`.
        skipped_updates: how many updates ``veto`` has skipped.

    Raises:
        ValueError: an argument is out of range, ``veto`` is given for one of our optimizers, for several or for sharded
            tensors, or ``recover=True`` and the optimizer's updates may be replays of a captured graph.

    Example:
        >>> import torch
        >>> from autowarm import SpikeGuard
        >>> model = torch.nn.Linear(4, 1)
        >>> opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        >>> sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)
        >>> guard = SpikeGuard(opt, total_steps=100)
        >>> for _ in range(100):
        ...     loss = (model(torch.ones(8, 4)) - 1).square().mean()
        ...     loss.backward()
        ...     opt.step()
        ...     sched.step()
        ...     guard.step(loss)
        ...     opt.zero_grad()
        >>> guard.recoveries, guard.factor
        ([], 1.0)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int | None,
        *,
        recover: Literal[True, "warn"] | nn.Module = True,
        veto: float | None = None,
        process_group: "torch.distributed.ProcessGroup | None" = None,
    ) -> None:
        self.optimizer = unwrapped(optimizer)
        if recover is False:
            raise ValueError('recover must be True, the model, or "warn", got False: or make no SpikeGuard')
        if not isinstance(self.optimizer, Optimizer):
            raise TypeError(f"SpikeGuard's first argument is the optimizer, got a {type(self.optimizer).__name__}")
        if veto is not None and not (type(veto) in (int, float) and 0 < veto < math.inf):
            raise ValueError(f"veto must be a positive number of standard deviations, such as 6, got {veto!r}")
        kind_of_recovery = check_recover(recover, self.optimizer)
        optimizers = inside(self.optimizer)
        sharded = any(is_dtensor(p) for group in self.optimizer.param_groups for p in group["params"])
        if veto is not None and (len(optimizers) > 1 or sharded or hasattr(optimizers[0], "skipped_updates")):
            raise ValueError(
                f"veto is for one optimizer that is not ours, with whole gradients: give ours skip_outliers={veto:g}, "
                "and clip the gradients of several optimizers or of DTensors"
            )
        total_steps = clean(total_steps=total_steps)["total_steps"]
        self._guard = Guard(recover, total_steps, self.optimizer)
        first = next((p for group in self.optimizer.param_groups for p in group["params"]), torch.empty(0))
        settings = {"total_steps": total_steps, "recover": kind_of_recovery}
        self._losses = Losses(Ranks(process_group, settings, type(self).__name__, first.device))
        self._clock, self._updates = UpdateClock(self.optimizer), 0
        self._peak = first_peak(self.optimizer)
        self._order = Order(kind_of_recovery is True)
        self._outliers, self.skipped_updates = Outliers(veto), 0
        self._vetoed: list[int] = []  # updates that were skipped and whose losses have not arrived yet
        self._set_aside: dict[Optimizer, list[float | Tensor]] = {}  # the schedule's rates during an update
        self._register()

    def _register(self) -> None:
        for one in inside(self.optimizer):
            hook(one.register_step_pre_hook, self, SpikeGuard._before_update)
            hook(one.register_step_post_hook, self, SpikeGuard._after_update)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._register()  # a copied optimizer has lost its hooks

    @property
    def recoveries(self) -> list[Recovery]:
        return list(self._guard.recoveries)

    @property
    def factor(self) -> float:
        """What multiplies the schedule's rates at the next update; in (0, 1]."""
        return self._guard.share(self._updates)

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        """Record the loss of one micro-batch for the next `step`, see `AdaptiveWarmup.observe`."""
        self._losses.observe(loss, weight)
        self._order.observed(loss)

    def step(self, loss: Tensor | float | None = None) -> None:
        """See the loss of an update, and restore the run if it is too high; on an accelerator four updates later.

        Args:
            loss: the loss, as for `observe` with weight 1; None if you called `observe`. Of an update which a
                `torch.amp.GradScaler` skipped, it counts if it is not finite: then the weights may be broken.

        Raises:
            RuntimeError: ranks disagree. In ``loss.backward()``: it came after the first call that took the loss.
        """
        self._order.stepping(loss)
        updates_made, readings = self._losses.read(loss, self._clock, self._updates)
        self._updates += updates_made or 0
        if updates_made is None and not readings and self._clock.idle == MOST_IDLE:
            kind = type(self.optimizer).__name__
            warnings.warn(
                f"SpikeGuard.step() was called {MOST_IDLE} times in a row, but {kind}, which it watches, made no "
                "update. For another optimizer, make a new SpikeGuard", stacklevel=frames_of_ours(),
            )  # fmt: skip
        # The guard takes each loss that has arrived, but those of vetoed updates.
        for at, mean in readings:
            vetoed, self._vetoed = at in self._vetoed, [x for x in self._vetoed if x > at]
            if vetoed and mean is not None and math.isfinite(mean):
                continue  # it says nothing about the weights; if they are broken, every update is vetoed
            self._guard.after(self._updates, at, mean, self.optimizer, self._peak)

    # The rates are multiplied only during an update: some schedules compute each rate from the last one.

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._clock.pretended = not torch.compiler.is_compiling() and only_makes_state(optimizer)
        self._guard.keep_added(self.optimizer)
        if self._outliers.limit is not None and not self._clock.pretended:
            self._veto(optimizer)
        factor = self.factor
        if factor != 1.0 and optimizer not in self._set_aside:  # a class may call its parent's step, with its hooks
            self._set_aside[optimizer] = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor

    @torch.no_grad()
    def _veto(self, optimizer: Optimizer) -> None:
        """Clear the gradients of an update that is not to be made."""
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not params:
            return
        self._outliers.prepare(params[0].device)
        finite, squares = measured([p.grad for p in params])
        if not self._outliers.judge(squares, bool(finite)):
            for p in params:
                p.grad = None
            self.skipped_updates += 1
            self._vetoed.append(self._updates + 1)

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._set_aside.pop(optimizer, ()), strict=False):
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Everything but the copy of the run, as plain numbers and text, to save after `step`."""
        content = {"updates": self._updates, "clock": self._clock.state_dict()}
        known = self._outliers.history
        content["veto"] = [self.skipped_updates, self._vetoed, None if known is None else known.tolist()]
        content |= {"recovery": self._guard.state_dict(), **self._losses.state_dict()}
        return sealed("SpikeGuard", content)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state. Raise ValueError, and change nothing, if it is damaged."""
        content = opened("SpikeGuard", state_dict)
        self._updates = content["updates"]
        self._clock.load_state_dict(content["clock"])
        self.skipped_updates, vetoed, known = content["veto"]
        self._vetoed = [*vetoed]
        device = next((p.device for group in self.optimizer.param_groups for p in group["params"]), None)
        self._outliers.history = None if known is None else torch.tensor(known, device=device)
        self._losses.load_state_dict(content)
        self._guard.load_state_dict(content["recovery"])
