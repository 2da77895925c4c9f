"""Losses as users observe them, and their mean over micro-batches and ranks, the same on every rank."""

import json
import math
import numbers
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ._version import __version__
from .devices import check_member, collective_device

NO_BACKWARD = (
    "the closure ran no backward pass, or not through this model, or cleared the gradients: after it no tensor has a "
    "gradient"
)
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
            ValueError: the loss has more than one element or no value, or the weight is negative or not finite.
        """
        if type(weight) is not float or weight != 1.0:  # a tensor that equals 1 is no float, either
            weight = float(weight)
            if not (weight >= 0 and math.isfinite(weight)):
                raise ValueError(f"an observation's weight must be finite and not negative, got {weight}")
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise ValueError(
                    f"a loss has one element, got a tensor of shape {tuple(loss.shape)}: take its mean first"
                )
            if not loss.is_floating_point():
                raise TypeError(f"a loss is a real number, and no epoch, but got a tensor of {loss.dtype}")
            if loss.is_meta:
                raise ValueError("the loss is on the meta device and has no value: run the forward pass on a real one")
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
            if isinstance(loss, str | bytes | bytearray):  # which `float` would parse
                raise TypeError
            return cls(float(loss), weight)
        except (TypeError, ValueError):
            raise TypeError(f"a loss is a number or a one-element tensor, got {type(loss).__name__}") from None

    def kept(self) -> Self:
        """A copy to keep for later: loops may change their loss in place, as ``loss /= accumulation`` does."""
        return self._replace(loss=self.loss.clone()) if isinstance(self.loss, Tensor) else self


class Order:
    """Refuses the backward pass of a loss after the step that took it, from the first step on.

    If weights were restored in between, it would fail, or take gradients at weights that are gone. That it has not run
    yet cannot be asked in advance: of an update that a GradScaler skipped, gradients may be gone as well.

    Args:
        matters: whether weights may be restored.
    """

    def __init__(self, matters: bool) -> None:
        self._matters = matters
        self._watched = self._stepped = False

    def observed(self, loss: Tensor | float) -> None:
        """Watch this loss's backward pass, if it has one; the first update's losses tell the order of all."""
        if self._matters and not self._stepped and isinstance(loss, Tensor) and loss.requires_grad:
            self._watched = True
            loss.register_hook(self._refuse)

    def stepped(self) -> None:
        """The losses so far have been taken."""
        self._stepped = self._watched

    def _refuse(self, _: Tensor) -> None:
        if self._stepped:
            raise RuntimeError(
                "step() was called before loss.backward(), and may restore weights in between, with recover=True, "
                'peak="auto" or a SpikeGuard: call step(loss) after loss.backward(), before or after optimizer.step()'
            )


class Ranks:
    """The ranks that share a run, and the settings that they must agree on.

    Args:
        group: the ranks; None means all ranks, if `torch.distributed` is in use.
        settings: must be the same on all ranks.
        owner: what the settings belong to, for the messages.

    Attributes:
        may_join: whether a rank may run out of inputs before others, under `torch.distributed.algorithms.Join`.
        joined: whether this rank has. It then sends no loss, and takes the number of updates from the others.
        updates: the number of updates so far on the ranks that have inputs, as of the last exchange of a joined rank.
    """

    may_join = joined = False
    updates = 0

    def __init__(
        self, group: dist.ProcessGroup | None, settings: dict[str, Any], owner: str = "AdaptiveWarmup"
    ) -> None:
        check_member(group)
        self.group, self.owner = group, owner
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

    def gather(self, numbers: Tensor, updates: int) -> Tensor:
        """What each rank has sent, a row each; the last but one column is the number of updates, -1 if it joined."""
        everyone = numbers.new_empty((dist.get_world_size(self.group), numbers.numel()))
        try:
            dist.all_gather_into_tensor(everyone, numbers.unsqueeze(0), group=self.group)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {dist.get_rank()} waited in vain for the losses of the other ranks, after {updates} updates: "
                f"{self.owner} exchanges them at each step, so every rank must make as many steps. If ranks have "
                "uneven inputs, train within torch.distributed.algorithms.Join([model, scheduler])"
            ) from error
        if self.may_join:
            made = everyone[:, -2]
            made.copy_(torch.where(made < 0, made.max(), made))
            if self.joined:
                self.updates = int(made[0])
        return everyone


def mean_loss(observations: Sequence[Observation], ranks: Ranks, updates: int) -> float | None:
    """The weighted mean of the finite losses on all ranks; NaN if none was finite, None if there were none.

    If ranks are at different numbers of updates or have different settings, RuntimeError is raised on each.
    """
    total, weight, bad = 0.0, 0.0, 0.0
    for seen in observations:
        if not seen.weight:
            continue
        loss = float(seen.loss)
        if not math.isfinite(loss):
            bad += 1.0
        else:
            total += seen.weight * loss
            weight += seen.weight
    if ranks.distributed:
        total, weight, bad = _over_ranks(total, weight, bad, ranks, updates)
    if weight > 0:
        return total / weight
    return math.nan if bad else None


def is_broken(loss: float | None) -> bool:
    """Whether there is a mean loss, and it is not finite."""
    return loss is not None and not math.isfinite(loss)


def _over_ranks(total: float, weight: float, bad: float, ranks: Ranks, updates: int) -> tuple[float, float, float]:
    device = collective_device(ranks.group)
    made = -1.0 if ranks.joined else float(updates)
    mine = torch.tensor([total, weight, bad, made, ranks.mark], dtype=torch.float64, device=device)
    rows = ranks.gather(mine, updates).tolist()
    for column, what in ((3, "steps"), (4, "settings")):
        values = [row[column] for row in rows]
        if len(set(values)) > 1:
            detail = (
                f" ({[int(v) for v in values]} by rank)"
                if what == "steps"
                else f"; this rank's are {ranks.settings}, of version {__version__}"
            )
            raise RuntimeError(f"ranks disagree: {ranks.owner} has different {what} on them{detail}")
    # Every rank sums in rank order, so the results are bit-identical.
    return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)
