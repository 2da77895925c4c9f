"""The rule on tensors: a schedule whose rates never make the host wait for the device.

If the rate is a tensor, so is everything it depends on: the smoothed loss, whether warm-up has ended, and when. The
host knows only how many updates it has launched. What the host needs to know (that losses are not finite, that warm-up
has ended) is copied to it without waiting, and read when it has arrived, some steps late.

The host does wait for the first few finite losses, since the calibration is a search on the host, and at the end of
the run.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...devices import HostCopy, collective_device
from ...losses import Observation, Ranks
from ..shapes import Shape
from .rule import HostRule, Notices, Phase


def placed(phase: Phase, rate: Tensor | float) -> Phase:
    """Move a phase to where the rate is: to its device if the rate is a tensor, to the host if it is a float.

    The rule stays on the host until the calibration is done. Leaving a device waits for it. Raise ValueError if the
    decay is a user's function that does not accept tensors.
    """
    device = rate.device if isinstance(rate, Tensor) else None
    if phase.device == device:
        return phase
    host = phase.on_host()
    if device is None or not host.started:
        return host
    _check_takes_tensors(host.timeline.decay_shape, torch.zeros((), device=device))  # already at the first loss
    return host if host.opening else DeviceRule(host, device)


class _Loss(NamedTuple):
    """The mean loss over micro-batches and ranks, whether it is finite, and whether it is finite or there was none."""

    mean: Tensor
    finite: Tensor
    good: Tensor


class DeviceRule:
    """Continues a `HostRule`, whose opening (its first few losses) is over, on a device.

    Every operator launches a kernel, so there are few: what the host knows (the number of updates, the ramp) stays
    there. The device holds the averaged loss, the share, the update at which the decay began and the last loss that was
    finite.

    Rates do not depend on when a notice arrives: a notice only saves operators whose result is already known.
    """

    def __init__(self, rule: HostRule, device: torch.device) -> None:
        assert rule.smoothed is not None
        self.device: torch.device | None = device
        self._rule, self.timeline, self.profile, self.target_loss = rule, rule.timeline, rule.profile, rule.target_loss
        self.weights_trained = rule.weights_trained
        self.updates = rule.updates
        self._losses = rule.failures  # counted from the last finite one before
        wide = torch.float32 if device.type == "mps" else torch.float64
        decay_start = math.inf if rule.decay_start is None else float(rule.decay_start)
        # One tensor, so that one copy tells the host everything: decay_start, last_good, disagree.
        self._told = torch.tensor([decay_start, 0.0, 0.0], dtype=wide, device=device)
        self._decay_start, self._last_good, self._disagree = self._told.unbind()
        self._zero, self._one, self._never = (torch.full_like(self._decay_start, x) for x in (0.0, 1.0, math.inf))
        self._true = torch.ones((), dtype=torch.bool, device=device)
        self.share = torch.full_like(self._zero, rule.share)
        self.smoothed = torch.full_like(self._zero, rule.smoothed)
        self._last_seen = torch.full_like(self._zero, rule.last_seen)
        self._copy = HostCopy(self._told)
        self._notices = Notices(rule.updates, rule.failures, False, rule.decay_start)

    def __getstate__(self) -> tuple[HostRule, torch.device | None]:
        return self.on_host(), self.device  # unpickling turns views of one tensor into separate ones

    def __setstate__(self, state: tuple[HostRule, torch.device]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @property
    def name(self) -> str:
        return self.on_host().name

    def state_dict(self) -> dict[str, Any]:
        return self.on_host().state_dict()

    @property
    def steady_share(self) -> Tensor:
        if self._notices.decay_start is None:
            return torch.where(self._decay_start <= self.updates, self.share, self._one)
        return self.timeline.steady(self.share)

    def reduce(self, observations: Sequence[Observation], ranks: Ranks, updates: int) -> _Loss | None:
        """The weighted mean of the finite losses."""
        distributed = ranks.distributed
        if len(observations) == 1 and observations[0].weight > 0 and not distributed:
            loss = self._here(observations[0].loss)
            finite = (loss - loss) == self._zero  # x − x is NaN for NaN and ±∞; `isfinite` takes four operators
            return _Loss(loss, finite, finite)
        if not observations and not distributed:
            return None
        total, weight, bad = self._zero, self._zero, self._zero
        for seen in observations:
            if not seen.weight:
                continue
            loss = self._here(seen.loss)
            finite = loss.isfinite()
            total = total + torch.where(finite, loss * seen.weight, self._zero)
            weight = weight + finite * seen.weight
            bad = bad + ~finite
        if distributed:
            made = -1.0 if ranks.joined else updates
            mine = torch.stack([total, weight, bad, self._one * made, self._one * ranks.mark])
            mine = mine.to(collective_device(ranks.group, mine.device))
            everyone = ranks.gather(mine, updates).to(self._zero.device)
            self._disagree.masked_fill_((everyone[:, 3:] != everyone[0, 3:]).any(), 1.0)
            # Every rank sums in the same order, so the results are bit-identical.
            total, weight, bad = everyone[:, :3].sum(0).unbind()
        finite = weight > 0
        return _Loss(total / weight, finite, finite | (bad == 0))

    def is_broken(self, loss: _Loss | None) -> bool:
        return loss is not None and not bool(loss.good)

    def advance(self, updates: int, loss: _Loss | None) -> None:
        """As `HostRule.advance`, without waiting."""
        made, self.updates = updates - self.updates, updates
        if loss is not None:
            self._losses += 1
            self._last_good.masked_fill_(loss.good, self._losses)
        known, timeline = self._notices, self.timeline
        if known.decay_start is None:
            fresh = known.updates >= updates - made  # if not, warm-up may have ended meanwhile
            self._warm_up(loss, fresh)
            if not fresh:
                p = timeline.decay_progress(updates, self._decay_start)
                self.share = torch.where(self._decay_start < updates, timeline.decay_share(updates, p), self.share)
        else:
            p = torch.full_like(self._zero, timeline.decay_progress(updates, known.decay_start))
            self.share = timeline.decay_share(updates, p)

    def notices(self) -> Notices:
        """The latest notices that have arrived on the host."""
        self._copy.send(self.updates, self._losses)
        if (arrived := self._copy.read()) is not None:
            (updates, losses), (decay_start, last_good, disagree) = arrived
            ended = int(decay_start) if math.isfinite(decay_start) else None
            self._notices = Notices(updates, int(losses - last_good), bool(disagree), ended)
        return self._notices

    def on_host(self) -> HostRule:
        """The same state in plain numbers. Waits for the device."""
        content = torch.stack([self.smoothed, self._last_seen, self.share, self._decay_start, self._last_good])
        smoothed, last_seen, share, decay_start, last_good = content.tolist()
        known, failures = self._rule, int(self._losses - last_good)
        seen = {"smoothed": smoothed, "last_seen": int(last_seen), "failures": failures}
        rule = replace(known, share=share, updates=self.updates, **seen)
        if known.decay_start is None and math.isfinite(decay_start):
            rule.decay_start = int(decay_start)
            rule.warmup_steps = rule.decay_start - self.timeline.origin
            rule.ended_by = known.what_ended(rule.decay_start)
        return rule

    def _here(self, loss: Tensor | float) -> Tensor:
        if isinstance(loss, Tensor):
            loss = loss if loss.ndim == 0 else loss.reshape(())
            if loss.device == self._zero.device:
                return loss.to(self._zero.dtype)
            # A copy to a device runs before the operators that read it. Nothing orders a copy to the host that way.
            device = self._zero.device
            return loss.to(device, self._zero.dtype, non_blocking=device.type != "cpu")
        return torch.full_like(self._zero, loss)

    def _warm_up(self, loss: _Loss | None, fresh: bool) -> None:
        if loss is not None:
            average = self._rule.averaged(self.smoothed, loss.mean, self.updates - self._last_seen)
            self.smoothed = torch.where(loss.finite, average, self.smoothed)
            self._last_seen = self._last_seen.masked_fill(loss.finite, self.updates)
        # Where losses were not finite, the share stays; without a loss, the ramp goes on.
        goes_on = self._true if loss is None else loss.good
        share, ended = self._rule.warmup_share(self.updates, self.smoothed)
        self.share = torch.where(goes_on, share, self.share)
        if ended is False:
            return
        ended = ended & goes_on
        self.share = self.share.masked_fill(ended, 1.0)
        if fresh:
            self._decay_start.masked_fill_(ended, self.updates)
        else:  # only the first end counts, and later ones are greater
            torch.minimum(self._decay_start, self._never.masked_fill(ended, self.updates), out=self._decay_start)


def _check_takes_tensors(shape: Shape, like: Tensor) -> None:
    """Raise ValueError if a decay is a user's function that cannot be computed on the device."""
    for p in (0.5, 0.0, 1.0):
        try:
            at: Any = shape(torch.full_like(like, p))
            if isinstance(at, Tensor) and math.prod(at.shape) == 1:
                continue
            what = f"it returned {at!r}"
        except Exception as error:
            what = f"it raised {type(error).__name__}: {error}"
        raise ValueError(
            "with a tensor lr, a decay function is given the share p as a 0-dim tensor and must return one, so that "
            f"the host never waits for the device; for p = {p:g} {what}. Write it in torch operations, after "
            "p = torch.as_tensor(p), or use a float lr"
        )
