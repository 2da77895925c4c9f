"""The rule on tensors: a schedule whose rates never make the host wait for the device.

Where the rate is a tensor, so is all that it depends on: the smoothed loss, whether warm-up has ended, and when. The
host knows only how many updates it has launched. What it should be told (that losses are not finite, that warm-up has
ended) is copied to it without waiting and read when it has arrived, some steps late.

Two waits are allowed: at the first finite loss, since the calibration is a search on the host, and at the run's end.
`autowarm.schedule.rule` is the plain reference.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .reduce import Observation, in_company
from .rule import LEAST_SHARE, Rule
from .shapes import Shape

__all__ = ["DeviceRule", "Notices"]


class Notices(NamedTuple):
    """What the device has told of itself.

    Attributes:
        updates: as of which update.
        failures: losses in a row that were not finite.
        disagree: whether ranks were found at different steps or with different settings.
        ended_at: after which update warm-up ended, or None.
    """

    updates: int
    failures: int
    disagree: bool
    ended_at: int | None


class DeviceRule:
    """A `Rule` that goes on, on a device, from where it stands on the host.

    Every operator is a kernel to launch, so there are few: what the host knows (how many updates, the ramp, the pace of
    the average) stays there. On the device are the smoothed loss, the share, the update at which warm-up ended and the
    last loss that was finite.

    Rates do not depend on when a notice arrives: it spares operators whose result is known, no more.

    Args:
        rule: must have had its first loss. It stays as it is until `write_back`.
        device: of the rates.

    Attributes:
        share: η/lr for the next update, a 0-dim tensor.

    Raises:
        ValueError: the decay is a function of one's own that takes no tensors.
    """

    def __init__(self, rule: Rule, device: torch.device) -> None:
        self._rule = rule
        wide = torch.float32 if device.type == "mps" else torch.float64
        ended_at = math.inf if rule.ended_by is None else float(rule.warmup_steps)
        # In one piece, so that one copy tells the host of it all: ended_at, last_good, disagree.
        self._told = torch.tensor([ended_at, 0.0, 0.0], dtype=wide, device=device)
        self._ended_at, self._last_good, self._disagree = self._told.unbind()
        self._zero, self._one, self._never = (torch.full_like(self._ended_at, x) for x in (0.0, 1.0, math.inf))
        self.share = torch.full_like(self._zero, rule.share)
        self._smoothed = torch.full_like(self._zero, rule.smoothed)
        self._decay = _on_tensors(rule.target[1], self._zero)
        self._seen = 0  # losses, finite or not
        self._mail = _Mail(self._told)
        self._notices = Notices(rule.updates, 0, False, rule.warmup_steps if rule.ended_by else None)

    def advance(
        self, updates: int, observations: Sequence[Observation], group: dist.ProcessGroup | None, mark: float
    ) -> Notices:
        """`Rule.advance`, with the reduction over micro-batches and ranks before it.

        Args:
            updates: made so far.
            observations: this rank's, possibly none.
            group: the ranks that take part; None for all, where `torch.distributed` is in use.
            mark: a number that is the same on ranks that agree on their settings.

        Returns:
            The latest that has arrived.
        """
        self._rule.updates = updates
        company = in_company(group)
        if len(observations) == 1 and observations[0].weight > 0 and not company:
            loss = self._here(observations[0].loss)
            finite = good = (loss - loss) == self._zero  # x − x is NaN for NaN and ±∞; `isfinite` is four operators
        elif observations or company:
            loss, finite, good = self._reduce(observations, group if company else False, mark)
        else:
            loss = None
        if loss is not None:
            self._seen += 1
            self._last_good.masked_fill_(good, self._seen)
        known = self._notices
        if known.ended_at is None:
            pace = self._rule.pace()
            fresh = known.updates >= updates - 1  # if not, it may have ended meanwhile
            if loss is not None:
                self._warm_up(loss, finite, pace, fresh)
            if not fresh:
                p = self._gone() / (self._rule.total_steps - self._ended_at)
                self.share = torch.where(self._ended_at < updates, self._decayed(p), self.share)
        else:
            left = self._rule.total_steps - known.ended_at
            self.share = self._decayed(
                torch.full_like(self._zero, min(updates - known.ended_at, left - 1) / max(1, left))
            )
        return self._exchange()

    def write_back(self) -> Rule:
        """The rule on the host, brought up to date; waits for the device."""
        share, smoothed, ended_at = torch.stack([self.share, self._smoothed, self._ended_at]).tolist()
        rule = self._rule
        rule.share, rule.smoothed = share, smoothed
        if math.isfinite(ended_at):
            rule.warmup_steps = int(ended_at)
            # The rule looks at the floor first.
            by_floor = rule.floor_steps is not None and ended_at >= rule.floor_steps
            rule.ended_by = "floor" if by_floor else "gap"
        return rule

    def _here(self, loss: Tensor | float) -> Tensor:
        if isinstance(loss, Tensor):
            loss = loss if loss.ndim == 0 else loss.reshape(())
            if loss.device == self._zero.device:
                return loss.to(self._zero.dtype)
            return loss.to(self._zero.device, self._zero.dtype, non_blocking=True)
        return torch.full_like(self._zero, loss)

    def _reduce(
        self, observations: Sequence[Observation], group: dist.ProcessGroup | Literal[False] | None, mark: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted mean of the finite losses; whether there is one; whether nothing is amiss.

        Over ranks, unless ``group`` is False.
        """
        total, weight, bad = self._zero, self._zero, self._zero
        for seen in observations:
            loss = self._here(seen.loss)
            finite = loss.isfinite()
            total = total + torch.where(finite, loss * seen.weight, self._zero)
            weight = weight + finite * seen.weight
            bad = bad + ~finite
        if group is not False:
            mine = torch.stack([total, weight, bad, self._one * self._rule.updates, self._one * mark])
            everyone = mine.new_empty((dist.get_world_size(group), mine.numel()))
            dist.all_gather_into_tensor(everyone, mine.unsqueeze(0), group=group)
            self._disagree.masked_fill_((everyone[:, 3:] != everyone[0, 3:]).any(), 1.0)
            # Summed in one order everywhere: the same number to the bit on every rank.
            total, weight, bad = everyone[:, :3].sum(0).unbind()
        finite = weight > 0
        return total / weight, finite, finite | (bad == 0)

    def _warm_up(self, loss: Tensor, finite: Tensor, pace: float, fresh: bool) -> None:
        rule = self._rule
        self._smoothed = torch.lerp(self._smoothed, torch.where(finite, loss, self._smoothed), pace)
        floor, profile = rule.floor(), rule.profile
        if floor >= 1.0:
            ends = finite
        elif profile is None:
            self.share = torch.where(finite, floor, self.share)
            return
        else:
            # Δ/(Δ + c·(Δ − Δ')²), see `Profile`.
            gap = self._smoothed - rule.fstar
            away = gap - profile.peak_gap
            c = (profile.div - 1.0) * profile.gap0 / (profile.gap0 - profile.peak_gap) ** 2
            share = gap / torch.addcmul(gap, away, away, value=c)
            self.share = torch.where(finite, share.clamp(min=max(floor, LEAST_SHARE)), self.share)
            ends = away < self._zero
        self.share = self.share.masked_fill(ends, 1.0)
        if fresh:
            self._ended_at.masked_fill_(ends, rule.updates)
        else:  # the first time counts, and later ones are greater
            torch.minimum(self._ended_at, self._never.masked_fill(ends, rule.updates), out=self._ended_at)

    def _gone(self) -> Tensor:
        """Updates since the switch; meaningless before it."""
        # Update T has the decay's last value; past T it stays there.
        updates, total = self._rule.updates, self._rule.total_steps
        return updates - self._ended_at if updates < total else total - 1 - self._ended_at

    def _decayed(self, p: Tensor) -> Tensor:
        ratio = self._rule.final_ratio
        kept = self._decay(p.clamp(min=0.0) if self._rule.updates >= self._rule.total_steps else p)  # < 0: ended at T
        return kept if ratio == 0.0 else ratio + (1.0 - ratio) * kept

    def _exchange(self) -> Notices:
        self._mail.send(self._rule.updates, self._seen)
        letter = self._mail.read()
        if letter is not None:
            updates, seen, (ended_at, last_good, disagree) = letter
            ended = int(ended_at) if math.isfinite(ended_at) else None
            self._notices = Notices(updates, int(seen - last_good), bool(disagree), ended)
        return self._notices


class _Mail:
    """Copies a tensor to the host without waiting.

    One letter at a time: one that is overwritten on its way might never be found arrived.
    """

    def __init__(self, content: Tensor) -> None:
        cuda = content.device.type == "cuda"
        self._content = content
        self._letter = torch.empty_like(content, device="cpu", pin_memory=cuda)
        # The letter is the host's own memory; reading it through numpy calls no operator that waits.
        self._text = self._letter.numpy()
        self._arrived = torch.cuda.Event() if cuda else None
        self._stamp: tuple[int, int] | None = None

    def __getstate__(self) -> Tensor:
        return self._content  # an event cannot be copied, and what is under way is not missed

    def __setstate__(self, content: Tensor) -> None:
        self.__init__(content)  # type: ignore[misc]

    def send(self, *stamp: int) -> None:
        """Send one, marked with numbers the host knows, unless one is under way."""
        if self._stamp is None:
            self._letter.copy_(self._content, non_blocking=True)
            self._stamp = stamp  # type: ignore[assignment]
            if self._arrived is not None:
                self._arrived.record()

    def read(self) -> tuple[int, int, list[float]] | None:
        """The letter's stamp and content, once, when it has arrived."""
        if self._stamp is None or not (self._arrived is None or self._arrived.query()):
            return None
        stamp, self._stamp = self._stamp, None
        return *stamp, self._text.tolist()


def _on_tensors(shape: Shape, like: Tensor) -> Shape:
    """The decay for 0-dim tensors.

    Raises:
        ValueError: a function of one's own that takes floats alone.
    """
    try:
        at = shape(torch.full_like(like, 0.5))
        if isinstance(at, Tensor) and math.prod(at.shape) == 1:
            return shape
        what = f"it returned {at!r}"
    except Exception as error:
        what = f"it raised {type(error).__name__}: {error}"
    raise ValueError(
        "with a tensor lr, a decay function is given the share p as a 0-dim tensor and must return one, so that the "
        f"device need not be waited for; for p = 0.5 {what}. Write it in torch operations, or use a float lr"
    )
