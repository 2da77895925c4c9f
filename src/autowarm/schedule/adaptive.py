"""The scheduler: a learning-rate warm-up that ends by itself, then a customary decay."""

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..geometry import Geometry, resolve
from ..optim.known import geometry_of, kappa_of, unwrapped
from .arguments import clean
from .clock import UpdateClock
from .device import DeviceRule, Notices
from .profile import Profile
from .reduce import Observation, in_company, mark_of, reduce_observations
from .rule import Rule
from .shapes import Shape, decay_shape, warmup_shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

    from ..smoothness import Point, Probe

__all__ = ["AdaptiveWarmup"]

_STATE_VERSION = 1


class AdaptiveWarmup(LRScheduler):
    """Warm up by the loss, then decay over what is left of the run. There is no ``warmup_steps`` to choose.

    During warm-up the rate is the larger of two: the paper's η(Δ) at the smoothed loss (see `Profile`), and a ramp in
    time that reaches the peak after ``floor`` of the run. So it rises at once where the loss falls fast, and slowly but
    surely where the loss lingers. When the gap Δ = loss − f* has fallen below Δ', or the ramp is through, the decay
    takes over, once and for good. The rate is in (0, lr] throughout and the first update uses lr/div.

    Call ``step(loss)`` after ``optimizer.step()``. Called before it, in the order of the paper's Algorithm 1, it works
    the same and acts one update earlier. What counts as time is updates the optimizer really made: one that a
    `torch.amp.GradScaler` skipped counts neither as a step nor as an observation.

    Args:
        optimizer: any PyTorch optimizer. The groups' rates are the peak rates; their ratios are kept.
        total_steps: T, how many updates the whole run makes.
        target_loss: f*, about the loss the run will end at; None takes f(x0) − 0.7·|f(x0)|.
        geometry: the optimizer's norm, see `autowarm.geometry`; None asks `autowarm.optim.geometry_of`.
        kappa: κ; None takes the paper's, all matrices under ``geometry`` at radius 1.
        div: how many times lower the rate starts, > 1. The paper's 100 wastes the first steps of a short run, and its
            η(Δ) stays near lr/100 for most of the way.
        sigma_f2: σ_F², see `autowarm.schedule.calibrate`.
        peak_gap: Δ', the gap at which warm-up ends; None calibrates it at the first loss.
        warmup: "linear" or "cosine", the shape of the floor and of the calibration's target.
        decay: "cosine", "linear", "wsd" (flat, then linear to 0 over the last fifth), "wso" (flat), or a function from
            the share of the decay gone by (0 to 1) to the share of the peak rate kept (1 at 0).
        final_ratio: the decay goes from lr to final_ratio·lr.
        floor: share of T, in (0, 1], after which the rate is at its peak whatever the loss does; None for no floor.
        smoothing: share of T over which the loss is averaged; 0 for none.
        patience: steps in a row without a finite loss before an error; 1 for at once, None for never.
        process_group: ranks that share the run; None is all of them, where `torch.distributed` is in use. Their losses
            are averaged, so their rates are the same to the bit.

    Raises:
        ValueError: an argument is out of range, a name is unknown, or the optimizer's geometry is not known. At the
            first loss: it is not above ``target_loss``, or not by more than ``peak_gap``.
        RuntimeError: ``patience`` is at its end, or ranks disagree.

    Example:
        >>> import torch
        >>> from autowarm import AdaptiveWarmup, Muon
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> opt = Muon.from_model(model, lr=1e-2)
        >>> sched = AdaptiveWarmup(opt, total_steps=50)
        >>> x = torch.randn(64, 4)
        >>> for _ in range(50):
        ...     loss = (model(x) - x).square().mean()
        ...     loss.backward()
        ...     opt.step()
        ...     sched.step(loss)
        ...     opt.zero_grad()
        >>> sched.phase, sched.get_last_lr()[0] < 1e-3
        ('decay', True)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        *,
        target_loss: float | None = None,
        geometry: str | Geometry | None = None,
        kappa: float | None = None,
        div: float = 10.0,
        sigma_f2: float = 1e3,
        peak_gap: float | None = None,
        warmup: str = "linear",
        decay: str | Shape = "cosine",
        final_ratio: float = 0.0,
        floor: float | None = 0.5,
        smoothing: float = 0.01,
        patience: int | None = 20,
        process_group: "torch.distributed.ProcessGroup | None" = None,
    ) -> None:
        given = clean(
            total_steps=total_steps,
            target_loss=target_loss,
            kappa=kappa,
            div=div,
            sigma_f2=sigma_f2,
            peak_gap=peak_gap,
            final_ratio=final_ratio,
            floor=floor,
            smoothing=smoothing,
            patience=patience,
        )
        optimizer = unwrapped(optimizer)  # a trainer's wrapper has no step hooks of its own
        total_steps, kappa, peak_gap = given["total_steps"], given["kappa"], given["peak_gap"]
        self.total_steps = total_steps
        self.patience = given["patience"]
        self.process_group = process_group
        shapes = warmup_shape(warmup), decay_shape(decay)
        if geometry is not None:
            geometry = resolve(geometry)
        if kappa is None and peak_gap is None:
            # Only the calibration needs κ.
            geometry = geometry or geometry_of(optimizer)
            kappa = kappa_of(optimizer, geometry)
        peak_rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        if not all(lr > 0 and math.isfinite(lr) for lr in peak_rates):
            raise ValueError(f"every group's lr must be positive and finite, got {peak_rates}")
        self._rule_arguments: dict[str, Any] = {
            "lr": peak_rates[0],
            "kappa": kappa,
            "target": shapes,
            "total_steps": total_steps,
            "final_ratio": given["final_ratio"],
            "floor_steps": None if given["floor"] is None else given["floor"] * total_steps,
            "window": max(1.0, given["smoothing"] * total_steps),
            **{name: given[name] for name in ("div", "sigma_f2", "target_loss", "peak_gap")},
        }
        self._rule = Rule(**self._rule_arguments)
        # Where the rates are tensors, the rule goes on beside them from the first finite loss on.
        self._beside: DeviceRule | None = None
        # What a resumed run must share with the saved one.
        self._settings: dict[str, Any] = {
            "optimizer": type(optimizer).__name__,
            "geometry": None if geometry is None else repr(geometry),
            "warmup": warmup,
            "decay": decay if isinstance(decay, str) else getattr(decay, "__qualname__", type(decay).__name__),
            **{name: value for name, value in given.items() if name != "patience"},
            "kappa": kappa,
        }
        self._mark = mark_of(self._settings)
        self._pending: list[Observation] = []
        self._failures = 0
        self._said: set[str] = set()
        self._probe: Probe | None = None
        self._clock = UpdateClock(optimizer)
        super().__init__(optimizer)

    @classmethod
    def paper(cls, optimizer: Optimizer, total_steps: int, *, target_loss: float, **options: Any) -> Self:
        """The paper's Algorithm 1 to the letter: raw loss, f* given, no floor. It can stall in warm-up on short runs.

        Args:
            optimizer, total_steps, target_loss: see the class.
            options: any other argument of the class but ``floor`` and ``smoothing``; ``div`` is 100 if not given.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=1e-3)
            >>> sched = AdaptiveWarmup.paper(opt, 1000, target_loss=0.1)
        """
        if target_loss is None:
            raise ValueError("Algorithm 1 needs target_loss, its f*: about the loss that the run will end at")
        if given := sorted(options.keys() & {"floor", "smoothing"}):
            raise TypeError(f"Algorithm 1 has no {given[0]}: use AdaptiveWarmup itself")
        return cls(
            optimizer, total_steps, target_loss=target_loss, floor=None, smoothing=0.0, **{"div": 100.0, **options}
        )

    # What users read.

    @property
    def phase(self) -> str:
        """ "warmup" or "decay". Where the rates are tensors, reading this or what follows waits for the device."""
        return "decay" if self._current().ended_by else "warmup"

    @property
    def ended_by(self) -> str | None:
        """What ended the warm-up: "gap" (the gap fell below Δ') or "floor"; None while it lasts."""
        return self._current().ended_by

    @property
    def warmup_steps(self) -> int:
        """How many updates were made, so far or in all, at warm-up rates."""
        rule = self._current()
        return rule.warmup_steps if rule.ended_by else self.last_epoch

    @property
    def profile(self) -> Profile | None:
        """η(Δ); None before the first finite loss."""
        return self._rule.profile

    @property
    def target_loss(self) -> float | None:
        """f*, given or worked out; None before the first finite loss if not given."""
        return self._rule.target_loss

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw η(Δ) over the loss, with Δ' and the present rate.

        Args:
            ax: matplotlib axes to draw on; None makes new ones.

        Raises:
            RuntimeError: no loss has been seen yet, so there is no profile.
            ImportError: matplotlib is not installed.
        """
        from .plot import plot_profile

        if self.profile is None:
            raise RuntimeError("there is no profile to draw before the first finite loss")
        return plot_profile(self.profile, self._rule.fstar, rate=self._current().share * self.profile.lr, ax=ax)

    def probe(self, closure: "Callable[[], Tensor]", model: nn.Module) -> "AbstractContextManager[Tensor]":
        """Measure, at this update, the curvature along the step and the rate η⋆ that would have been best.

        ``with sched.probe(closure, model) as loss: optimizer.step()``, in place of the forward and backward pass. The
        rates do not depend on it: it is for looking at a run, see `autowarm.smoothness.Probe`, which does the work. It
        costs one more forward and backward pass and leaves training undisturbed.

        Args:
            closure: runs forward and backward on the current mini-batch and returns the loss.
            model: what is trained.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> _ = torch.manual_seed(0)
            >>> model = torch.nn.Linear(4, 2)
            >>> opt = Lion(model.parameters(), lr=1e-2)
            >>> sched = AdaptiveWarmup(opt, total_steps=10)
            >>> x = torch.randn(8, 4)
            >>> def closure():
            ...     loss = model(x).square().mean()
            ...     loss.backward()
            ...     return loss
            >>> with sched.probe(closure, model) as loss:
            ...     opt.step()
            >>> sched.step(loss)
            >>> sched.points[0].best_rate > 0
            True
        """
        from ..smoothness import Probe

        if self._probe is None or self._probe.model is not model:
            self._probe = Probe(model, self.optimizer, process_group=self.process_group)
        return self._probe(closure)

    @property
    def points(self) -> "list[Point]":
        """What `probe` has measured, in order."""
        return [] if self._probe is None else self._probe.points

    # The step.

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        """Take one micro-batch's loss; the next `step` acts on their weighted mean.

        Args:
            loss: a number or a one-element tensor, unscaled and not divided by the number of micro-batches.
            weight: tokens or samples behind it, ≥ 0.

        Raises:
            ValueError: more than one element, or a weight that is negative or not finite.
            TypeError: neither a number nor a tensor.
        """
        self._pending.append(Observation.of(loss, weight).kept())

    def step(self, loss: Tensor | float | None = None) -> None:
        """Set the rates for the next update.

        Args:
            loss: as for `observe`, with weight 1; None if `observe` was called, or if there is no loss.

        Raises:
            TypeError: an int, which is what code that counts epochs passes.
            ValueError, RuntimeError: see the class.
        """
        if loss is not None:
            self._pending.append(Observation.of(loss, 1.0))
        self._step_count += 1
        self._update_lr()

    def get_lr(self) -> list[float | Tensor]:
        """The rates for the next update: each group's peak rate times one common share."""
        share = self._rule.share if self._beside is None else self._beside.share
        return [base * share for base in self.base_lrs]

    def _initial_step(self) -> None:
        self._step_count = 1
        self._restart()

    def _update_lr(self, epoch: int | None = None) -> None:
        # An epoch comes only from SequentialLR, which starts us at a milestone.
        if epoch is not None:
            if epoch != 0:
                raise ValueError(
                    f"AdaptiveWarmup can be restarted at step 0 only, not at {epoch}: it depends on past losses"
                )
            self._restart()
            return
        observations, self._pending = self._pending, []
        tick = self._clock.tick(dry=not any(seen.traced for seen in observations))
        if tick is None:
            observations = []  # a skipped update counts neither as a step nor as an observation
        # Every rank comes here at every call: one that skipped an update alone is found out instead of waited for.
        updates = self.last_epoch + (tick or 0)
        if self._beside is None:
            loss = reduce_observations(observations, self.process_group, (updates, self._mark, self._settings))
        else:
            notices = self._beside.advance(updates, observations, self.process_group, self._mark)
        if tick is None:
            return
        self.last_epoch = updates
        if self._beside is None:
            self._judge(loss)
            self._rule.advance(updates, loss)
        else:
            self._listen(notices, bool(observations))
        self._check_horizon()
        if self._beside is not None and all(isinstance(group["lr"], Tensor) for group in self.optimizer.param_groups):
            self._write_from_device(self._beside.share)
        else:
            self._write(self.get_lr())
            self._settle()

    def _settle(self) -> None:
        """Take the rule to where the rates are."""
        lr = self.optimizer.param_groups[0]["lr"]
        if isinstance(lr, Tensor):
            if self._beside is None and self._rule.started:
                self._beside = DeviceRule(self._rule, lr.device)
        elif self._beside is not None:
            self._rule, self._beside = self._beside.write_back(), None

    def _current(self) -> Rule:
        """The rule as it stands now."""
        return self._rule if self._beside is None else self._beside.write_back()

    def _restart(self) -> None:
        self.last_epoch = 0
        self._rule, self._beside = Rule(**self._rule_arguments), None
        self._failures = 0
        self._pending = []
        self._clock.restart()
        self._write(self.get_lr())

    def _write_from_device(self, share: Tensor) -> None:
        """`_write(get_lr())` in as few operators as it takes."""
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            torch.mul(base, share, out=group["lr"])
        self._last_lr = [group["lr"].clone() for group in self.optimizer.param_groups]

    def _write(self, rates: Sequence[float | Tensor]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if not isinstance(group["lr"], Tensor):
                group["lr"] = float(rate)
            elif isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"].fill_(rate)
        self._last_lr = [
            group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
            for group in self.optimizer.param_groups
        ]

    # What can go wrong.

    def _judge(self, loss: float | None) -> None:
        if loss is None:
            if not self._rule.ended_by:
                self._warn_unobserved()
            return
        self._failures = 0 if math.isfinite(loss) else self._failures + 1
        self._judge_failures(f"was {loss} at step {self.last_epoch}")

    def _listen(self, notices: Notices, observed: bool) -> None:
        """What the device has told meanwhile; it may be some steps old."""
        if notices.disagree:
            raise RuntimeError(
                f"ranks disagree: AdaptiveWarmup has different steps or settings on them, at or shortly before step "
                f"{self.last_epoch}; this rank's are {self._settings}"
            )
        if not (observed or notices.ended_at is not None or in_company(self.process_group)):
            self._warn_unobserved()
        self._failures = notices.failures
        self._judge_failures(f"was not finite at or shortly before step {self.last_epoch}")

    def _warn_unobserved(self) -> None:
        self._warn_once(
            "unobserved",
            "step() was called without a loss, so the warm-up rate stays as it is: call step(loss), or observe(loss) "
            "before step(). Where a trainer calls step(), autowarm.integrations brings it the loss",
        )

    def _judge_failures(self, what: str) -> None:
        if not self._failures:
            return
        self._warn_once("nonfinite", f"the loss {what}: it is left out, and the step counts (said once)")
        if self.patience is not None and self._failures >= self.patience:
            raise RuntimeError(
                f"the loss was not finite {self._failures} times in a row, up to step {self.last_epoch}: the run has "
                "diverged. Lower the peak rate or clip gradients; patience=None turns this error off"
            )

    def _check_horizon(self) -> None:
        # After the last update, or, in the order of Algorithm 1, on the call before it.
        calls = self.last_epoch + self._clock.ahead
        if calls == self.total_steps and not self._current().ended_by:
            if self.profile is None:
                why = "no finite loss was observed. Call step(loss) with the loss of each update"
            elif self._rule.floor_steps is not None:
                why = "no finite loss was observed after the floor was through. Call step(loss) at each update"
            else:
                why = (
                    f"the gap to target_loss={self._rule.fstar:.4g} never fell below "
                    f"peak_gap={self.profile.peak_gap:.4g}. Use the default floor, raise peak_gap or lower target_loss"
                )
            self._warn_once("stalled", f"the run of total_steps={self.total_steps} ends still in warm-up: {why}", 5)
        if calls > self.total_steps:
            self._warn_once("overrun", f"more than total_steps={self.total_steps} steps: the rate stays where it is", 5)

    def _warn_once(self, kind: str, message: str, stacklevel: int = 6) -> None:
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(message, stacklevel=stacklevel)  # the line that called step()

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on to the bit, as plain numbers and text."""
        rule = self._current()
        return {
            "version": _STATE_VERSION,
            "settings": dict(self._settings),
            "last_epoch": self.last_epoch,
            "step_count": self._step_count,
            "base_lrs": [float(lr) for lr in self.base_lrs],
            "rates": [float(group["lr"]) for group in self.optimizer.param_groups],
            "pending": [[float(seen.loss), seen.weight] for seen in self._pending],
            "failures": self._failures,
            "said": sorted(self._said),
            "clock": self._clock.state_dict(),
            "rule": rule.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; its rates are written into the optimizer's groups.

        Raises:
            ValueError: it was saved under other settings; the message lists the differences.
        """
        if state_dict.get("version") != _STATE_VERSION:
            raise ValueError(
                f"no AdaptiveWarmup state of version {_STATE_VERSION}: its version is {state_dict.get('version')!r}"
            )
        saved = state_dict["settings"]
        differ = [
            f"{key}: saved {saved.get(key)!r}, here {here!r}"
            for key, here in self._settings.items()
            if saved.get(key) != here
        ]
        if len(state_dict["base_lrs"]) != len(self.base_lrs):
            differ.append(f"parameter groups: saved {len(state_dict['base_lrs'])}, here {len(self.base_lrs)}")
        if differ:
            raise ValueError("the saved schedule is another one: " + "; ".join(differ))
        self.last_epoch = state_dict["last_epoch"]
        self._step_count = state_dict["step_count"]
        for i, lr in enumerate(state_dict["base_lrs"]):
            base = self.base_lrs[i]
            self.base_lrs[i] = base.new_tensor(lr).reshape(base.shape) if isinstance(base, Tensor) else lr
        self._failures = state_dict["failures"]
        self._said = set(state_dict["said"])
        self._clock.load_state_dict(state_dict["clock"])
        self._rule_arguments["lr"] = state_dict["base_lrs"][0]
        self._rule, self._beside = Rule(**self._rule_arguments), None
        self._rule.load_state_dict(state_dict["rule"])
        self._settle()
        self._pending = [Observation(loss, weight) for loss, weight in state_dict["pending"]]
        # The rates as they were, not as we would set them: another scheduler may be at work on them, too.
        self._write(state_dict["rates"])
