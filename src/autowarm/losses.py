"""Losses as users observe them, and their mean over micro-batches and ranks, the same on every rank.

On an accelerator, which is none of `AT_ONCE`, a loss is read `LATE` updates after its own: by then it has been
computed, so that reading it does not wait for the device. Which update reads which loss depends on the number of
updates alone, and never on timing, so runs repeat to the bit and ranks act alike.
"""

import json
import math
import numbers
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ._torch.devices import HostCopy, check_member, collective_device
from ._version import __version__

NO_BACKWARD = (
    "the closure ran no backward pass, or not through this model, or cleared the gradients: after it no tensor has a "
    "gradient"
)
LATE, AT_ONCE = 4, ("cpu",)
_CPU = torch.device("cpu")
_DISTRIBUTED = dist.is_available()
L = TypeVar("L")


def run_closure(closure: Callable[[], L], params: Iterable[Tensor]) -> L:
    """Return a closure's loss; TypeError if it returns none, ValueError if no tensor has a gradient afterwards."""
    loss = closure()
    if loss is None:
        raise TypeError("the closure returns nothing: let it return the loss")
    if all(p.grad is None for p in params):
        raise ValueError(NO_BACKWARD)
    return loss


class Observation(NamedTuple):
    """One micro-batch's loss, still on its device, and its weight."""

    loss: Tensor | float
    weight: float
    traced: bool = False  # the loss came with a graph, so this is training

    @classmethod
    def of(cls, loss: Tensor | float, weight: float) -> Self:
        """Check a loss and its weight, and detach the loss from its graph.

        Raises:
            TypeError: the loss is not a real number or tensor, or it is an int, which suggests that it is an epoch.
            ValueError: the loss has more than one element, or the weight is negative or not finite.
        """
        if type(weight) is not float or weight != 1.0:  # a tensor that equals 1 is no float, either
            try:
                weight = float(given := weight)
            except (TypeError, ValueError):
                weight = math.nan
            if not (weight >= 0 and math.isfinite(weight)):
                raise ValueError(f"an observation's weight must be finite and not negative, got {given!r}")
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise ValueError(f"a loss has one element, got a tensor of shape {tuple(loss.shape)}: take its mean")
            if not loss.is_floating_point():
                raise TypeError(f"a loss is a real number, and no epoch, but got a tensor of {loss.dtype}")
            traced, loss = loss.requires_grad, loss.detach()
            # The value of a DTensor is spread over its mesh.
            if type(loss) is not Tensor and hasattr(loss, "full_tensor"):  # the first test is cheap for plain tensors
                loss = loss.full_tensor()
            return cls(loss, weight, traced)
        if getattr(loss, "shape", None) == ():
            loss = loss.item()  # type: ignore[attr-defined]  # NumPy's
        if isinstance(loss, numbers.Integral):
            raise TypeError(f"expected a loss, not an epoch, and got the int {loss}: pass a float or a tensor")
        try:
            if isinstance(loss, str | bytes):  # which `float` would parse
                raise TypeError
            return cls(float(loss), weight)
        except (TypeError, ValueError):
            inside = "output.loss" if hasattr(loss, "loss") else 'output["loss"]' if isinstance(loss, Mapping) else ""
            pass_it = f": pass {inside}" if inside else ": call it" if callable(loss) else ""
            raise TypeError(f"a loss is a number or a one-element tensor, got {type(loss).__name__}{pass_it}") from None

    def copy(self) -> Self:
        """A copy to keep for later: loops may change their loss in place, as ``loss /= accumulation`` does."""
        return self._replace(loss=self.loss.clone()) if isinstance(self.loss, Tensor) else self


class Ranks:
    """The ranks that share a run, and the settings that they must agree on.

    Args:
        group: the ranks; None means all ranks, if `torch.distributed` is in use.
        settings: must be the same on all ranks.
        owner: what the settings belong to, for the messages.
        device: where the group exchanges losses, if its backends can; the same kind on all ranks.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        settings: dict[str, Any],
        owner: str = "AdaptiveWarmup",
        device: torch.device = _CPU,
    ) -> None:
        check_member(group)
        self.group, self.owner, self.device = group, owner, device
        self.rate = 0.0  # a schedule's, which ranks compare
        self.agree_on(settings)

    def agree_on(self, settings: dict[str, Any]) -> None:
        """Replace the settings that ranks must agree on."""
        self.settings = dict(settings)
        text = json.dumps([__version__, settings], sort_keys=True)
        # A checksum of the settings and the version, for ranks to compare. It is exact in float32.
        self.mark = float(zlib.crc32(text.encode()) & 0xFFFFFF)

    @property
    def distributed(self) -> bool:
        """Whether other ranks share the run."""
        return _DISTRIBUTED and dist.is_initialized() and dist.get_world_size(self.group) > 1

    def gather(self, mine: Tensor, updates: int) -> Tensor:
        """What each rank has sent, a row each."""
        everyone = mine.new_empty((dist.get_world_size(self.group), mine.numel()))
        try:
            dist.all_gather_into_tensor(everyone, mine.unsqueeze(0), group=self.group)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {dist.get_rank()} waited in vain for the losses of the other ranks, after {updates} updates: "
                f"{self.owner} exchanges them at each step, so every rank must make as many steps. Give the ranks "
                "equal shares of the data, as DistributedSampler(drop_last=True) does"
            ) from error
        return everyone

    def check(self, rows: list[list[float]]) -> None:
        """Raise RuntimeError if ranks are at different numbers of updates, or have different settings."""
        steps, marks, rates = ([row[i] for row in rows] for i in (3, 4, 5))
        who = f"ranks disagree: {self.owner} has different"
        if len(set(steps)) > 1:
            raise RuntimeError(f"{who} steps on them ({[int(x) for x in steps]} by rank)")
        if len(set(marks)) > 1:
            raise RuntimeError(f"{who} settings on them; this rank's are {self.settings}, of version {__version__}")
        if len(set(rates)) > 1:
            alike = "set base_lrs, and whatever sets a rate, alike on all ranks"
            raise RuntimeError(f"{who} rates on them, for the first group {rates} by rank: {alike}")


class Losses:
    """An update's observations on their way to the mean loss that a schedule acts on."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.pending: list[Observation] = []  # since the last update
        self.traced = False  # whether a loss came with a graph, so that this is training
        self._queue: deque[tuple[int, bool, Any]] = deque()  # update, whether it was made, and what gives its loss
        self._free: list[tuple[Tensor, HostCopy]] = []  # to use again: pinned memory and events are slow to make

    def observe(self, loss: Tensor | float, weight: float) -> None:
        """Put in the loss of a micro-batch, as a copy."""
        self.pending.append(observation := Observation.of(loss, weight).copy())
        self.traced = self.traced or observation.traced

    def read(
        self, loss: Tensor | float | None, clock: Any, updates: int
    ) -> tuple[int | None, list[tuple[int, float | None]]]:
        """Add this loss to the update's, and return ``(updates_made, [(update, mean_loss)])``.

        The first is what the clock says of the updates since the last call; then come the losses that can be read now
        without waiting (one, on a CPU). NaN: none was finite; None: none was given. Of an update that a GradScaler has
        skipped, a finite loss does not count. Broken weights make it skip every update, so NaN does.
        """
        observation = None if loss is None else Observation.of(loss, 1.0)
        if observation is not None and observation.traced:
            self.traced = True
        # Every rank gets here at every call, so a rank that alone skipped an update is found, and nobody waits for it.
        updates_made = clock.tick(self.traced)
        updates += updates_made or 0
        if observation is not None and not (self.pending or self._queue or (_DISTRIBUTED and dist.is_initialized())):
            x = observation.loss
            if (x.device.type if isinstance(x, Tensor) else "cpu") in AT_ONCE:  # the usual case on a CPU
                value = float(x) if math.isfinite(x) else math.nan
                return updates_made, [(updates, value)] if updates_made is not None or math.isnan(value) else []
        observations, self.pending = [*self.pending, *([] if observation is None else [observation])], []
        sums: Any = summed(observations, self._ranks, updates)
        kind = sums.device.type if isinstance(sums, Tensor) else "cpu"
        if kind != "cpu":
            content: Any = self._send(sums)
        else:
            content = mean_of(sums if isinstance(sums, list) else sums.tolist(), self._ranks)
        self._queue.append((updates, updates_made is not None, content))
        arrived = []
        while len(self._queue) > (0 if kind in AT_ONCE else LATE):
            at, counts, content = self._queue.popleft()
            mean = self._number(content)
            if counts or (mean is not None and not math.isfinite(mean)):
                arrived.append((at, mean))
        return updates_made, arrived

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_queue": deque(self._waiting()), "_free": []}

    def _waiting(self) -> list[tuple[int, bool, float | None]]:
        self._queue = deque((at, counts, self._number(content)) for at, counts, content in self._queue)
        return list(self._queue)

    def state_dict(self) -> dict[str, Any]:
        """The observations since the last update, and the losses that were not read yet. Waits for the device."""
        pending = [[float(loss), weight] for loss, weight, _ in self.pending]
        return {"pending": pending, "waiting": [list(one) for one in self._waiting()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.pending = [Observation(loss, weight) for loss, weight in state["pending"]]
        self._queue = deque((at, counts, loss) for at, counts, loss in state["waiting"])

    def _send(self, content: Tensor) -> tuple[Tensor, HostCopy]:
        like = content.shape, content.dtype, content.device
        alike = [one for one in self._free if (one[0].shape, one[0].dtype, one[0].device) == like]
        sent, copy = alike[0] if alike else (buffer := torch.empty_like(content), HostCopy(buffer))
        self._free = [one for one in self._free if one[1] is not copy]
        sent.copy_(content)
        copy.send()
        return sent, copy

    def _number(self, content: float | tuple[Tensor, HostCopy] | None) -> float | None:
        if not isinstance(content, tuple):
            return content
        self._free.append(content)
        return mean_of(content[1].wait(), self._ranks)


def mean_loss(observations: Sequence[Observation], ranks: Ranks, updates: int) -> float | None:
    """The weighted mean of the finite losses on all ranks, now; NaN if none was finite, None if there were none."""
    sums = summed(observations, ranks, updates)
    return mean_of(sums.tolist() if isinstance(sums, Tensor) else sums, ranks)


def summed(observations: Sequence[Observation], ranks: Ranks, updates: int) -> Tensor | list[Any]:
    """What the mean follows from: for each rank Σ weight·loss and Σ weight of finite losses, how many were not, …"""
    counted = [(loss, weight) for loss, weight, _ in observations if weight]
    away = [loss.device for loss, _ in counted if isinstance(loss, Tensor) and loss.device.type != "cpu"]
    sums: Any = [0.0, 0.0, 0.0]
    if away:
        dtype = torch.float32 if away[0].type == "mps" else torch.float64
        if len(counted) == 1 and not ranks.distributed:
            return counted[0][0].reshape(1).to(dtype)  # type: ignore[union-attr]  # one kernel
        sums = torch.zeros(3, dtype=dtype, device=away[0])
        for x, weight in counted:
            # Numbers are arguments of kernels; to copy them to the device would wait for it.
            is_away = isinstance(x, Tensor) and x.device.type != "cpu"
            loss: Any = x.to(away[0], dtype).reshape(()) if is_away else torch.full_like(sums[0], float(x))  # type: ignore[union-attr]
            good = loss.isfinite().to(dtype)
            sums += torch.stack([loss.nan_to_num(0.0, 0.0, 0.0) * weight, good * weight, 1.0 - good])
    else:
        for x, weight in counted:
            number = float(x)
            good = math.isfinite(number)
            sums = [sums[0] + weight * number, sums[1] + weight, sums[2]] if good else [*sums[:2], sums[2] + 1.0]
    if not ranks.distributed:
        return sums.unsqueeze(0) if away else [sums]
    sums = sums if away else torch.tensor(sums, dtype=torch.float64)
    rest = [torch.full_like(sums[:1], x) for x in (float(updates), ranks.mark, ranks.rate)]
    return ranks.gather(torch.cat([sums, *rest]).to(collective_device(ranks.group, ranks.device)), updates)


def mean_of(sums: list[Any], ranks: Ranks) -> float | None:
    """The mean of what `summed` returned. Every rank sums in rank order, so the results are bit-identical."""
    if not isinstance(sums[0], list):
        return sums[0] if math.isfinite(sums[0]) else math.nan
    if len(sums) > 1:
        ranks.check(sums)
    total, weight, bad = (sum(row[i] for row in sums) for i in range(3))
    return total / weight if weight > 0 else math.nan if bad else None
