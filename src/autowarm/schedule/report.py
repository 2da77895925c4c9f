"""What a schedule says of itself: its state as attributes, numbers for a logger, a line of text, a plot."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from .._torch.plotting import axes_or_new
from . import core
from .groups import GroupRates
from .peak_limit import PeakLimit
from .profile import Profile
from .recovery import Guard, Recovery

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes


class Report:
    """What users read of `AdaptiveWarmup`. On an accelerator it is four updates old, so that nothing waits."""

    optimizer: Optimizer
    process_group: "torch.distributed.ProcessGroup | None"
    last_epoch: Any
    base_lrs: list[float]
    """The groups' peak rates as given. Change an entry to change that group's peak from the next step on."""

    _plan: core.Plan
    _state: core.State
    _groups: GroupRates
    _guard: Guard | None
    _limit: PeakLimit

    @property
    def total_steps(self) -> int | None:
        """T as given, or as set by `extend` or `decay_now`; None if the end is open."""
        return self._state.total_steps

    @property
    def phase(self) -> str:
        """The current phase: "warmup" or "decay"."""
        return "warmup" if self._state.ended_by is None else "decay"

    @property
    def ended_by(self) -> str | None:
        """What ended the warm-up: "loss" (it fell below f* + Δ'), "clock", "decay_now" or "alarm"; None until then."""
        return self._state.ended_by

    @property
    def warmup_steps(self) -> int:
        """The number of updates made at the rates of the warm-up, so far or in total."""
        return self._state.warmup_steps if self.ended_by else self._state.updates

    @property
    def profile(self) -> Profile | None:
        """The profile η(Δ) of the first group; None before the first finite loss, if no f* can be derived, or for a
        function of your own.
        """
        gap0, peak_gap, given = self._state.gap0, self._state.peak_gap, self._plan.profile
        if given is not None:
            return replace(given, lr=self._peak) if isinstance(given, Profile) else None
        if gap0 is None or peak_gap is None:
            return None
        return Profile(self._peak, self._plan.div, gap0, peak_gap, self._plan.rho)

    @property
    def target_loss(self) -> float | None:
        """f*, as given or derived from f(x0), then None before the first finite loss."""
        return self._state.target_loss

    @property
    def trained(self) -> bool | None:
        """Whether the weights count as trained before the run; None before the first update."""
        return None if self._state.trained is None else self._state.short

    @property
    def recoveries(self) -> list[Recovery]:
        """What happened at each alarm of ``recover``, in order; see docs/recovery.md."""
        return [] if self._guard is None else list(self._guard.recoveries)

    @property
    def _peak(self) -> float:
        return self._groups.peak * self._limit.factor

    def metrics(self) -> dict[str, float | int | str]:
        """The schedule's state for a logger: a flat dictionary of plain numbers and text.

        Returns:
            ``phase``, ``loss`` (smoothed, and not updated after warm-up), ``gap`` (loss − f*), ``target_loss`` (f*),
            ``peak_gap`` (Δ'), ``share`` (η/lr), ``lr`` (the first group's rate; ``lr_1`` and so on for later groups of
            other peaks), ``warmup_steps`` (so far), ``warmup_end`` (the update at which warm-up ended, or ends at the
            latest), ``ended_by``, ``trained`` (1 if the weights were trained before, else 0), ``peak_limit`` (the
            factor by which ``peak_limit`` lowers the peaks) and ``recoveries`` (how many, with ``recover``).
            Values that are not known yet are left out.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> AdaptiveWarmup(Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01), total_steps=100).metrics()
            {'phase': 'warmup', 'share': 0.1, 'lr': 0.001, 'warmup_steps': 0, 'warmup_end': 50}
        """
        state = self._state
        values: dict[str, float | int | str | None] = {
            "phase": self.phase,
            "loss": state.average,
            "gap": None if state.average is None or state.target_loss is None else state.average - state.target_loss,
            "target_loss": state.target_loss,
            "peak_gap": state.peak_gap,
            "share": state.share,
            "lr": self._rate(0),
            "warmup_steps": self.warmup_steps,
            "warmup_end": self._latest(),
            "ended_by": state.ended_by,
            "trained": None if state.trained is None else int(state.short),
            "peak_limit": self._limit.factor if self._limit.moves else None,
            "recoveries": None if self._guard is None else len(self._guard.recoveries),
        }
        # One rate for each distinct peak: groups of the same peak have the same rate, but for those without a warm-up.
        peaks = [rate.peak * rate.scale for rate in self._groups.rates]
        values |= {f"lr_{i}": self._rate(i) for i, peak in enumerate(peaks) if peak not in peaks[:i] and i}
        return {name: value for name, value in values.items() if value is not None}

    def __repr__(self) -> str:
        """The content of `metrics` in one line."""
        state = self._state
        total = "an open run" if state.total_steps is None else state.total_steps
        words = [f"{self.phase}, update {state.updates} of {total}", *["trained weights"] * state.short]
        limited = f", which is limited to {self._peak:.2g}" if self._limit.factor < 1.0 else ""
        words.append(f"lr {self._rate(0):.3g} ({state.share:.3g} of the peak{limited})")
        if state.ended_by is not None:
            at = "" if state.average is None else f" at a loss of {state.average:.4g}"
            words.append(f"warm-up took {state.warmup_steps} updates, ended by {state.ended_by}{at}")
        elif state.average is None:
            words.append("no loss yet")
        elif state.peak_gap is None or state.target_loss is None:
            words.append(f"loss {state.average:.4g}, from which no f* can be derived")
        else:
            fstar, ends = state.target_loss, state.target_loss + state.peak_gap
            words.append(f"loss {state.average:.4g}, f* = {fstar:.4g}; warm-up ends at {ends:.4g}")
        if state.ended_by is None and (latest := self._latest()) is not None and latest > state.updates:
            words.append(f"by update {latest} at the latest")
        return f"AdaptiveWarmup({'; '.join(words)})"

    def _latest(self) -> int | None:
        """The update at which warm-up ended, or ends at the latest; None if nothing bounds it."""
        if self._state.ended_by is not None:
            return self._state.warmup_steps
        return None if self._state.ramp is None else max(self._state.updates, math.ceil(self._state.ramp.end))

    def _rate(self, i: int) -> float:
        rate = self.optimizer.param_groups[i]["lr"]  # a tensor may be on a device
        return self._groups.rates[i].written if isinstance(rate, Tensor) else float(rate)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the warm-up's rate η(Δ) against the loss f* + Δ, from f(x0) on the left; mark Δ' and the current rate.

        Beyond Δ', where a decay in time takes over, η(Δ) is drawn as dots.

        Args:
            ax: matplotlib axes to draw on; None makes new ones.

        Raises:
            ImportError: matplotlib is not installed.
            RuntimeError: there is no `profile`.
        """
        if (profile := self.profile) is None:
            raise RuntimeError(
                "there is no η(Δ) to plot: either no loss has come yet, or the first ones differ too much or are not "
                "positive, so that time alone sets the rate; then pass target_loss or chance_loss"
            )
        ax, fstar = axes_or_new(ax, 5.5, 3.2), self._state.target_loss or 0.0
        rate = self._state.share * self._peak
        switch = fstar + profile.peak_gap
        for low, high, style, name in (
            (profile.peak_gap, profile.gap0, "-", "η(Δ), the warm-up"),
            (0.0, min(profile.peak_gap, profile.gap0), ":", "η(Δ), not followed"),
        ):
            gaps = np.geomspace(max(low, 1e-3 * high), high, 250)  # close together at Δ', where the rate peaks
            ax.plot(fstar + gaps, profile(gaps), style, color="C0", label=name)
        ax.axvline(switch, linestyle="--", color="0.5", label=f"decay in time from loss {switch:.3g} on")
        ax.axhline(rate, linestyle="-.", color="0.3", label=f"rate now, {rate:.3g}")
        ax.set(xlabel="loss", ylabel="learning rate", xlim=(fstar + profile.gap0, fstar), ylim=(0.0, None))
        ax.legend(frameon=False, loc="upper left")
        return ax
