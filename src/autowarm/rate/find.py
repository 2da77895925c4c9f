"""The range test: a few updates at rising rates, after which everything is restored."""

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ..losses import Observation, Ranks, mean_loss, run_closure
from ..optim import Together
from ..others.wrapped import inside, unwrapped
from .restore import restored
from .search import RateSearch, has_broken

_LEAST_STEPS = 20

L = TypeVar("L")


def find_rate(
    model: nn.Module,
    optimizer: Optimizer,
    closure: Callable[[], Tensor | float] | None = None,
    *,
    total_steps: int = 10_000,
    lowest: float = 1e-6,
    highest: float = 100.0,
    steps: int = 100,
    process_group: dist.ProcessGroup | None = None,
) -> RateSearch:
    """Suggest a peak rate: train a few steps at rising rates, then restore everything.

    This is L. N. Smith's range test (https://arxiv.org/abs/1506.01186); `RateSearch` explains how it reads a rate off
    the losses, which is our own method. The rates in the result are those of the first parameter group whose rate is
    not 0. The other groups keep their ratios to it, by ``initial_lr`` if a scheduler has set one. The search ends early
    once the loss breaks. A single non-finite loss is dropped, and no step is made from it; a second in a row is a
    break.

    Afterwards the weights, buffers, gradients, the optimizer's state and options and the random number generators
    (Python's, NumPy's, PyTorch's on the CPU and on accelerators) are bit-identical to before, even after an exception
    or Ctrl-C. Schedulers on the optimizer do not step, and an `AdaptiveWarmup` does not count these updates.
    Make a separate iterator for the search, as below: the generators are restored, so training then sees the same
    batches again.

    Meanwhile the search keeps one copy of the weights, the buffers and the optimizer's state; a new optimizer has no
    state yet. The default 100 updates are 1 % of a run of 10,000.

    Args:
        model: the module to train, wrapped (DDP, FSDP2) or not.
        optimizer: any optimizer, with any number of parameter groups. Only the ratios of its rates matter.
        closure: runs forward and backward on the *next* mini-batch, with all its micro-batches, and returns the mean
            loss. Gradients are cleared before each call. If you clip gradients, clip them here.
        total_steps: the number of updates in the run that the rate is for; four times as many halve the suggestion.
        lowest, highest: the first and the last rate, some decades below and above any plausible one.
        steps: the most updates to make.
        process_group: ranks over which losses are averaged; None for all ranks, if `torch.distributed` is in use. All
            ranks must call this with the same arguments; they end at the same step with the same result.

    Raises:
        ValueError: a number is out of range, every group's rate is 0, or the closure ran out of batches, ran no
            backward pass, or steps the optimizer.
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
        >>> search = find_rate(model, opt, closure, total_steps=1000)
        >>> 0.0001 < search.interval[0] < search.suggestion < search.interval[1] < 10
        True
        >>> opt = Muon.from_model(model, lr=search.suggestion)
    """
    if not callable(closure) or not isinstance(model, nn.Module) or not hasattr(optimizer, "param_groups"):
        got = ", ".join(type(one).__name__ for one in (model, optimizer, closure) if one is not None)
        raise TypeError(
            "the order is find_rate(model, optimizer, closure), where closure() runs the next batch forward and "
            f"backward and returns its loss, got ({got})"
        )
    lowest, highest = float(lowest), float(highest)
    if not (0 < lowest < highest < math.inf):
        raise ValueError(f"rates rise from lowest > 0 to highest, finite and above it; got {lowest} and {highest}")
    steps = _whole("steps", steps, _LEAST_STEPS, ": fewer tell no fall from noise")
    total_steps = _whole("total_steps", total_steps, 1)
    rates = np.geomspace(lowest, highest, steps)
    settings = {"lowest": lowest, "highest": highest, "steps": steps, "total_steps": total_steps}
    ranks = Ranks(process_group, settings, owner="find_rate")
    losses: list[float] = []
    doubt = False  # whether the last loss was not finite
    # Accelerate's optimizer may have a scaler, which skips gradients that are not finite, but must see them.
    scaled = isinstance(scaler := getattr(optimizer, "scaler", None), GradScaler) and scaler.is_enabled()
    with restored(model, optimizer):
        core = unwrapped(optimizer)  # by whose rates the steps are made
        peaks = [float(group.get("initial_lr", group["lr"])) for group in core.param_groups]
        if (unit := next((peak for peak in peaks if peak > 0), None)) is None:
            raise ValueError(f"a parameter group needs an lr above 0, which sets the groups' ratios; got {peaks}")
        closure, params = _checked_closure(closure, optimizer)
        while (i := len(losses)) < steps:
            for group, peak in zip(core.param_groups, peaks, strict=True):
                set_rate(group, float(rates[i]) * (peak / unit))
            optimizer.zero_grad()
            try:
                observation = Observation.of(run_closure(closure, params) if params else closure(), 1.0)
            except StopIteration:
                fewer = f", or pass steps={i}" if i >= _LEAST_STEPS else ""
                raise ValueError(
                    f"the batches ended after {i} of {steps} steps: let the closure start over{fewer}"
                ) from None
            # NaN if one rank's loss is not finite, for all of them then share its gradients.
            bad = Observation(float(not math.isfinite(observation.loss)), 1.0)
            mean = math.nan if mean_loss([bad], ranks, i) else mean_loss([observation], ranks, i)
            loss = math.nan if mean is None else mean
            before, doubt = doubt, not math.isfinite(loss)
            if before or not doubt:  # a bad batch gives one such loss, but broken weights give a second
                losses.append(loss)
                if has_broken(losses, steps):
                    break
            elif not scaled:
                continue
            with warnings.catch_warnings():
                # The highest rates are expected to give such gradients.
                warnings.filterwarnings("ignore", message=".*a gradient is not finite")
                optimizer.step()
    return RateSearch(rates[: len(losses)], np.array(losses), has_broken(losses, steps), total_steps)


def _checked_closure(closure: Callable[[], L], optimizer: Optimizer) -> tuple[Callable[[], L], list[Tensor]]:
    """The closure, which raises ValueError if it steps the optimizer, and the tensors that then have gradients.

    A wrapper may step in the backward pass, which leaves no gradients.
    """
    within = inside(optimizer)
    if within != [optimizer] and not isinstance(optimizer, Together):
        return closure, []
    steps: list[Any] = []
    for one in within:
        one.register_step_post_hook(lambda stepped, *_: steps.append(stepped))

    def checked() -> L:
        steps.clear()
        loss = closure()
        if steps:
            raise ValueError(
                "the closure steps the optimizer, which find_rate does: let it run forward and backward only"
            )
        return loss

    return checked, [p for group in optimizer.param_groups for p in group["params"]]


def _whole(name: str, value: Any, least: int, why: str = "") -> int:
    value = int(value) if isinstance(value, float) and value.is_integer() else value  # 1e4
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be a whole number ≥ {least}, got {value!r}{why}")
    return operator.index(value)


def set_rate(group: dict[str, Any], rate: float | Tensor) -> None:
    """Write a rate into the group's tensor, if it has one: a compiled step reads it there."""
    if not isinstance(group["lr"], Tensor):
        group["lr"] = float(rate)
    elif isinstance(rate, Tensor):
        group["lr"].copy_(rate)
    else:
        group["lr"].fill_(rate)
