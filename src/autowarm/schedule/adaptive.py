"""The schedule as users meet it: a learning-rate warm-up that ends by itself, then a standard decay.

`core` decides; this file connects it to PyTorch. A loss's whole way is `AdaptiveWarmup.step` and `_update_lr`.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .._torch.devices import is_capturing
from .._torch.frames import frames_of_ours
from .._torch.habits import plain_words
from ..geometry import Geometry
from ..losses import Losses, Ranks
from ..optim import LMO, Together
from ..others.wrapped import hook, hook_once_compiled, inside, unwrapped
from ..pretrained import Evidence, examine
from . import core
from .alarms import Alarms
from .clock import UpdateClock, only_makes_state
from .groups import GroupRates
from .peak_limit import PeakLimit
from .planning import Calibration, check_horizon, clean
from .recovery import Guard, Order
from .report import Report
from .shapes import DECAYS, Decay, Shape, Warmup, decay_shape
from .state import checked, opened, resumed, sealed


class AdaptiveWarmup(Report, LRScheduler):  # type: ignore[misc]  # rates are floats here
    """Warm up until the loss or a time limit ends the warm-up, then decay. There is no ``warmup_steps``.

    During warm-up the rate is the larger of two: the paper's η(Δ) at the averaged loss (see `Profile`), and a ramp in
    time that reaches the peak at ``max_warmup``. Warm-up ends when the gap Δ = loss − f* falls below Δ' or the ramp
    reaches the peak; then comes the decay. All rates are in (0, lr], the first is lr/div. If f* is not given, it is
    0.3·f(x0), where f(x0) is the second lowest of the first ten losses; if it cannot be derived, as for a loss that
    begins at 0 or below, the ramp alone sets the rate.

    Call ``step(loss)`` after ``optimizer.step()``, or before, in the order of the paper's Algorithm 1; but after
    ``loss.backward()`` with ``recover=True``, which restores weights. Time is counted in updates that the optimizer
    really made; what a `torch.amp.GradScaler` skipped is no update. On an accelerator a loss is read four updates late,
    so that nothing waits for the device. Groups may be added during the run, at their peak rate; one with
    ``warmup=False`` stays at its peak until the common decay, and timm's ``lr_scale`` multiplies its group's rate. The
    schedule owns the rates: at each step it writes every group's peak times the share, whatever others wrote. Change
    `base_lrs`, one entry a group, to change the peaks during the run.

    Args:
        optimizer: any PyTorch optimizer. The rates of its groups are the peak rates; the schedule keeps their ratios.
        total_steps: T, the number of updates in the whole run. None leaves the end open, which needs a flat decay
            ("wso"): the run continues until `decay_now`, and shares of the run refer to 4000 updates.
        max_warmup: the longest warm-up: a share of T in (0, 1], or a whole number of updates from 2, where more than T
            counts as T; None for no limit. "auto" is half of T up to 8,000 updates, 4,000 updates up to a T of 12,000,
            and a third of T from there on.
        trained: whether the weights were trained before, as in fine-tuning; warm-up then takes at most 3 % of the
            run. None looks at the weights at the first update, see `autowarm.pretrained`.
        decay: "cosine", "linear", "1-sqrt" (1 − √p), "power" ((1 − p)²), "wsd" (flat, then linear to 0 over the last
            fifth), "wso" (flat), or a function from the share p of the decay that has passed to one of the peak rate.
        final_ratio: the decay goes from lr to final_ratio·lr.
        recover: what to do when the loss rises far above its lowest level, or stops being finite: True restores weights
            and optimizer from a copy of the healthy run and goes on; the model in place of True restores its buffers,
            too, and what else it holds; "warn" only warns. See `recoveries` and docs/recovery.md.
        peak_limit: if T steps in random directions would move the weights by more than this many times their norm, all
            peaks are lowered by one factor at the first update, see `autowarm.schedule.peak_limit`. None limits
            nothing. SGD, optimizers that are not known and weights that are all zero have no limit.
        target_loss: f*, roughly the loss at the end of the run; None takes 0.3·f(x0).
        chance_loss: the loss of an untrained model, such as ln(vocabulary), above which f(x0) is not taken. If f(x0) is
            below three quarters of it, the weights count as trained.
        smoothing: share of T over which the loss is averaged; 0 uses each raw loss, and takes the first one as f(x0).
            "auto" is 5 % of T up to 4,000 updates, 200 updates up to a T of 20,000, and 1 % of T from there on.
        div: ratio of the peak rate to the first rate, > 1.
        peak_gap: Δ', the gap at which warm-up ends; None takes Δ0/20 if the optimizer's steps have entries of one
            size (Lion, AdamW), else Δ0/3, or what ``calibration`` chooses.
        warmup: "linear" or "cosine", the shape of the ramp and of the calibration's target, or a function as for
            ``decay`` of the distance from the ramp's end (1 at its start, 0 at the peak).
        profile: η(Δ) of your own: a function from the gap to a rate in any unit, highest at ``peak_gap``, which is lr.
        calibration: the geometry for which Δ' is calibrated as in the paper, or a `Calibration`; None calibrates none.
        max_nonfinite: how many non-finite losses in a row raise an error; 1 raises at the first, None never.
        process_group: the ranks that share the run, its mean loss and rates; None means all, if `torch.distributed` is
            in use. Each must call ``step`` as often: give them equal data (``DistributedSampler(drop_last=True)``).

    Raises:
        ValueError: an argument is out of range, or a name is unknown; or ``recover=True`` and updates may be replays of
            a captured graph. At the first loss: it is not above ``target_loss``, or exceeds it by ``peak_gap`` or less.
        RuntimeError: ``max_nonfinite`` is reached, ranks disagree, or another rank makes no step until the timeout of
            the process group. In ``loss.backward()`` with ``recover=True``: it came after the ``step`` that took it.

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

    load_warning: str | None = None  # what `load_state_dict` warned about: some trainers suppress warnings meanwhile
    _is_accelerate_prepared = True  # lets Accelerate save this object without its wrapper, which drops losses

    @plain_words
    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int | None,
        *,
        max_warmup: float | int | Literal["auto"] | None = "auto",
        trained: bool | None = None,
        decay: Decay | Shape = "cosine",
        final_ratio: float = 0.0,
        recover: bool | Literal["warn"] | nn.Module = False,
        peak_limit: float | None = 2.5,
        target_loss: float | None = None,
        chance_loss: float | None = None,
        smoothing: float | Literal["auto"] = "auto",
        div: float = 10.0,
        peak_gap: float | None = None,
        warmup: Warmup | Shape = "linear",
        profile: Callable[[float], float] | None = None,
        calibration: str | Geometry | Calibration | None = None,
        max_nonfinite: int | None = 20,
        process_group: "torch.distributed.ProcessGroup | None" = None,
    ) -> None:
        inner, self._settings, self._plan, max_nonfinite = checked(
            optimizer, total_steps=total_steps, max_warmup=max_warmup, trained=trained, decay=decay,
            final_ratio=final_ratio, recover=recover, peak_limit=peak_limit, target_loss=target_loss,
            chance_loss=chance_loss, smoothing=smoothing, div=div, peak_gap=peak_gap, warmup=warmup, profile=profile,
            calibration=calibration, max_nonfinite=max_nonfinite,
        )  # fmt: skip
        self.process_group = process_group
        first = next((p for group in inner.param_groups for p in group["params"]), torch.empty(0))
        self._ranks = Ranks(process_group, self._settings, device=first.device)
        self._losses, self._order = Losses(self._ranks), Order(self._settings["recover"] is True)
        self._clock, self._groups = UpdateClock(inner), GroupRates(inner)
        self._state, self._limit = core.begin(self._plan), PeakLimit(self._settings["peak_limit"])
        self._evidence: Evidence | None = None  # of training, from before the first update
        self._guard = Guard(recover, self._state.planned_steps, inner) if self._settings["recover"] else None
        self._alarms, self._waiting = Alarms(max_nonfinite), False  # whether a SequentialLR has yet to start this one
        LRScheduler.__init__(self, inner)
        self._agree()
        self._watch()

    @classmethod
    def paper(cls, optimizer: Optimizer, total_steps: int, *, target_loss: float, **options: Any) -> Self:
        """The paper's Algorithm 1 to the letter: raw loss, f* given, no ramp. It can stall in warm-up on short runs.

        Algorithm 1 knows one T: `extend` in its decay climbs along a ramp that is ours.

        Args:
            optimizer, total_steps, target_loss: see the class.
            options: any other argument of the class except ``max_warmup``, ``chance_loss``, ``smoothing``, ``trained``
                and ``peak_limit``; ``div`` defaults to 100, or to that of ``profile``.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> sched = AdaptiveWarmup.paper(Lion(torch.nn.Linear(4, 4).parameters()), 1000, target_loss=0.1)
        """
        if target_loss is None:
            raise ValueError("Algorithm 1 needs target_loss, its f*: roughly the loss at the end of the run")
        if given := sorted(options.keys() & {"max_warmup", "chance_loss", "smoothing", "trained", "peak_limit"}):
            raise TypeError(f"Algorithm 1 has no {given[0]}: use AdaptiveWarmup itself")
        options = {"div": getattr(options.get("profile"), "div", 100.0), **options}
        if all(options.get(name) is None for name in ("calibration", "peak_gap", "profile")):
            options["calibration"] = Calibration()
        exact: dict[str, Any] = {"max_warmup": None, "smoothing": 0.0, "trained": False, "peak_limit": None}
        return cls(optimizer, total_steps, target_loss=target_loss, **exact, **options)

    @property
    def last_epoch(self) -> int:
        """The number of updates made; −1 while a `SequentialLR` has not started this schedule."""
        return -1 if self._waiting else self._state.updates

    @last_epoch.setter
    def last_epoch(self, updates: int) -> None:
        if updates < 0 and self._state.updates == 0:  # PyTorch's constructors set −1 before the first step
            self._waiting = True
        elif updates != self.last_epoch:
            raise AttributeError(
                f"last_epoch counts the updates made, {self.last_epoch}, and cannot be set to {updates}: resume by "
                "load_state_dict(...). Without a saved state, make a new AdaptiveWarmup over the updates that are left"
            )

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        """Record the loss of one micro-batch; the next `step` uses the weighted mean of the recorded losses.

        Args:
            loss: a number or a one-element tensor, unscaled and not divided by the number of micro-batches.
            weight: the number of tokens or samples behind the loss, ≥ 0.

        Raises:
            ValueError: the loss has more than one element, or the weight is negative or not finite.
            TypeError: the loss is an int, or neither a number nor a tensor.
        """
        self._losses.observe(loss, weight)
        self._order.observed(loss)

    def step(self, loss: Tensor | float | None = None, *, metrics: Tensor | float | None = None) -> None:
        """Set the rates for the next update.

        Args:
            loss: the loss, as for `observe` with weight 1; None if you called `observe`, or if there is no loss: then
                only the ramp sets the rate.
            metrics: another name for ``loss``, by which trainers pass it to a `ReduceLROnPlateau`.

        Raises:
            TypeError: the loss is an int, which suggests that the code passes an epoch.
            ValueError, RuntimeError: see the class.
        """
        loss = metrics if loss is None else loss
        if self.optimizer is not (watched := self._clock.optimizer):  # a trainer has put its wrapper here
            if (other := unwrapped(self.optimizer)) is not watched:
                kinds = f"{type(watched).__name__} was replaced by another {type(other).__name__}"
                raise ValueError(f"the scheduler's {kinds}: make a new scheduler for it")
            self.optimizer = watched
        if self._order.matters:
            self._order.stepping(loss)
        before = state = self._state
        # How many updates were made since the last call, and the mean losses that can be read now without waiting.
        updates_made, readings = self._losses.read(loss, self._clock, before.updates)
        self._step_count += 1
        if updates_made is None and not readings:  # a GradScaler has skipped the update
            self._alarms.idle(self._clock)
            return
        if updates_made is not None and state.trained is None and state.ended_by is None:
            state = self._settled(state)
        updates = before.updates + (updates_made or 0)
        if not readings:  # while losses are late, time goes on alone
            state = core.advance(self._plan, state, updates)
        for update, mean in readings:
            state = core.advance(self._plan, state, updates, mean)
            if self._guard is not None:
                state = self._recovered(state, updates, update, mean)
        self._state = state
        self._write()
        # Alarms look at the first losses, then at what is out of order: no loss, NaN or infinity, no target, the end.
        odd = not readings or readings[-1][1] is None or state.failures or state.target_loss is None
        if self._alarms.early or odd or updates + 1 >= (state.total_steps or math.inf):
            self._alarms.look(before, state, readings, self._clock, recovers=self._guard is not None)

    def _settled(self, state: core.State) -> core.State:
        """At the first update, on which all ranks are: whether the weights were trained, and what peak they bear."""
        if (trained := self._plan.trained) is None:
            evidence = self._evidence or examine(self.optimizer, self.process_group)  # in Algorithm 1's order, only now
            trained = evidence.verdict(self.process_group).trained
        self._limit.settle(self.optimizer, self._groups.rates, state.planned_steps, self.process_group)
        return core.settle(self._plan, state, trained)

    def _recovered(self, state: core.State, updates: int, update: int, loss: float | None) -> core.State:
        """Let the guard see the loss of an update. It may restore the run, whose averaged loss then goes back, too."""
        assert self._guard is not None
        recovery = self._guard.after(updates, update, loss, self.optimizer, self._peak, state.average)
        if recovery is None:
            return state
        if recovery.restored is not None:
            state = state._replace(average=self._guard.average)
        return core.lowered(state) if recovery.peak_after != recovery.peak_before else state

    def _update_lr(self, epoch: int | None = None) -> None:  # SequentialLR starts ours over at a milestone
        if epoch != 0:
            raise ValueError(f"AdaptiveWarmup can restart only at step 0, not at {epoch}: it depends on past losses")
        self._restart()
        self._alarms.begun = True  # what ran before this milestone is no mistake

    # PyTorch's hooks for schedulers, so that SequentialLR, ChainedScheduler and trainers that only call step() work.

    def get_lr(self) -> list[float | Tensor]:
        """The rates for the next update: each group's peak rate times its share."""
        return [rate.written for rate in self._groups.rates]

    def _initial_step(self) -> None:
        self._step_count = 1
        self.base_lrs = [float(lr) for lr in self.base_lrs]
        self._restart()

    def _restart(self) -> None:
        self._waiting, self._losses.pending = False, []
        self._evidence, self._limit = None, PeakLimit(self._limit.most)
        self._state = core.begin(replace(self._plan, total_steps=self._state.planned_steps))
        if self._guard is not None:
            self._guard.restart(self._state.planned_steps)
        self._clock.updates, self._alarms.early = 0, True
        self._groups.adopt(self.base_lrs)
        self._groups.accept()  # SequentialLR has let others set the rates
        self._write()  # lr/div

    def _write(self) -> None:
        factor = self._limit.factor * (1.0 if self._guard is None else self._guard.share(self._state.updates))
        self._last_lr = [*self._groups.write(self.base_lrs, factor, self._plan, self._state)]
        # Stages of a pipeline hold different groups, so ranks compare the rate of a group like the first one.
        self._ranks.rate = self._groups.peak * factor * self._state.share
        if self._groups.outside is not None:
            self._alarms.warn("outside", **self._groups.outside)
        if self._limit.factor < 1.0:
            self._alarms.warn("peak limit", **self._limit.words(self._groups.peak))

    def _watch(self) -> None:
        hook(self.optimizer.register_step_pre_hook, self, AdaptiveWarmup._before_update)
        for one in inside(self.optimizer):  # which may step one by one, in the backward pass
            hook_once_compiled(one.register_step_pre_hook, self, AdaptiveWarmup._look_at_weights)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch()  # a copied optimizer has lost its hooks

    def _before_update(self, *_: Any) -> None:
        if self._groups.adopt(self.base_lrs):  # before new groups make an update at their peak rates
            self._write()
        if self._guard is not None:
            self._guard.keep_added(self.optimizer)
        if torch.compiler.is_compiling():
            return
        self._clock.pretended = only_makes_state(self.optimizer)
        if not (self._clock.pretended or self._waiting):
            known = self._plan.trained is not None or self.last_epoch > 0 or self._groups.follows
            # Ours tell by themselves of tensors without gradients.
            training = self._losses.traced and not isinstance(self.optimizer, LMO | Together)
            self._alarms.before_update(self._clock, self._groups, known=known, training=training)

    def _look_at_weights(self) -> None:
        """Look, until the first update, which LoRA's zeros do not outlast, for signs of training and for the limit."""
        if self._state.trained is not None or self.last_epoch or self._clock.updates or self._clock.pretended:
            return
        params = (p for group in self.optimizer.param_groups for p in group["params"])
        if not any(map(is_capturing, {p.device for p in params})):
            self._evidence = examine(self.optimizer, self.process_group)
            self._limit.look(self.optimizer, self._groups.rates)

    def extend(self, total_steps: int | None) -> None:
        """Change the length of the run. The rate of the next update changes only if ``peak_limit`` moves the peak.

        During warm-up, the ramp continues from its current value to its end in a run of the new T; if it would already
        be at the peak, the decay starts from the current rate. During the decay, or after it, a longer T lets the rates
        climb along a ramp to those of a decay over the new T; with a shorter one they decay anew from the current rate.

        Args:
            total_steps: T, including the updates already made; None leaves the end open, which needs a flat decay.

        Raises:
            ValueError: more than ``total_steps`` updates have been made, or the end is open and the decay is not flat.

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
        if self.ended_by is None and self._limit.resize(total_steps):
            self._alarms.warned.discard("peak limit")
        self._change(core.extend(self._plan, self._state, total_steps))

    def decay_now(self, steps: int, decay: Decay = "cosine") -> None:
        """Start the decay now, from the current rate, to finish a run with an open end or to stop one early.

        Args:
            steps: the number of updates that the run still makes, ≥ 1; T becomes the update at which they end.
            decay: the name of a decay, see the class.

        Raises:
            ValueError: ``steps`` is out of range or the name is unknown.

        Example:
            >>> import torch
            >>> from autowarm import AdaptiveWarmup, Lion
            >>> sched = AdaptiveWarmup(Lion(torch.nn.Linear(4, 4).parameters()), total_steps=None, decay="wso")
            >>> sched.decay_now(10, "1-sqrt")
            >>> sched.phase, sched.total_steps
            ('decay', 10)
        """
        steps = clean(steps=steps)["steps"]
        decay_shape(decay)  # raises if the name is unknown
        if not isinstance(decay, str):
            raise ValueError(f"decay_now takes a decay by name, one of {sorted(DECAYS)}, so that a state can name it")
        self._change(core.decay_now(self._plan, self._state, steps, decay))

    def _change(self, state: core.State) -> None:
        """Go on from a state that a user has asked for; all ranks must make the same change."""
        self._state = state
        if self._guard is not None:
            self._guard.resize(self._state.planned_steps)
        self._agree()
        self._alarms.warned.discard("overrun")  # of the other T
        self._write()

    def _agree(self) -> None:
        """Tell the ranks what they must agree on: settings, what was changed since, and the peak rate."""
        now = {"total_steps": self.total_steps, "decay": self._state.decay, "peak": self._groups.peak}
        self._ranks.agree_on(self._settings | {"now": now})

    def state_dict(self) -> dict[str, Any]:
        """Everything needed for a bit-identical continuation, as plain numbers and text, with a checksum.

        On an accelerator this waits for the last four losses. With ``recover``, a resumed run makes a new copy.
        """
        content = {"settings": dict(self._settings), "last_epoch": self.last_epoch, "step_count": self._step_count}
        content |= {"groups": self._groups.state_dict(self.base_lrs), **self._losses.state_dict()}
        content |= {"warned": sorted(self._alarms.warned), "clock": self._clock.state_dict()}
        content |= {"recovery": None if self._guard is None else self._guard.state_dict()}
        state = {name: list(x) if isinstance(x, tuple) else x for name, x in self._state._asdict().items()}
        content |= {"state": state, "peak_limit": [self._limit.moves, self._limit.length]}
        return sealed("AdaptiveWarmup", content)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, and write its rates into the optimizer's groups.

        If the state was saved under another ``total_steps``, the schedule continues as after `extend`, with a warning.

        Raises:
            ValueError: the state is another class's, damaged, or of other settings, which are listed; nothing changes.
        """
        # First all that may be refused: nothing has changed until then.
        content = opened("AdaptiveWarmup", state_dict)
        self._groups.adopt(self.base_lrs)
        groups = len(content["groups"]), len(self.optimizer.param_groups)
        self._plan, state, warning = resumed(content, self._settings, self._plan, groups)
        self._state = state
        self._waiting, self._step_count, self._alarms.early = content["last_epoch"] < 0, content["step_count"], True
        of_another_length = set() if warning is None else {"overrun", "stalled", "peak limit"}
        self._alarms.warned = {*content["warned"]} - of_another_length
        self._clock.load_state_dict(content["clock"])
        self._losses.load_state_dict(content)
        self._limit.moves, length = content["peak_limit"]
        self._limit.resize(length if warning is None or content["state"]["ended_by"] else state.planned_steps)
        if self._guard is not None:
            self._guard.restart(self._state.planned_steps)
            if content["recovery"] is not None:
                self._guard.load_state_dict(content["recovery"])
        self._agree()
        # The rates, last: of groups that the state does not know by the rule, and of the others as saved.
        self._groups.accept()
        self._write()
        self.base_lrs = self._groups.load_state_dict(content["groups"])
        self._last_lr, self.load_warning = self.get_lr(), warning
        if warning is not None:
            warnings.warn(warning, stacklevel=frames_of_ours())
