"""From the micro-batches of all ranks to one loss, the same number on every rank."""

import json
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor

from .. import __version__

__all__ = ["Observation", "in_company", "mark_of", "reduce_observations"]


class Observation(NamedTuple):
    """One micro-batch's loss, still on its device, and its weight."""

    loss: Tensor | float
    weight: float
    traced: bool = False  # the loss came with a graph: this is training

    @classmethod
    def of(cls, loss: Tensor | float, weight: float) -> Self:
        """Check and detach.

        Raises:
            TypeError: the loss is neither a number nor a tensor, or it is an int, as code that counts epochs has.
            ValueError: it has more than one element, or the weight is negative or not finite.
        """
        weight = float(weight)
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"an observation's weight must be finite and not negative, got {weight}")
        if isinstance(loss, int):
            raise TypeError(f"a loss, not an epoch, is needed, and got the int {loss}: pass a float or tensor")
        traced = False
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise ValueError(
                    f"a loss has one element, got a tensor of shape {tuple(loss.shape)}: take its mean first"
                )
            traced, loss = loss.requires_grad, loss.detach()
            # A DTensor's value is the whole mesh's.
            if type(loss) is not Tensor and hasattr(loss, "full_tensor"):  # the first spares a plain one the second
                loss = loss.full_tensor()
        else:
            try:
                loss = float(loss)
            except (TypeError, ValueError):
                raise TypeError(f"a loss is a number or a one-element tensor, got {type(loss).__name__}") from None
        return cls(loss, weight, traced)

    def kept(self) -> Self:
        """With a loss of its own, for later: loops go on to write into theirs, as `loss /= accumulation` does."""
        return self._replace(loss=self.loss.clone()) if isinstance(self.loss, Tensor) else self


def in_company(group: dist.ProcessGroup | None) -> bool:
    """Whether other ranks take part; None is all ranks, where `torch.distributed` is in use."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def mark_of(settings: dict[str, Any]) -> float:
    """A number that tells settings and versions apart, for ranks to compare; exact in float32."""
    return float(zlib.crc32(json.dumps([__version__, settings], sort_keys=True).encode()) & 0xFFFFFF)


def reduce_observations(
    observations: Sequence[Observation], group: dist.ProcessGroup | None, agreed: tuple[int, float, dict[str, Any]]
) -> float | None:
    """The weighted mean of the finite losses on all ranks.

    Args:
        observations: this rank's, possibly none.
        group: the ranks that take part; None for all, where `torch.distributed` is in use.
        agreed: the step, and the settings' mark (`mark_of`), which must be the same on all ranks; and the settings, to
            be named where they are not.

    Returns:
        The mean; NaN if there were losses and none was finite; None if there were none.

    Raises:
        RuntimeError: on every rank, if ranks are at different steps or have different settings.
    """
    total, weight, bad = 0.0, 0.0, 0.0
    for seen in observations:
        loss = float(seen.loss)
        if not math.isfinite(loss):
            bad += 1.0
        elif seen.weight:
            total += seen.weight * loss
            weight += seen.weight
    if in_company(group):
        total, weight, bad = _over_ranks(total, weight, bad, group, agreed)
    if weight > 0:
        return total / weight
    return math.nan if bad else None


def _over_ranks(
    total: float, weight: float, bad: float, group: dist.ProcessGroup | None, agreed: tuple[int, float, dict[str, Any]]
) -> tuple[float, float, float]:
    step, mark, settings = agreed
    nccl = "nccl" in str(dist.get_backend(group))
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    mine = torch.tensor([total, weight, bad, float(step), mark], dtype=torch.float64, device=device)
    everyone = torch.empty((dist.get_world_size(group), mine.numel()), dtype=mine.dtype, device=device)
    dist.all_gather_into_tensor(everyone, mine.unsqueeze(0), group=group)
    rows = everyone.tolist()
    for column, what in ((3, "steps"), (4, "settings")):
        values = [row[column] for row in rows]
        if len(set(values)) > 1:
            detail = (
                f" ({[int(v) for v in values]} by rank)"
                if what == "steps"
                else f"; this rank's are {settings}, of version {__version__}"
            )
            raise RuntimeError(f"ranks disagree: AdaptiveWarmup has different {what} on them{detail}")
    # Summed in rank order on every rank: the same number to the bit.
    return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)
