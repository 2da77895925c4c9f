"""The scheduler: a learning-rate warm-up that ends by itself, then a customary decay."""

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..geometry import Geometry, resolve
from ..optim.known import geometry_of, kappa_of
from .clock import UpdateClock
from .profile import Profile
from .reduce import Observation, reduce_observations
from .rule import WarmupRule
from .shapes import Shape, decay_shape, warmup_shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AdaptiveWarmup"]

_STATE_VERSION = 1


class AdaptiveWarmup(LRScheduler):
    """Warm up by the loss, then decay over what is left of the run. There is no ``warmup_steps`` to choose.

    During warm-up the rate is the larger of the paper's η(Δ) at the smoothed loss (see `Profile`) and a ramp that
    reaches the peak after ``floor`` of the run. When the gap Δ = loss − f* has fallen below Δ', or the ramp is through,
    the decay takes over, once and for good. The rate is in (0, lr] throughout and the first update uses lr/div.

    Call ``step(loss)`` after ``optimizer.step()``. Called before it, in the order of the paper's Algorithm 1, it works
    the same and acts one update earlier. What counts as time is updates the optimizer really made: one that a
    `torch.amp.GradScaler` skipped counts neither as a step nor as an observation.

    Args:
        optimizer: any PyTorch optimizer. The groups' rates are the peak rates; their ratios are kept.
        total_steps: T, how many updates the whole run makes.
        target_loss: f*, about the loss the run will end at; None takes f(x0) − 0.7·|f(x0)|.
        geometry: the optimizer's norm, see `autowarm.geometry`; None asks `autowarm.optim.geometry_of`.
        kappa: κ; None takes the paper's, all matrices under ``geometry`` at radius 1.
        div: how many times lower the rate starts, > 1.
        sigma_f2: σ_F², see `autowarm.schedule.calibrate`.
        peak_gap: Δ', the gap at which warm-up ends; None calibrates it at the first loss.
        warmup: "linear" or "cosine", the shape of the floor and of the calibration's target.
        decay: "cosine", "linear", "wsd" (flat, then linear to 0 over the last fifth), "wso" (flat), or a function from
            the share of the decay gone by (0 to 1) to the share of the peak rate kept (1 at 0).
        final_ratio: the decay goes from lr to final_ratio·lr.
        floor: share of T after which the rate is at its peak come what may; None for no floor.
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
        div: float = 100.0,
        sigma_f2: float = 1e3,
        peak_gap: float | None = None,
        warmup: str = "linear",
        decay: str | Shape = "cosine",
        final_ratio: float = 0.0,
        floor: float | None = 0.2,
        smoothing: float = 0.01,
        patience: int | None = 20,
        process_group: "torch.distributed.ProcessGroup | None" = None,
    ) -> None:
        _check(
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
        self.total_steps = total_steps
        self.final_ratio = final_ratio
        self.patience = patience
        self.process_group = process_group
        shapes = warmup_shape(warmup), decay_shape(decay)
        self._decay = shapes[1]
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
            "div": div,
            "kappa": kappa,
            "sigma_f2": sigma_f2,
            "target": shapes,
            "target_loss": target_loss,
            "peak_gap": peak_gap,
            "floor_steps": None if floor is None else floor * total_steps,
            "window": max(1.0, smoothing * total_steps),
        }
        self._rule = WarmupRule(**self._rule_arguments)
        # What a resumed run must share with the saved one.
        self._settings: dict[str, Any] = {
            "total_steps": total_steps,
            "optimizer": type(optimizer).__name__,
            "geometry": None if geometry is None else repr(geometry),
            "kappa": kappa,
            "target_loss": target_loss,
            "div": div,
            "sigma_f2": sigma_f2,
            "peak_gap": peak_gap,
            "warmup": warmup,
            "decay": decay if isinstance(decay, str) else getattr(decay, "__qualname__", type(decay).__name__),
            "final_ratio": final_ratio,
            "floor": floor,
            "smoothing": smoothing,
        }
        self._warmup_steps = 0
        self._share = 1.0 / div
        self._pending: list[Observation] = []
        self._failures = 0
        self._said: set[str] = set()
        self._clock = UpdateClock(optimizer)
        super().__init__(optimizer)

    @classmethod
    def paper(cls, optimizer: Optimizer, total_steps: int, *, target_loss: float, **options: Any) -> Self:
        """The paper's Algorithm 1 to the letter: raw loss, f* given, no floor. It can stall in warm-up on short runs.

        Args:
            optimizer, total_steps, target_loss: see the class.
            options: any other argument of the class but ``floor`` and ``smoothing``.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=1e-3)
            >>> sched = AdaptiveWarmup.paper(opt, 1000, target_loss=0.1)
        """
        return cls(optimizer, total_steps, target_loss=target_loss, floor=None, smoothing=0.0, **options)

    # What users read.

    @property
    def phase(self) -> str:
        """ "warmup" or "decay"."""
        return "decay" if self._rule.done else "warmup"

    @property
    def warmup_steps(self) -> int:
        """How many updates were made, so far or in all, at warm-up rates."""
        return self._warmup_steps if self._rule.done else self.last_epoch

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
        return plot_profile(self.profile, self._rule.fstar, rate=self._share * self.profile.lr, ax=ax)

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
        self._pending.append(Observation.of(loss, weight))

    def step(self, loss: Tensor | float | None = None) -> None:
        """Set the rates for the next update.

        Args:
            loss: as for `observe`, which it calls; None if `observe` was called, or if there is no loss.

        Raises:
            TypeError: an int, which is what code that counts epochs passes.
            ValueError, RuntimeError: see the class.
        """
        if isinstance(loss, int):
            raise TypeError(
                f"step takes a loss, not an epoch, and got the int {loss}: pass the loss as a float or tensor"
            )
        if loss is not None:
            self.observe(loss)
        self._step_count += 1
        self._update_lr()

    def get_lr(self) -> list[float | Tensor]:
        """The rates for the next update: each group's peak rate times one common share."""
        return [base * self._share for base in self.base_lrs]

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
        tick = self._clock.tick()
        observations, self._pending = self._pending, []
        if tick is None:
            return  # a skipped update counts neither as a step nor as an observation
        self.last_epoch += tick
        loss = reduce_observations(observations, self.process_group, (self.last_epoch, self._settings))
        self._judge(loss, bool(observations))
        if not self._rule.done and loss is not None and math.isfinite(loss):
            self._rule.observe(loss, tick=bool(tick))
            self._share = self._rule.share
            if self._rule.done:
                self._warmup_steps = self.last_epoch
        if self._rule.done:
            self._share = self._decay_share()
        self._check_horizon()
        self._write()

    def _decay_share(self) -> float:
        left = self.total_steps - self._warmup_steps
        # Update T has the decay's last value; past T it stays there.
        gone = min(self.last_epoch - self._warmup_steps, left - 1)
        kept = float(self._decay(max(0, gone) / max(1, left)))
        return self.final_ratio + (1.0 - self.final_ratio) * kept

    def _restart(self) -> None:
        self.last_epoch = 0
        self._rule = WarmupRule(**self._rule_arguments)
        self._share = self._rule.share
        self._warmup_steps = 0
        self._pending = []
        self._write()

    def _write(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        self._last_lr = [
            group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
            for group in self.optimizer.param_groups
        ]

    # What can go wrong.

    def _judge(self, loss: float | None, observed: bool) -> None:
        if loss is None:
            if not self._rule.done:
                self._warn_once(
                    "unobserved",
                    "step() was called without a loss, so the warm-up rate stays as it is: call step(loss), or "
                    "observe(loss) before step()",
                )
            return
        if math.isfinite(loss):
            self._failures = 0
            return
        self._failures += 1
        self._warn_once(
            "nonfinite",
            f"the loss was {loss} at step {self.last_epoch}: it is left out, and the step counts (said once)",
        )
        if self.patience is not None and self._failures >= self.patience:
            raise RuntimeError(
                f"the loss was not finite {self._failures} times in a row, up to step {self.last_epoch}: the run has "
                "diverged. Lower the peak rate or clip gradients; patience=None turns this error off"
            )

    def _check_horizon(self) -> None:
        if self.last_epoch >= self.total_steps and not self._rule.done:
            profile = self.profile
            why = (
                "no finite loss was observed"
                if profile is None
                else f"the gap to target_loss={self._rule.fstar:.4g} never fell below peak_gap={profile.peak_gap:.4g}"
            )
            self._warn_once(
                "stalled",
                f"the run of total_steps={self.total_steps} ends still in warm-up: {why}. Use the default floor, raise "
                "peak_gap or lower target_loss",
            )
        if self.last_epoch > self.total_steps:
            self._warn_once(
                "overrun", f"more than total_steps={self.total_steps} steps: the rate stays at its last value"
            )

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(message, stacklevel=5)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on to the bit, as plain numbers and text."""
        rule = self._rule
        return {
            "version": _STATE_VERSION,
            "settings": dict(self._settings),
            "last_epoch": self.last_epoch,
            "step_count": self._step_count,
            "base_lrs": [float(lr) for lr in self.base_lrs],
            "share": self._share,
            "warmup_steps": self._warmup_steps,
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
        self._share = state_dict["share"]
        self._warmup_steps = state_dict["warmup_steps"]
        self._failures = state_dict["failures"]
        self._said = set(state_dict["said"])
        self._clock.load_state_dict(state_dict["clock"])
        self._rule = WarmupRule(**self._rule_arguments)
        self._rule.load_state_dict(state_dict["rule"])
        self._pending = []
        self._write()


def _check(**given: Any) -> None:
    """Raise ValueError for the first argument that is out of range."""

    def positive(x: float | None) -> bool:
        return x is None or (x > 0 and math.isfinite(x))

    fine: dict[str, tuple[Callable[[Any], bool], str]] = {
        "total_steps": (lambda x: isinstance(x, int) and x >= 1, "must be a whole number ≥ 1"),
        "target_loss": (lambda x: x is None or math.isfinite(x), "must be finite"),
        "kappa": (positive, "must be positive and finite"),
        "div": (lambda x: x > 1 and math.isfinite(x), "must be greater than 1 and finite"),
        "sigma_f2": (positive, "must be positive and finite"),
        "peak_gap": (positive, "must be positive and finite"),
        "final_ratio": (lambda x: 0 <= x <= 1, "must be in [0, 1]"),
        "floor": (lambda x: x is None or 0 <= x <= 1, "is a share of the run, in [0, 1], or None"),
        "smoothing": (lambda x: 0 <= x < 1, "is a share of the run, in [0, 1)"),
        "patience": (lambda x: x is None or x >= 1, "must be at least 1, or None"),
    }
    for name, value in given.items():
        holds, need = fine[name]
        if not holds(value):
            raise ValueError(f"{name} {need}, got {value!r}")
