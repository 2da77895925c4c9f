"""A PyTorch scheduler whose rates come from a `Phase`: it takes losses, counts updates, and writes rates."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.optim.lr_scheduler import LRScheduler

from ..devices import collective_device
from ..frames import frames_of_ours
from ..losses import Observation, Order, Ranks
from ..modes import in_normal_mode
from ..optim.wrapped import hook, hook_once_compiled, inside, unwrapped
from ..pretrained import FirstLook
from .arguments import Arguments
from .hooks.alarms import FOREIGN, Alarms
from .hooks.clock import UpdateClock
from .hooks.groups import GroupRates, first_peak, old_peaks
from .hooks.others import are_schedulers, chained_with, may_have_written, schedulers_beside, unwanted
from .recovery import Guard
from .rule import OPEN_HORIZON, DeviceRule, HostRule, Phase, placed
from .search import PeakSearch
from .shapes import name_of
from .state import STATE_VERSION, read_state, resumed


class PhaseScheduler(LRScheduler, Joinable):
    """Takes a run through its phases: the search for the peak rate, warm-up, decay.

    It connects them to PyTorch. The clock counts the updates that the optimizer really made, the groups' rates keep
    what others change about them, the guard watches the level of the loss, the alarms warn.
    """

    load_warning: str | None = None
    """What the last `load_state_dict` warned about, for trainers that suppress warnings while they load."""

    def __init__(
        self,
        arguments: Arguments,
        model: nn.Module | None,
        process_group: "torch.distributed.ProcessGroup | None",
    ) -> None:
        Joinable.__init__(self)
        self.process_group = process_group
        optimizer, self._settings, self._plan, self._kappa_counted, max_nonfinite = arguments
        self._ranks = Ranks(process_group, self._settings)
        self._alarms = Alarms(max_nonfinite)
        self._pending: list[Observation] = []
        self._in_use = False  # whether this scheduler has stepped since the last update
        self._changes = 0  # how often a rate was not as written
        self._alone = False  # whether the last look found none that may have written the rates
        self._foreign = 0  # updates in a row at rates that were not as written
        self._clock = UpdateClock(optimizer)
        self._groups = GroupRates(optimizer)
        self._phase: Phase = self._first_phase(self._settings["total_steps"])
        recover = self._settings["recover"]
        self._guard = Guard(recover is True, model, self._planned_length()) if recover else None
        self._order = Order(recover is True or self._settings["peak"] == "auto")
        old = old_peaks(optimizer)
        self._old_peaks = None if old is None or are_schedulers(optimizer) else old
        LRScheduler.__init__(self, optimizer)
        self._watch_groups()

    # Losses in, rates out.

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        """Record the loss of one micro-batch; the next `step` uses the weighted mean of the recorded losses.

        Args:
            loss: a number or a one-element tensor, unscaled and not divided by the number of micro-batches.
            weight: the number of tokens or samples behind the loss, ≥ 0.

        Raises:
            ValueError: the loss has more than one element, or the weight is negative or not finite.
            TypeError: the loss is an int, or neither a number nor a tensor.
        """
        self._pending.append(Observation.of(loss, weight).kept())
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
        if (loss := metrics if loss is None else loss) is not None:
            self._pending.append(Observation.of(loss, 1.0))
            self._order.observed(loss)
        self._order.stepped()
        self._step_count += 1
        self._update_lr()

    @in_normal_mode
    def _update_lr(self, epoch: int | None = None) -> None:
        # Only SequentialLR passes an epoch, to start this scheduler at a milestone.
        if epoch is not None:
            if epoch != 0:
                raise ValueError(
                    f"AdaptiveWarmup can restart only at step 0, not at {epoch}: it depends on past losses"
                )
            self._restart()
            return
        self._in_use = True
        if self.last_epoch > 0 and self._clock.pretended and self._groups.are_put_out():
            self._write()  # a loop may skip a batch so
        if self.optimizer is not self._clock.optimizer or self._groups.changed():
            self._notice_changes()
        observations, self._pending = self._pending, []
        joined = self._ranks.joined
        made = None if joined else self._clock.tick(observations)
        if joined:
            observations = []
        else:
            Join.notify_join_context(self)
        # Every rank gets here at every call, so a rank that alone skipped an update is found, and nobody waits for it.
        updates = self.last_epoch + (made or 0)
        loss: Any = self._phase.reduce(observations, self._ranks, updates)
        if joined:
            updates = self._ranks.updates
            made = self._clock.follow(updates - self.last_epoch)
        if made is None:
            # A skipped update is no step. But once the weights are broken, a GradScaler skips every update, so such
            # losses must count. To skip, it has waited for the device, so there is no more to wait for.
            made, loss = (0, loss) if self._phase.is_broken(loss) else (None, None)
        if made is not None:
            if self._phase.weights_trained is None and self._phase.device is None:
                self._settle()  # all ranks are at this step
            self._phase.advance(updates, loss)
            self.last_epoch = updates
            if isinstance(self._phase, PeakSearch) and self._phase.over:
                self._enter(self._phase.following())
            elif self._guard is not None and isinstance(self._phase, HostRule | DeviceRule):
                self._recover(self._guard, self._phase, loss)
            self._write()
        notices, total = self._phase.notices(), self._phase.timeline.total_steps
        if notices.failures or notices.disagree or loss is None or (total is not None and self.last_epoch + 1 >= total):
            self._alarms.check(
                notices, self._phase, self._clock, self._ranks, skipped=made is None, observed=loss is not None
            )
        lr = self.optimizer.param_groups[0]["lr"]
        if isinstance(lr, Tensor) or self._phase.device is not None:
            self._phase = placed(self._phase, lr)

    # PyTorch's hooks for ranks with uneven inputs, for `torch.distributed.algorithms.Join([model, scheduler])`.

    def join_hook(self, **_: Any) -> JoinHook:
        """What this rank does once it has no more inputs: it goes on with the losses of the others."""
        self._ranks.may_join = True
        return _Joined(self)

    @property
    def join_device(self) -> torch.device:
        """The device on which ranks tell each other that they have inputs."""
        return collective_device(self.process_group)

    @property
    def join_process_group(self) -> Any:
        """The ranks that share the run."""
        return self.process_group or torch.distributed.group.WORLD

    # PyTorch's hooks for schedulers, so that SequentialLR, ChainedScheduler and trainers that only call step() work.

    def get_lr(self) -> list[float | Tensor]:
        """The rates for the next update: each group's peak rate times its share."""
        return self._groups.aims(self._peaks(), self._phase)

    def _initial_step(self) -> None:
        self._step_count = 1
        self._groups.adopt(self.base_lrs)
        self._restart()

    def _restart(self) -> None:
        self.last_epoch, self._pending, self._look = 0, [], FirstLook()
        self._phase = self._first_phase(self._phase.timeline.planned_steps)
        if self._guard is not None:
            self._guard.restart(self._planned_length())
        self._clock.restart()
        self._groups.restart()
        self._write()

    def _first_phase(self, total_steps: int | None) -> Phase:
        rule = HostRule.begin(self._plan, 0, total_steps, self._plan.target_loss)
        return PeakSearch(self._clock.optimizer, rule) if self._settings["peak"] == "auto" else rule

    def _enter(self, rule: HostRule) -> None:
        """Go on at another peak: after a search, at the peak rate that it has found."""
        ratio = rule.plan.lr / self._plan.lr
        self._phase, self._plan = rule, rule.plan
        if ratio != 1.0:
            for i, group in enumerate(self.optimizer.param_groups):
                self.base_lrs[i] = group["initial_lr"] = self.base_lrs[i] * ratio
            self._groups.scale_later(ratio)
            for one in chained_with(self):  # they set rates from these, at a milestone or beside ours
                one.base_lrs = [peak * ratio for peak in one.base_lrs]

    def _recover(self, guard: Guard, phase: HostRule | DeviceRule, loss: Any) -> None:
        """Let the guard see the loss, and do what it says at an alarm."""
        found = guard.after(self.last_epoch, loss, phase, self._clock.optimizer, self._plan.lr)
        if found is None:
            return
        if found.peak_after != found.peak_before:
            rule = phase.on_host()
            rule.lower(found.peak_after)
            self._enter(rule)
        guard.warn(found)

    def _planned_length(self) -> int:
        return self._phase.timeline.planned_steps or OPEN_HORIZON

    def _peaks(self) -> list[float | Tensor]:
        """The groups' peak rates; lower for a while after a restart."""
        share = 1.0 if self._guard is None else self._guard.share(self.last_epoch)
        return self.base_lrs if share == 1.0 else [peak * share for peak in self.base_lrs]

    def _settle(self) -> None:
        """Settle whether the weights were trained before: as told, or from the weights before the first update."""
        if (rule := self._phase).name == "warmup":
            if (trained := self._settings["trained"]) is None:
                trained = self._look.verdict(self.optimizer, self.process_group).trained
            rule.on_host().settle(trained)

    def _write(self) -> None:
        self._last_lr = self._groups.write(self._peaks(), self._phase)

    # Groups, optimizers and schedulers that change or join during the run.

    def _watch_groups(self) -> None:
        hook(self.optimizer.register_step_pre_hook, self, PhaseScheduler._before_update)
        hook(self.optimizer.register_load_state_dict_post_hook, self, PhaseScheduler._forget_trials)
        for one in inside(self.optimizer):  # which may step one by one, in the backward pass
            hook_once_compiled(one.register_step_pre_hook, self, PhaseScheduler._look_at_weights)

    def _forget_trials(self, *_: Any) -> None:
        """The optimizer has loaded a state. Before this scheduler's first step, that ends a rate finder's trials."""
        self._changes = 0
        if self._clock.first_tick is None:
            self._clock.restart()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch_groups()  # a copied optimizer has lost its hooks

    def _before_update(self, *_: Any) -> None:
        if self._groups.regrouped():
            self._adopt_groups()  # before new groups make an update at their peak rates
            if self._guard is not None:
                self._guard.keep_added(self._clock.optimizer)
        self._clock.pretended = self._groups.are_put_out()
        if torch.compiler.is_compiling() or self._clock.pretended:
            return
        old, self._old_peaks = self._old_peaks, None
        if old is not None and self.last_epoch == 0:
            self._alarms.warn("old peaks", old)
        total = self._phase.timeline.total_steps
        over = total is not None and self.last_epoch >= total  # another schedule may follow
        changed = self._groups.changed() and not over
        if (self._in_use or self.last_epoch == 0) and changed:
            self._look_for_others()
        self._foreign = self._foreign + 1 if changed and self._in_use else 0
        if self._foreign == FOREIGN and not schedulers_beside(self):
            self._alarms.foreign()
        self._in_use = False

    def _look_at_weights(self) -> None:
        """Look, before the first update, for signs that they were trained before."""
        unsettled = self._phase.name == "warmup" and self._phase.weights_trained is None
        if unsettled and not (self._clock.made or self._clock.pretended):
            self._look.take(self.optimizer, self.process_group)

    def _notice_changes(self) -> None:
        """Take in what others have done to the optimizer, its groups or their rates since the last step."""
        self._follow_optimizer()
        if self._groups.changed():
            others, raised = self._look_for_others(), self._groups.notice()
            if raised is not None and not others:
                self._alarms.warn("raised", raised)

    def _look_for_others(self) -> bool:
        """Whether another scheduler sets the rates; it is named. Before the first update, new rates are peaks."""
        if "other scheduler" in self._alarms.said:
            return True
        self._changes += 1
        if not self._changes & (self._changes - 1):
            # Looking takes a while, so look at the first change, the second, the fourth, …
            beside = schedulers_beside(self)
            self._alone = not may_have_written(beside, self)
            # A scheduler that was made and never stepped has been replaced, and complains of nothing.
            if self._in_use and (others := unwanted(beside, self)):
                self._alarms.other_scheduler(type(self).__name__, others)
                return True
        untouched = self.last_epoch == 0 and self._phase.name == "warmup" and not self._phase.on_host().started
        if untouched and self._alone:
            if self._groups.are_zero():
                self._alarms.zero()
            elif self._groups.take_as_peaks(self.base_lrs):
                self._plan = self._plan.at(first_peak(self.optimizer))
                self._phase = self._first_phase(self._phase.timeline.planned_steps)
                self._groups.restart()
                self._write()
        return False

    def _adopt_groups(self) -> None:
        self._groups.adopt(self.base_lrs)
        if self.last_epoch == 0 and self._groups.changed():
            self._look_for_others()  # rates that were set before the first update are peaks
        self._groups.notice()
        self._write()

    def _follow_optimizer(self) -> None:
        """Take over an optimizer that was replaced, or wrapped, and groups that were added or moved."""
        self.optimizer = unwrapped(self.optimizer)
        if self.optimizer is not self._clock.optimizer:
            self._clock.watch(self.optimizer)
            self._groups = GroupRates(self.optimizer)
            self._groups.adopt(self.base_lrs)
            self._watch_groups()
            self._write()
        if self._groups.regrouped():
            self._adopt_groups()

    @in_normal_mode
    def _change(self, change: Callable[[HostRule], HostRule | None]) -> None:
        """Change the rule in plain numbers, in place or into another; all ranks must make the same change."""
        self._follow_optimizer()
        self._groups.notice()
        if self._phase.name == "search":
            raise RuntimeError("the search for the peak rate is still under way: change the schedule once it ends")
        rule = self._phase.on_host()
        rule = change(rule) or rule
        self._enter(rule)
        if self._guard is not None:
            self._guard.resize(self._planned_length())
        self._agree()
        self._alarms.said.discard("overrun")
        self._write()
        self._phase = placed(rule, self.optimizer.param_groups[0]["lr"])

    def _agree(self) -> None:
        timeline = self._phase.timeline
        plan = {"origin": timeline.origin, "total_steps": timeline.total_steps, "decay": name_of(timeline.decay_shape)}
        changed = plan != {"origin": 0, **{name: self._settings[name] for name in ("total_steps", "decay")}}
        self._ranks.agree_on(self._settings | ({"now": plan} if changed else {}))

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """Everything needed for a bit-identical continuation, as plain numbers and text.

        During the search for the peak rate, this includes the weights from before the first update. With ``recover``,
        it includes what is known of the losses, but not the copy of the run: a resumed run makes a new one.
        """
        self._follow_optimizer()
        return {
            "version": STATE_VERSION,
            "settings": dict(self._settings),
            "last_epoch": self.last_epoch,
            "step_count": self._step_count,
            "lr": self._plan.lr,
            "base_lrs": [float(lr) for lr in self.base_lrs],
            **self._groups.state_dict(),
            "pending": [[float(seen.loss), seen.weight] for seen in self._pending],
            "said": sorted(self._alarms.said),
            "clock": self._clock.state_dict(),
            "recovery": None if self._guard is None else self._guard.state_dict(),
            **self._phase.state_dict(),
        }

    @in_normal_mode
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, and write its rates into the optimizer's groups.

        If the state was saved under another ``total_steps``, the schedule continues as after `extend`, with a warning.
        If an error is raised, nothing changes.

        Raises:
            ValueError: the state belongs to another class, is damaged, or was saved under other settings; the message
                names the class or lists the differences.
        """
        state = read_state(state_dict)
        rule, extended = resumed(state, self._settings, self._plan, self.optimizer, kappa_counted=self._kappa_counted)
        phase = placed(rule, self.optimizer.param_groups[0]["lr"])
        if state["search"] is not None:
            phase = PeakSearch(self.optimizer, rule)
            phase.load_state_dict(state["search"])

        self._follow_optimizer()
        self._groups.scale_later(rule.plan.lr / self._plan.lr)
        self._settings, self._plan = self._settings | {"kappa": rule.plan.kappa}, rule.plan
        self.last_epoch, self._step_count = state["last_epoch"], state["step_count"]
        for i, lr in enumerate(state["base_lrs"]):
            base = self.base_lrs[i]
            self.base_lrs[i] = base.new_tensor(lr).reshape(base.shape) if isinstance(base, Tensor) else lr
        self._alarms.said = set(state["said"]) - (set() if extended is None else {"overrun", "stalled"})
        self._clock.load_state_dict(state["clock"])
        self._phase = phase
        if self._guard is not None:
            self._guard.restart(self._planned_length())
            if state["recovery"] is not None:
                self._guard.load_state_dict(state["recovery"])
        self._agree()
        self._pending = [Observation(loss, weight) for loss, weight in state["pending"]]
        self._last_lr = self._groups.load_state_dict(state, self._peaks(), phase)
        if isinstance(phase, PeakSearch) and not phase.losses:
            self._write()  # the search starts over, from its lowest rate
        self.load_warning = extended
        if extended is not None:
            warnings.warn(extended, stacklevel=frames_of_ours())


class _Joined(JoinHook):
    def __init__(self, scheduler: PhaseScheduler) -> None:
        self._scheduler = scheduler

    def main_hook(self) -> None:
        ranks = self._scheduler._ranks
        ranks.joined = True
        try:
            self._scheduler.step()
        finally:
            ranks.joined = False

    def post_hook(self, is_last_joiner: bool) -> None:
        # In the order of Algorithm 1 the last update is still to be counted, by every rank.
        made = torch.tensor(self._scheduler._clock.made, device=self._scheduler.join_device)
        torch.distributed.all_reduce(made, op=torch.distributed.ReduceOp.MAX, group=self._scheduler.join_process_group)
        self._scheduler._clock.made = int(made)
