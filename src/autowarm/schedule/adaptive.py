"""The scheduler: a learning-rate warm-up that ends by itself, then a customary decay."""

import warnings
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..geometry import Geometry, resolve
from ..optim.known import geometry_of, kappa_of, unwrapped
from .arguments import UNSET, clean, renamed
from .hooks.alarms import Alarms
from .hooks.rates import checked_peaks
from .hooks.scheduler import RuleScheduler
from .profile import Profile
from .report import metrics, one_line, plot_profile
from .rule import Formula, HostRule, Observation, Ranks, rule_for
from .search import LEAST_STEPS, PeakSearch
from .shapes import DECAYS, Decay, Shape, Warmup, decay_shape, is_flat, name_of, warmup_shape
from .state import STATE_VERSION, differences, read_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

    from ..smoothness import Point, Probe

__all__ = ["AdaptiveWarmup"]


class AdaptiveWarmup(RuleScheduler):
    """Warm up until the loss or a clock ends it, then decay over the rest of the run. There is no ``warmup_steps``.

    During warm-up the rate is the larger of two: the paper's η(Δ) at the smoothed loss (see `Profile`), and a ramp in
    time that reaches the peak after ``max_warmup`` of the run. When the gap Δ = loss − f* has fallen below Δ', or the
    ramp is at the peak, the decay takes over. The rate is in (0, lr] throughout and the first update uses lr/div.

    Where f* is not given, it is a forecast: what the loss would be at the end of the run if it went on falling at its
    present pace in log t, but at least f(x0) − 0.7·|f(x0)|. f(x0) is the median of the first five losses, and the loss
    has no effect until it has fallen by more than its own noise explains. In noise, therefore, the ramp alone counts.

    Call ``step(loss)`` after ``optimizer.step()``. Called before it, in the order of the paper's Algorithm 1, it works
    the same and acts one update earlier. Time is counted in updates the optimizer really made: one that a
    `torch.amp.GradScaler` skipped counts neither as a step nor as an observation, and several between two calls count
    each.

    A parameter group may set ``warmup=False``: it stays at its peak rate during warm-up, then takes the common decay.
    Groups may be added on the way; the lr they are added with is their peak rate. A group whose lr is 0 stays at 0.

    Args:
        optimizer: any PyTorch optimizer. The groups' rates are the peak rates; their ratios are kept.
        total_steps: T, how many updates the whole run makes. None leaves it open, for a flat decay ("wso"): the run
            goes on until `decay_now`, and shares of the run are of 4000 updates.
        peak: "auto" searches for the peak rate in the first updates, see `PeakSearch`; the groups' rates then give only
            their ratios. See docs/which-rate.md for how well it does.
        target_loss: f*, about the loss the run will end at; None forecasts it.
        geometry: the optimizer's norm, see `autowarm.geometry`; None asks `autowarm.optim.geometry_of`.
        kappa: κ; None takes the paper's, all matrices under ``geometry`` at radius 1.
        div: how many times lower the rate starts, > 1. The paper's 100 wastes the first steps of a short run, and its
            η(Δ) stays near lr/100 for most of the way.
        sigma_f2: σ_F², see `autowarm.schedule.calibrate`.
        peak_gap: Δ', the gap at which warm-up ends; None calibrates it at the first loss.
        warmup: "linear" or "cosine", the shape of the ramp and of the calibration's target.
        decay: "cosine", "linear", "1-sqrt" (1 − √p), "power" ((1 − p)²), "wsd" (flat, then linear to 0 over the last
            fifth), "wso" (flat), or a function from the share p of the decay gone by (0 to 1) to the share of the peak
            rate kept (1 at 0).
        final_ratio: the decay goes from lr to final_ratio·lr.
        max_warmup: the longest warm-up: after this the rate is at its peak whatever the loss does. A share of T, in
            (0, 1], or a whole number of updates, at least 2 and at most T; None for no limit. The default is half the
            run; where T is open that is 2000 updates, 2/(1 − β2) for Adam's β2 of 0.999.
        smoothing: share of T over which the loss is averaged; 0 takes each loss as it is, and the first as f(x0).
        max_nonfinite: steps in a row without a finite loss before an error; 1 for at once, None for never.
        process_group: ranks that share the run; None is all of them, where `torch.distributed` is in use. Their losses
            are averaged, so their rates are the same to the bit.
        floor, patience: the old names of ``max_warmup`` and ``max_nonfinite``, deprecated.

    Raises:
        ValueError: an argument is out of range, a name is unknown, or the optimizer's geometry is not known. At the
            first loss: it is not above ``target_loss``, or not by more than ``peak_gap``.
        RuntimeError: ``max_nonfinite`` is reached, or ranks disagree.

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
        total_steps: int | None,
        *,
        peak: Literal["given", "auto"] = "given",
        target_loss: float | None = None,
        geometry: str | Geometry | None = None,
        kappa: float | None = None,
        div: float = 10.0,
        sigma_f2: float = 1e3,
        peak_gap: float | None = None,
        warmup: Warmup = "linear",
        decay: Decay | Shape = "cosine",
        final_ratio: float = 0.0,
        max_warmup: float | int | None = 0.5,
        smoothing: float = 0.01,
        max_nonfinite: int | None = 20,
        process_group: "torch.distributed.ProcessGroup | None" = None,
        floor: Any = UNSET,
        patience: Any = UNSET,
    ) -> None:
        given = clean(
            total_steps=total_steps,
            target_loss=target_loss,
            kappa=kappa,
            div=div,
            sigma_f2=sigma_f2,
            peak_gap=peak_gap,
            final_ratio=final_ratio,
            max_warmup=renamed(floor=floor, max_warmup=max_warmup),
            smoothing=smoothing,
            max_nonfinite=renamed(patience=patience, max_nonfinite=max_nonfinite),
        )
        max_nonfinite = given.pop("max_nonfinite")
        self._check_peak(peak, given["total_steps"])
        self.process_group = process_group
        optimizer = unwrapped(optimizer)
        shapes = warmup_shape(warmup), decay_shape(decay)
        self._check_open(given["total_steps"], shapes[1])
        geometry = None if geometry is None else resolve(geometry)
        if kappa is None and peak_gap is None:
            # Only the calibration needs κ.
            geometry = geometry or geometry_of(optimizer)
            given["kappa"] = kappa_of(optimizer, geometry)
        formula: dict[str, Any] = {
            "lr": next(lr for lr in checked_peaks(optimizer) if lr > 0),
            "warmup": shapes[0],
            "planned_decay": shapes[1],
            "planned_steps": given["total_steps"],
            "given_target_loss": given["target_loss"],
            "given_peak_gap": given["peak_gap"],
            **{name: given[name] for name in ("kappa", "div", "sigma_f2", "final_ratio", "max_warmup", "smoothing")},
        }
        # What a resumed run must share with the saved one.
        self._settings: dict[str, Any] = {
            "optimizer": type(optimizer).__name__,
            "peak": peak,
            "geometry": None if geometry is None else repr(geometry),
            "warmup": warmup,
            "decay": name_of(decay),
            **given,
        }
        self._kappa_counted = kappa is None
        self._probe: Probe | None = None
        ranks, alarms = Ranks(process_group, self._settings), Alarms(max_nonfinite)
        super().__init__(optimizer, formula, ranks, alarms, searches=peak == "auto")

    @classmethod
    def paper(cls, optimizer: Optimizer, total_steps: int, *, target_loss: float, **options: Any) -> Self:
        """The paper's Algorithm 1 to the letter: raw loss, f* given, no ramp. It can stall in warm-up on short runs.

        Args:
            optimizer, total_steps, target_loss: see the class.
            options: any other argument of the class but ``max_warmup`` and ``smoothing``; ``div`` is 100 if not given.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=1e-3)
            >>> sched = AdaptiveWarmup.paper(opt, 1000, target_loss=0.1)
        """
        if target_loss is None:
            raise ValueError("Algorithm 1 needs target_loss, its f*: about the loss that the run will end at")
        if given := sorted(options.keys() & {"max_warmup", "floor", "smoothing"}):
            raise TypeError(f"Algorithm 1 has no {given[0]}: use AdaptiveWarmup itself")
        options = {"div": 100.0, **options}
        return cls(optimizer, total_steps, target_loss=target_loss, max_warmup=None, smoothing=0.0, **options)

    @staticmethod
    def _check_peak(peak: str, total_steps: int | None) -> None:
        if peak not in ("given", "auto"):
            raise ValueError(f'peak is "given" (by the groups\' lr) or "auto", got {peak!r}')
        if peak == "auto" and total_steps is not None and total_steps < LEAST_STEPS:
            raise ValueError(
                f'peak="auto" needs a run of at least {LEAST_STEPS} updates to search in, got total_steps={total_steps}'
            )

    @staticmethod
    def _check_open(total_steps: int | None, decay: Shape) -> None:
        if total_steps is None and not is_flat(decay):
            raise ValueError(
                "total_steps=None leaves the run's end open, which only a flat decay can do: give total_steps, or "
                'decay="wso" and call decay_now(steps) when the run is to end'
            )

    # What users read. Where the rates are tensors, all of it waits for the device.

    @property
    def total_steps(self) -> int | None:
        """T, as given, extended or set by `decay_now`; None where it is open. This alone never waits."""
        return self._formula.total_steps

    @property
    def phase(self) -> str:
        """ "search" (for the peak rate), "warmup" or "decay"."""
        if isinstance(self._rule, PeakSearch):
            return "search"
        return "warmup" if self._rule.on_host().ended_by is None else "decay"

    @property
    def ended_by(self) -> str | None:
        """What ended the warm-up: "gap" (the gap fell below Δ'), "max_warmup" or "decay_now"; None while it lasts."""
        return self._rule.on_host().ended_by

    @property
    def warmup_steps(self) -> int:
        """How many updates were made, so far or in all, at the (latest) warm-up's rates."""
        rule = self._rule.on_host()
        return rule.warmup_steps if rule.ended_by else self.last_epoch - rule.formula.origin

    @property
    def profile(self) -> Profile | None:
        """η(Δ) for `target_loss`; None before the first finite loss. Does not wait.

        Where f* is a forecast, Δ0 and Δ' are stretched to the gap it leaves.
        """
        return self._formula.profile

    @property
    def target_loss(self) -> float | None:
        """f*, given or, if not, the lowest it is taken for (None before the first finite loss). Does not wait.

        The forecast as of now is in `metrics`.
        """
        return self._formula.target_loss

    def metrics(self) -> dict[str, float | int | str]:
        """The schedule's state for a logger: a flat dictionary of plain numbers and text.

        Where the rates are tensors this waits for the device, as logging a loss does: call it when you log, not at
        every update.

        Returns:
            ``phase`` ("warmup" or "decay"), ``loss`` (smoothed, up to the warm-up's end), ``gap`` (loss − f*),
            ``target_loss`` (f*, the present forecast if not given), ``peak_gap`` (Δ'), ``share`` (η/lr), ``lr`` (the
            first group's rate), ``warmup_steps`` (so far), ``warmup_end`` (the update at which the warm-up ended or,
            while it lasts, a forecast: log Δ falls at its mean pace so far; ``max_warmup`` is the latest),
            ``ended_by``. What is not known yet is left out.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> sched = AdaptiveWarmup(Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01), total_steps=100)
            >>> sched.metrics()
            {'phase': 'warmup', 'share': 0.1, 'lr': 0.001, 'warmup_steps': 0, 'warmup_end': 50}
            >>> sched.step(5.0)
            >>> sorted(sched.metrics().keys() - {'phase', 'share', 'lr', 'warmup_steps', 'warmup_end'})
            ['gap', 'loss', 'peak_gap', 'target_loss']
        """
        seen = metrics(self._rule.on_host(), float(self.optimizer.param_groups[0]["lr"]))
        if isinstance(self._rule, PeakSearch):
            del seen["warmup_end"], seen["warmup_steps"]
            seen |= {"phase": "search", "share": self._rule.share}
        return seen

    def __repr__(self) -> str:
        """`metrics` in a line; it waits for a device, too."""
        if isinstance(self._rule, PeakSearch):
            of = "an open run" if self.total_steps is None else self.total_steps
            return f"AdaptiveWarmup(search, update {self.last_epoch} of {of}; lr {self.get_last_lr()[0]:.3g})"
        return one_line(self._rule.on_host(), float(self.optimizer.param_groups[0]["lr"]))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw η(Δ) over the loss, with Δ' and the present rate.

        Args:
            ax: matplotlib axes to draw on; None makes new ones.

        Raises:
            RuntimeError: no loss has been seen yet, so there is no profile.
            ImportError: matplotlib is not installed.
        """
        if self.profile is None:
            raise RuntimeError("there is no profile to draw before the first finite loss")
        rule = self._rule.on_host()
        return plot_profile(self.profile, rule.formula.fstar, rate=rule.share * self.profile.lr, ax=ax)

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

    # Losses in, rates out.

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

    # What users change on the way.

    def extend(self, total_steps: int | None) -> None:
        """Go on to another horizon: T is ``total_steps`` from now on. The coming update's rate stays what it is.

        - **In warm-up** the ramp goes on from where it is, and is at the peak after ``max_warmup`` of the new T. It
          never falls. If T is so much shorter that the warm-up would be over by now, it ends, and the decay starts from
          the present rate.
        - **In decay**, to a longer T, the rates climb to those of a decay over the new T that began at the same
          update: along a ramp that would reach the peak after ``max_warmup`` of the updates left (at once if there is
          no ramp). So a finished run can be extended. To a shorter T, they decay anew from the present rate over the
          updates left.

        Loading a state that was saved under another T does the same, with a warning. See `rewarm` for a whole new
        warm-up. Where the rates are tensors, this waits for the device.

        Args:
            total_steps: how many updates the whole run makes, those already made included; None for no end, where the
                decay is flat.

        Raises:
            ValueError: more updates than that were made, or the end is left open and the decay is not flat.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01)
            >>> sched = AdaptiveWarmup(opt, total_steps=100)
            >>> def train(updates):
            ...     for _ in range(updates):
            ...         opt.step()
            ...         sched.step(5.0)
            ...         yield round(sched.get_last_lr()[0], 4)
            >>> list(train(100))[-1]
            0.0
            >>> sched.extend(200)
            >>> rates = list(train(100))
            >>> rates[:2], max(rates), rates[-1]
            ([0.0002, 0.0004], 0.005, 0.0)
        """
        total_steps = clean(total_steps=total_steps)["total_steps"]
        self._check_horizon(total_steps, self.last_epoch)
        self._change(lambda rule: rule.extend(total_steps))

    def decay_now(self, steps: int, decay: Decay = "cosine") -> None:
        """Begin the decay now, from the present rate, over this many updates. T is then where it ends.

        For a run whose end was open (``total_steps=None``), and for one that is to stop early. In warm-up it ends the
        warm-up. Where the rates are tensors, this waits for the device.

        Args:
            steps: how many updates the run still makes, ≥ 1.
            decay: by name, see the class.

        Raises:
            ValueError: ``steps`` is out of range or the name is unknown.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01)
            >>> sched = AdaptiveWarmup(opt, total_steps=None, decay="wso", max_warmup=10)
            >>> for _ in range(50):
            ...     opt.step()
            ...     sched.step(5.0)
            >>> sched.get_last_lr()
            [0.01]
            >>> sched.decay_now(10, "1-sqrt")
            >>> for _ in range(10):
            ...     opt.step()
            ...     sched.step(5.0)
            >>> sched.total_steps, round(sched.get_last_lr()[0], 5)
            (60, 0.00051)
        """
        steps, shape = clean(steps=steps)["steps"], decay_shape(decay)
        if not isinstance(decay, str):
            raise ValueError(f"decay_now takes a decay by name, one of {sorted(DECAYS)}, so that a state can keep it")
        self._change(lambda rule: rule.decay_now(steps, shape))

    def rewarm(self, total_steps: int | None = None, *, target_loss: float | None = None) -> None:
        """Begin a new warm-up from the present weights, at lr/div: for new data, or after a restored spike.

        The calibration and the smoothed loss are forgotten; the next finite loss is the new f(x0). Warm-up and decay
        share the updates that are left, and the decay is again that of the class. Where the rates are tensors, this
        waits for the device.

        Args:
            total_steps: T, those already made included; None keeps it (after `decay_now`, what it was before).
            target_loss: f*; None takes the class's, or works it out if that was not given.

        Raises:
            ValueError: no updates are left.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=0.01)
            >>> sched = AdaptiveWarmup(opt, total_steps=100)
            >>> for _ in range(100):
            ...     opt.step()
            ...     sched.step(5.0)
            >>> sched.rewarm(total_steps=200)
            >>> sched.phase, sched.get_last_lr(), sched.metrics()["warmup_end"]
            ('warmup', [0.001], 150)
        """
        given = clean(total_steps=total_steps, target_loss=target_loss)
        total = self._formula.planned_steps if total_steps is None else given["total_steps"]
        if total is not None and total <= self.last_epoch:
            raise ValueError(
                f"no updates are left to warm up in: {self.last_epoch} were made and total_steps is {total}. Give "
                "rewarm(total_steps=...), those already made included"
            )
        target = self._formula_arguments["given_target_loss"] if target_loss is None else given["target_loss"]
        self._change(lambda rule: rule.rewarm(total, target))
        self._alarms.said.discard("stalled")

    def _check_horizon(self, total_steps: int | None, updates: int) -> None:
        self._check_open(total_steps, self._formula_arguments["planned_decay"])
        if total_steps is not None and total_steps < updates:
            raise ValueError(f"total_steps={total_steps} is over: {updates} updates were made already")

    def _change(self, change: "Callable[[HostRule], None]") -> None:
        self._follow_optimizer()
        self._rates.notice()
        if isinstance(self._rule, PeakSearch):
            raise RuntimeError("the search for the peak rate is still under way: change the schedule after it")
        rule = self._rule.on_host()
        change(rule)
        # Ranks must all have changed the same.
        self._agree(rule)
        self._rule = rule
        self._alarms.said.discard("overrun")
        self._write()
        self._rule = rule_for(self.optimizer.param_groups[0]["lr"], rule)

    def _agree(self, rule: HostRule) -> None:
        formula = rule.formula
        plan = {"origin": formula.origin, "total_steps": formula.total_steps, "decay": name_of(formula.decay)}
        changed = plan != {"origin": 0, **{name: self._settings[name] for name in ("total_steps", "decay")}}
        self._ranks.agree_on(self._settings | ({"now": plan} if changed else {}))

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on to the bit, as plain numbers and text."""
        self._follow_optimizer()
        return {
            "version": STATE_VERSION,
            "settings": dict(self._settings),
            "last_epoch": self.last_epoch,
            "step_count": self._step_count,
            "base_lrs": [float(lr) for lr in self.base_lrs],
            **self._rates.state_dict(),
            "pending": [[float(seen.loss), seen.weight] for seen in self._pending],
            "said": sorted(self._alarms.said),
            "clock": self._clock.state_dict(),
            "rule": self._rule.on_host().state_dict(),
            "search": self._rule.state_dict() if isinstance(self._rule, PeakSearch) else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; its rates are written into the optimizer's groups.

        A state saved under another ``total_steps`` goes on as after `extend`, with a warning. Nothing is changed if an
        error is raised.

        Raises:
            ValueError: it is no state of this class, or a damaged one, or was saved under other settings; the message
                says whose it is or lists the differences.
        """
        state = read_state(state_dict)
        saved, formula_state = state["settings"], state["rule"]
        differ = differences(saved, self._settings, ignore={"total_steps"})
        if self._kappa_counted and saved.get("kappa") is not None and formula_state["gap0"] is not None:
            differ.pop("kappa", None)  # calibrated before groups were added or frozen; it keeps its κ
        groups = len(self.optimizer.param_groups)
        if len(state["base_lrs"]) > groups:
            differ["parameter groups"] = f"saved {len(state['base_lrs'])}, here {groups}"
        if differ:
            what = "; ".join(f"{name}: {how}" for name, how in differ.items())
            raise ValueError(f"the saved schedule is another one: {what}")
        peaks, total = state["base_lrs"], self._settings["total_steps"]
        extended = total not in (saved["total_steps"], formula_state["planned_steps"])
        if extended:
            self._check_horizon(total, formula_state["updates"])
        settings = self._settings | {"kappa": saved["kappa"]}
        arguments = self._formula_arguments | {"kappa": saved["kappa"]}
        arguments["lr"] = next((lr for lr in peaks if lr > 0), arguments["lr"])
        rule = HostRule(Formula(**arguments))
        rule.load_state_dict(formula_state)
        if extended:
            rule.extend(total)
        placed = rule_for(self.optimizer.param_groups[0]["lr"], rule)

        self._follow_optimizer()
        self._settings, self._formula_arguments = settings, arguments
        self.last_epoch, self._step_count = state["last_epoch"], state["step_count"]
        for i, lr in enumerate(peaks):
            base = self.base_lrs[i]
            self.base_lrs[i] = base.new_tensor(lr).reshape(base.shape) if isinstance(base, Tensor) else lr
        self._alarms.said = set(state["said"]) - ({"overrun", "stalled"} if extended else set())
        self._clock.load_state_dict(state["clock"])
        self._rule = placed
        if state["search"] is not None:
            self._rule = PeakSearch(self.optimizer, rule)
            self._rule.load_state_dict(state["search"])
        self._agree(rule)
        self._pending = [Observation(loss, weight) for loss, weight in state["pending"]]
        self._last_lr = self._rates.load_state_dict(state, self.base_lrs, self._rule)
        if extended:
            warnings.warn(
                f"the schedule was saved for total_steps={formula_state['planned_steps']} and is loaded for "
                f"total_steps={total}: it goes on to {total}, as after extend({total})",
                stacklevel=2,
            )
