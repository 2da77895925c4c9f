"""The range test: a few updates at rising rates, of which nothing remains but the curve."""

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ..schedule.rule.reduce import Observation, Ranks, reduce_observations
from .curve import RateSearch, has_broken
from .restore import restored

__all__ = ["find_rate"]


def find_rate(
    model: nn.Module,
    optimizer: Optimizer,
    closure: Callable[[], Tensor | float],
    *,
    lowest: float = 1e-6,
    highest: float = 100.0,
    steps: int = 100,
    scaler: GradScaler | None = None,
    also: Iterable[Any] = (),
    offload: bool = False,
    process_group: dist.ProcessGroup | None = None,
) -> RateSearch:
    """Train a few steps at rates that rise from far too small to far too large, and put everything back.

    The range test is L. N. Smith's (https://arxiv.org/abs/1506.01186); how a rate is read off the losses is our own,
    see `RateSearch`. A rate is that of the first parameter group whose rate is not 0; the others keep their ratios to
    it, by ``initial_lr`` where a scheduler has left one. The search ends early once the loss has broken.

    Afterwards weights, buffers, gradients, the optimizer's state and options, the scaler and the random number
    generators (Python's, NumPy's, PyTorch's on the CPU and on accelerators) are as before, to the bit; also after an
    exception or Ctrl-C. A scheduler on the optimizer is not stepped, and an `AdaptiveWarmup` does not count these
    updates. For the same batches afterwards make an iterator for the search alone, as below: what it drew from the
    generators is put back.

    The search holds one copy of weights, buffers and optimizer state meanwhile, of a new optimizer therefore one of
    the weights; it takes as many updates as are in 1 % of a run of 10,000.

    Args:
        model: the trained module, wrapped or not (DDP, FSDP2).
        optimizer: any, with any number of parameter groups; its rates do not matter, but for their ratios.
        closure: runs forward and backward on the *next* mini-batch, all of its micro-batches, and returns the mean
            loss. It starts without gradients. Clip in it, if you clip.
        lowest, highest: the first rate and the last, some decades below and above what may be right.
        steps: updates at most.
        scaler: where the closure scales the loss; it takes the steps. Unscale in the closure before you clip.
        also: what else the closure changes: a `torch.Generator`, or anything with ``state_dict`` and
            ``load_state_dict``.
        offload: keep the copies in the host's memory.
        process_group: ranks over which losses are averaged; None for all, where `torch.distributed` is in use. All
            ranks call this with the same arguments and end at the same step with the same result.

    Raises:
        ValueError: a number is out of range, every group's rate is 0, or the closure ran out of batches.
        TypeError: the closure returns no loss.
        RuntimeError: ranks disagree.

    Example:
        >>> import torch
        >>> from autowarm import Muon, find_rate
        >>> _ = torch.manual_seed(0)
        >>> data = torch.utils.data.TensorDataset(torch.randn(4096, 8))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
        >>> model = torch.nn.Linear(8, 8)
        >>> opt = Muon.from_model(model, lr=1.0)
        >>> batches = iter(loader)
        >>> def closure():
        ...     [x] = next(batches)
        ...     loss = (model(x) - x).square().mean()
        ...     loss.backward()
        ...     return loss
        >>> found = find_rate(model, opt, closure)
        >>> 0.001 < found.interval[0] < found.suggestion < found.interval[1] < 10
        True
        >>> opt = Muon.from_model(model, lr=found.suggestion)
    """
    steps = _checked(lowest, highest, steps)
    rates = np.geomspace(lowest, highest, steps)
    ranks = Ranks(process_group, {"lowest": lowest, "highest": highest, "steps": steps}, owner="find_rate")
    losses: list[float] = []
    with restored(model, optimizer, [scaler, *also] if scaler is not None else also, offload=offload):
        shares = _shares(optimizer)
        for i, rate in enumerate(rates):
            for group, share in zip(optimizer.param_groups, shares, strict=True):
                _set_rate(group, float(rate) * share)
            optimizer.zero_grad()
            try:
                seen = Observation.of(closure(), 1.0)
            except StopIteration:
                raise ValueError(
                    f"the batches ended after {i} of {steps} steps: let the closure start over, or pass steps={i}"
                ) from None
            loss = reduce_observations([seen], ranks, i)
            losses.append(math.nan if loss is None else loss)
            if has_broken(losses, steps):
                break
            with _quietly():
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
    return RateSearch(rates[: len(losses)], np.array(losses), broken=has_broken(losses, steps))


def _checked(lowest: float, highest: float, steps: int) -> int:
    if not (0 < lowest < highest < math.inf):
        raise ValueError(f"rates rise from lowest > 0 to highest, finite and above it; got {lowest} and {highest}")
    try:
        whole = operator.index(steps)
    except TypeError:
        raise ValueError(f"steps must be a whole number ≥ 20, got {steps!r}") from None
    if isinstance(steps, bool) or whole < 20:
        raise ValueError(f"steps must be a whole number ≥ 20, got {steps!r}: fewer cannot tell a fall from noise")
    return whole


def _shares(optimizer: Optimizer) -> list[float]:
    """Each group's rate in parts of the first that is not 0."""
    peaks = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    unit = next((peak for peak in peaks if peak > 0), None)
    if unit is None:
        raise ValueError(f"a parameter group needs an lr above 0, which sets the ratios between groups; got {peaks}")
    return [peak / unit for peak in peaks]


def _set_rate(group: dict[str, Any], rate: float) -> None:
    """Into a tensor where the group has one: a compiled step reads it there."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


@contextmanager
def _quietly() -> Iterator[None]:
    """Gradients that are not finite are what the highest rates are for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*a gradient is not finite")
        yield
