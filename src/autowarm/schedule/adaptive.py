"""The schedule as users meet it: a learning-rate warm-up that ends by itself, then a standard decay."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..geometry import Geometry
from ..modes import in_normal_mode
from ..optim.known import geometry_of
from .arguments import Arguments, check_horizon, clean, without_warmup_steps
from .calibrate import SIGMA_F2
from .profile import Profile
from .recovery import Recovery
from .report import metrics, one_line, plot_plan, plot_profile
from .scheduler import PhaseScheduler
from .shapes import DECAYS, Decay, Shape, Warmup, decay_shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..smoothness import Point, Probe


class AdaptiveWarmup(PhaseScheduler):
    """Warm up until the loss or a time limit ends the warm-up, then decay. There is no ``warmup_steps``.

    During warm-up the rate is the larger of two: the paper's η(Δ) at the averaged loss (see `Profile`), and a ramp in
    time that reaches the peak at ``max_warmup``. Warm-up ends when the gap Δ = loss − f* falls below Δ' or the ramp
    reaches the peak; the decay then takes the rest of the run. All rates are in (0, lr], and the first update uses
    lr/div. If f* is not given, it is 0.3·f(x0), where f(x0) is the second lowest of the first ten losses; if it cannot
    be derived, as for a loss that begins at 0 or below, the ramp alone sets the rate.

    Call ``step(loss)`` after ``optimizer.step()``, or before, in the order of the paper's Algorithm 1; but after
    ``loss.backward()`` with ``peak="auto"`` or ``recover=True``, which restore weights. Time is counted in updates that
    the optimizer really made; what a `torch.amp.GradScaler` skipped is no update. Groups may be added during the run,
    at their peak rate; one with ``warmup=False`` stays at its peak until the common decay, one whose lr is 0 stays at
    0. A rate that is set before the first update is the peak.

    Args:
        optimizer: any PyTorch optimizer. The rates of its groups are the peak rates; the schedule keeps their ratios.
        total_steps: T, the number of updates in the whole run. None leaves the end open, which needs a flat decay
            ("wso"): the run continues until `decay_now`, and shares of the run refer to 4000 updates.
        peak: "given" takes the peak rates from the groups. "auto" searches for the peak rate in the first updates (see
            `PeakSearch` and docs/which-rate.md), and the groups' rates then only set their ratios.
        target_loss: f*, roughly the loss at the end of the run; None takes 0.3·f(x0).
        geometry: the norm of the optimizer's steps, see `autowarm.geometry`, for which Δ' is then calibrated as in the
            paper; None takes Δ' = Δ0/2 for every optimizer.
        kappa: κ for the calibration; None computes it as the paper does, from all matrices under ``geometry`` at
            radius 1.
        div: ratio of the peak rate to the first rate, > 1.
        sigma_f2: σ_F², for the calibration, see `autowarm.schedule.calibrate`.
        peak_gap: Δ', the gap at which warm-up ends; None takes it from Δ0, see ``geometry``.
        warmup: "linear" or "cosine", the shape of the ramp and of the calibration's target.
        decay: "cosine", "linear", "1-sqrt" (1 − √p), "power" ((1 − p)²), "wsd" (flat, then linear to 0 over the last
            fifth), "wso" (flat), or a function that maps the share p of the decay that has passed (0 to 1) to a share
            of the peak rate (1 at p = 0). It takes p as a float, and for a tensor lr as a 0-dim tensor too.
        final_ratio: the decay goes from lr to final_ratio·lr.
        max_warmup: the longest warm-up: a share of T in (0, 1], or a whole number of updates from 2, where more than T
            counts as T; None for no limit. "auto" is half of T up to 4,000 updates, 2,000 updates up to a T of 10,000,
            and a fifth of T from there on.
        trained: whether the weights were trained before, as in fine-tuning; warm-up then takes at most a tenth of the
            run. None looks at the weights at the first update, see `autowarm.pretrained`.
        chance_loss: the loss of an untrained model, such as ln(vocabulary) for a language model; f(x0) is never taken
            to be higher. If f(x0) is below three quarters of it, the weights count as trained.
        smoothing: share of T over which the loss is averaged; 0 uses each raw loss, and takes the first one as f(x0).
        max_nonfinite: how many non-finite losses in a row raise an error; 1 raises at the first, None never.
        recover: what to do when the loss rises far above its lowest level, or stops being finite: True restores the
            weights and the optimizer from a copy of the healthy run and goes on with the next batches, "warn" only
            warns, False does not look. See `recoveries` and docs/recovery.md.
        model: with ``recover=True``, a model whose buffers (and parameters that the optimizer does not hold, such as
            averaged weights) are restored too.
        process_group: the ranks that share the run; None means all ranks, if `torch.distributed` is in use. The losses
            are averaged over the ranks, so the rates are bit-identical on all of them. Every rank must call ``step``
            as often; with uneven inputs, train within ``torch.distributed.algorithms.Join([model, scheduler])``.

    Raises:
        ValueError: an argument is out of range, or a name is unknown; or ``recover=True`` and updates may be replays of
            a captured graph, into which nothing can be restored. At the first loss: it is not above ``target_loss``, or
            exceeds it by ``peak_gap`` or less.
        RuntimeError: ``max_nonfinite`` is reached, ranks disagree, or another rank makes no step until the timeout of
            the process group. In ``loss.backward()``: it came after the first ``step`` that took the loss, and
            weights may have been restored in between.

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

    @without_warmup_steps
    @in_normal_mode
    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int | None,
        *,
        peak: Literal["given", "auto"] = "given",
        target_loss: float | None = None,
        geometry: str | Geometry | None = None,
        kappa: float | None = None,
        div: float = 10.0,
        sigma_f2: float = SIGMA_F2,
        peak_gap: float | None = None,
        warmup: Warmup = "linear",
        decay: Decay | Shape = "cosine",
        final_ratio: float = 0.0,
        max_warmup: float | int | Literal["auto"] | None = "auto",
        trained: bool | None = None,
        chance_loss: float | None = None,
        smoothing: float = 0.05,
        max_nonfinite: int | None = 20,
        recover: bool | Literal["warn"] = False,
        model: nn.Module | None = None,
        process_group: "torch.distributed.ProcessGroup | None" = None,
    ) -> None:
        arguments = Arguments.of(
            optimizer, total_steps=total_steps, peak=peak, target_loss=target_loss, geometry=geometry, kappa=kappa,
            div=div, sigma_f2=sigma_f2, peak_gap=peak_gap, warmup=warmup, decay=decay, final_ratio=final_ratio,
            max_warmup=max_warmup, trained=trained, chance_loss=chance_loss, smoothing=smoothing,
            max_nonfinite=max_nonfinite, recover=recover,
        )  # fmt: skip
        self._probe: Probe | None = None
        super().__init__(arguments, model, process_group)

    @classmethod
    def paper(cls, optimizer: Optimizer, total_steps: int, *, target_loss: float, **options: Any) -> Self:
        """The paper's Algorithm 1 to the letter: raw loss, f* given, no ramp. It can stall in warm-up on short runs.

        Args:
            optimizer, total_steps, target_loss: see the class.
            options: any other argument of the class except ``max_warmup``, ``chance_loss`` and ``smoothing``; ``div``
                defaults to 100.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=1e-3)
            >>> sched = AdaptiveWarmup.paper(opt, 1000, target_loss=0.1)
        """
        if target_loss is None:
            raise ValueError("Algorithm 1 needs target_loss, its f*: roughly the loss at the end of the run")
        if given := sorted(options.keys() & {"max_warmup", "chance_loss", "smoothing"}):
            raise TypeError(f"Algorithm 1 has no {given[0]}: use AdaptiveWarmup itself")
        options = {"div": 100.0, **options}
        if all(options.get(name) is None for name in ("geometry", "kappa", "peak_gap")):
            options["geometry"] = geometry_of(optimizer)
        return cls(optimizer, total_steps, target_loss=target_loss, max_warmup=None, smoothing=0.0, **options)

    # What users read. With tensor rates, reading waits for the device unless the docstring says otherwise.

    @property
    def total_steps(self) -> int | None:
        """T as given, or as set by `extend` or `decay_now`; None if the end is open. Never waits for the device."""
        return self._phase.timeline.total_steps

    @property
    def phase(self) -> str:
        """The current phase: "search" (for the peak rate), "warmup" or "decay"."""
        return self._phase.name

    @property
    def ended_by(self) -> str | None:
        """What ended the warm-up: "loss" (it fell below f* + Δ'), "clock", "decay_now" or "alarm"; None until then."""
        return self._phase.on_host().ended_by

    @property
    def warmup_steps(self) -> int:
        """The number of updates made at the rates of the latest warm-up, so far or in total."""
        rule = self._phase.on_host()
        return rule.warmup_steps if rule.ended_by else self.last_epoch - rule.timeline.origin

    @property
    def profile(self) -> Profile | None:
        """The profile η(Δ); None before the first finite loss. Never waits for the device."""
        return self._phase.profile

    @property
    def target_loss(self) -> float | None:
        """f*, as given or derived from f(x0), then None before the first finite loss. Never waits for the device."""
        return self._phase.target_loss

    @property
    def trained(self) -> bool | None:
        """Whether the weights count as trained before the run; None before the first update. Never waits."""
        settled = self._phase.weights_trained
        return None if settled is None else self._phase.timeline.trained

    @property
    def recoveries(self) -> list[Recovery]:
        """What happened at each alarm of ``recover``, in order. Never waits for the device.

        See docs/recovery.md for when an alarm is raised, what is restored from which copy, and at which rates the run
        goes on. With tensor rates on an accelerator, losses are read four updates late, so that nothing waits.
        """
        return [] if self._guard is None else list(self._guard.recoveries)

    def metrics(self) -> dict[str, float | int | str]:
        """The schedule's state for a logger: a flat dictionary of plain numbers and text.

        With tensor rates this waits for the device, as logging a loss does, so call it when you log.

        Returns:
            ``phase``, ``loss`` (smoothed, and not updated after warm-up), ``gap`` (loss − f*), ``target_loss`` (f*),
            ``peak_gap`` (Δ'), ``share`` (η/lr), ``lr`` (the first group's rate), ``warmup_steps`` (so far),
            ``warmup_end`` (the update at which warm-up ended or is expected to end, if log Δ keeps falling at its mean
            pace so far), ``ended_by``, ``trained`` (1 if the weights were trained before, else 0), ``recoveries``
            (how many, with ``recover``). Values that are not known yet are left out.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> AdaptiveWarmup(Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01), total_steps=100).metrics()
            {'phase': 'warmup', 'share': 0.1, 'lr': 0.001, 'warmup_steps': 0, 'warmup_end': 50}
        """
        counted = {} if self._guard is None else {"recoveries": len(self._guard.recoveries)}
        return metrics(self._phase, float(self.optimizer.param_groups[0]["lr"])) | counted

    def __repr__(self) -> str:
        """The content of `metrics` in one line. With tensor rates this also waits for the device."""
        return one_line(self._phase, self.last_epoch, float(self.optimizer.param_groups[0]["lr"]))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot η(Δ) against the loss, and mark Δ' and the current rate.

        Where there is no profile, as before the first loss, plot the rates that time alone will set: ramp and decay.

        Args:
            ax: matplotlib axes to draw on; None makes new ones.

        Raises:
            ImportError: matplotlib is not installed.
        """
        rule = self._phase.on_host()
        if self.profile is None:
            return plot_plan(rule, searching=self.phase == "search", ax=ax)
        return plot_profile(self.profile, rule.fstar, rule.share * self.profile.lr, ax)

    def probe(self, closure: Callable[[], Tensor], model: nn.Module) -> AbstractContextManager[Tensor]:
        """Measure, at this update, the curvature along the step and the rate η⋆ that would have been best.

        Write ``with sched.probe(closure, model) as loss: optimizer.step()`` in place of the forward and backward pass.
        The measurement does not affect the rates or the training, and costs one more forward and backward pass.
        `autowarm.smoothness.Probe` explains it and has an example; `points` holds the results.

        Args:
            closure: runs forward and backward on the current mini-batch and returns the loss.
            model: the model being trained.
        """
        from ..smoothness import Probe

        if self._probe is None or self._probe.model is not model:
            self._probe = Probe(model, self.optimizer, process_group=self.process_group)
        self._probe.step = self.last_epoch
        return self._probe(closure)

    @property
    def points(self) -> "list[Point]":
        """The measurements made with `probe`, in order."""
        return [] if self._probe is None else self._probe.points

    # What users change during the run.

    def extend(self, total_steps: int | None) -> None:
        """Change the length of the run: T is ``total_steps`` from now on. The rate of the next update does not change.

        - **During warm-up**, the ramp continues from its current value to its end in a run of the new T. If T is now so
          short that the ramp would already be at the peak, the decay starts from the current rate.
        - **During the decay**, a longer T lets the rates climb, along a ramp, to those of a decay over the new T that
          began at the same update. So you can extend a finished run. With a shorter T, they decay anew from the current
          rate.

        Loading a state that was saved under another T does the same, with a warning. For a whole new warm-up, see
        `rewarm`. With tensor rates, this waits for the device.

        Args:
            total_steps: the number of updates in the whole run, including those already made; None leaves the end
                open, which needs a flat decay.

        Raises:
            ValueError: more than ``total_steps`` updates have been made, or the end is open and the decay is not flat.
            RuntimeError: the search for the peak rate is still under way.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> sched = AdaptiveWarmup(Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01), total_steps=100)
            >>> sched.extend(200)
            >>> sched.total_steps, sched.metrics()["warmup_end"]
            (200, 100)
        """
        total_steps = clean(total_steps=total_steps)["total_steps"]
        check_horizon(total_steps, self._plan.decay, self.last_epoch)
        self._change(lambda rule: rule.extend(total_steps))

    def decay_now(self, steps: int, decay: Decay = "cosine") -> None:
        """Start the decay now, from the current rate, over this many updates. T becomes the update at which it ends.

        Use this to finish a run with an open end (``total_steps=None``) or to stop a run early. During warm-up, it ends
        the warm-up. With tensor rates, this waits for the device.

        Args:
            steps: the number of updates that the run still makes, ≥ 1.
            decay: the name of a decay, see the class.

        Raises:
            ValueError: ``steps`` is out of range or the name is unknown.
            RuntimeError: the search for the peak rate is still under way.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01)
            >>> sched = AdaptiveWarmup(opt, total_steps=None, decay="wso")
            >>> sched.decay_now(10, "1-sqrt")
            >>> sched.phase, sched.total_steps
            ('decay', 10)
        """
        steps = clean(steps=steps)["steps"]
        decay_shape(decay)  # raises if the name is unknown
        if not isinstance(decay, str):
            raise ValueError(f"decay_now takes a decay by name, one of {sorted(DECAYS)}, so that a state can name it")
        self._change(lambda rule: rule.decay_now(steps, decay))

    def rewarm(
        self, total_steps: int | None = None, *, target_loss: float | None = None, peak: float | None = None
    ) -> None:
        """Start a new warm-up at lr/div from the current weights, for new data or after recovering from a loss spike.

        This discards the calibration and the smoothed loss, and takes f(x0) from the next finite losses. The new
        warm-up and the class's decay share the remaining updates. With tensor rates, this waits for the device.

        Args:
            total_steps: T, including the updates already made; None keeps T (after `decay_now`, the T before it).
            target_loss: f*; None takes the one given to the class, if any.
            peak: the first group's peak rate from now on, > 0; the others keep their ratios to it. None changes none.

        Raises:
            ValueError: no updates are left, or ``peak`` is out of range. Later, at the first loss: as for the class.
            RuntimeError: the search for the peak rate is still under way.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> sched = AdaptiveWarmup(Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01), total_steps=100)
            >>> sched.decay_now(10)
            >>> sched.rewarm(total_steps=200)
            >>> sched.phase, sched.get_last_lr(), sched.metrics()["warmup_end"]
            ('warmup', [0.001], 100)
        """
        given = clean(total_steps=total_steps, target_loss=target_loss, peak=peak)
        total = self._phase.timeline.planned_steps if total_steps is None else given["total_steps"]
        if total is not None and total <= self.last_epoch:
            raise ValueError(
                f"no updates are left to warm up in: {self.last_epoch} were made and total_steps is {total}. Pass "
                "rewarm(total_steps=...) a larger total, which includes the updates already made"
            )
        target = self._plan.target_loss if target_loss is None else given["target_loss"]
        self._change(lambda rule: rule.begun_again(total, target, given["peak"]))
        if self._guard is not None:
            self._guard.restart(self._planned_length())  # other data have losses of their own
            self._write()
        self._alarms.said.discard("stalled")
