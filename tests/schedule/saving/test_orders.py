"""Every order of observe, step, save, load and kill: the one that was killed is the one that was not, to the bit."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from schedule_runs import MODES, PEAK, make_optimizer, saved

from autowarm import AdaptiveWarmup

STEPS = 12
losses = st.one_of(st.floats(0.1, 20), st.sampled_from([math.nan, math.inf, 0.0, -3.0, 1e6, 1e300]))
Act = Callable[[AdaptiveWarmup], Any]


class Orders(RuleBasedStateMachine):
    """Two schedulers live the same life, but one is killed now and then and goes on from what was saved."""

    @initialize(mode=st.sampled_from(["default", "no ramp"]), tensor=st.booleans())
    def begin(self, mode: str, tensor: bool) -> None:
        def make() -> AdaptiveWarmup:
            options = {"peak_gap": None} if mode == "no ramp" else {}
            lr = torch.tensor(PEAK, dtype=torch.float64) if tensor else PEAK
            return MODES[mode](make_optimizer(lr), STEPS, max_nonfinite=None, **options)

        self.make = make
        self.straight, self.killed = make(), make()
        self.since: list[Act] = []
        self.file = saved(self.killed)

    def do(self, act: Act) -> None:
        self.since.append(act)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            act(self.straight), act(self.killed)

    @rule(loss=losses, weight=st.sampled_from([0.0, 1.0, 3.0]))
    def observe(self, loss: float, weight: float) -> None:
        self.do(lambda scheduler: scheduler.observe(loss, weight))

    @rule()
    def update(self) -> None:
        self.do(lambda scheduler: scheduler.optimizer.step())

    @rule()
    def step(self) -> None:
        self.do(lambda scheduler: scheduler.step())

    @rule(loss=losses)
    def step_with_a_loss(self, loss: float) -> None:
        self.do(lambda scheduler: scheduler.step(loss))

    @rule(loss=losses)
    def train(self, loss: float) -> None:
        self.update()
        self.step_with_a_loss(loss)

    @rule()
    def save(self) -> None:
        self.file, self.since = saved(self.killed), []

    @rule()
    def load_twice(self) -> None:
        """Loading changes neither the file nor what was loaded before."""
        kept = copy.deepcopy(self.file)
        other = self.make()
        other.load_state_dict(self.file)
        other.load_state_dict(self.file)
        assert repr(self.file) == repr(kept) == repr(saved(other))

    @rule()
    def kill(self) -> None:
        self.killed = self.make()
        self.killed.load_state_dict(self.file)
        again, self.since = self.since, []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for act in again:
                act(self.killed)
        self.since = again

    @invariant()
    def both_are_the_same(self) -> None:
        if hasattr(self, "straight"):
            assert repr(saved(self.straight)) == repr(saved(self.killed))  # as text, in which a NaN is itself

    @invariant()
    def rates_are_in_bounds(self) -> None:
        if hasattr(self, "straight"):
            (rate,) = self.straight.get_last_lr()
            assert math.isfinite(rate)
            assert 0 < float(rate) <= PEAK


TestOrders = Orders.TestCase
TestOrders.settings = hypothesis.settings(max_examples=25, stateful_step_count=25, deadline=None, derandomize=True)
