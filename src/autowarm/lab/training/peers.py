"""Optimizers to compare with: AdamW, and three that do without a hand-set rate or schedule.

They are their authors' own packages (extra `peers`) and decay the weights that our own optimizers decay, no others.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from autowarm.optim import partition

from ..config import LabError, OptimizerConfig


def _schedule_free(groups: list[dict[str, Any]], **options: Any) -> Optimizer:
    from schedulefree import AdamWScheduleFree

    return AdamWScheduleFree(groups, **options)


def _prodigy(groups: list[dict[str, Any]], **options: Any) -> Optimizer:
    from prodigyopt import Prodigy

    return Prodigy(groups, **options)


def _d_adaptation(groups: list[dict[str, Any]], **options: Any) -> Optimizer:
    from dadaptation import DAdaptAdam

    return DAdaptAdam(groups, **{"decouple": True, **options})


PEERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": AdamW, "schedule-free": _schedule_free, "prodigy": _prodigy, "d-adaptation": _d_adaptation,
}  # fmt: skip


def make_peer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The named peer over the model's parameters.

    Raises:
        LabError: its package is not installed.
    """
    parts = partition(model)
    decayed, spared = parts.matrices + parts.stacks + parts.heads, parts.embeddings + parts.vectors
    groups = [
        {"params": [p for _, p in some], "weight_decay": decay}
        for some, decay in ((decayed, config.weight_decay), (spared, 0.0))
        if some
    ]
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # D-Adaptation announces its kind of weight decay
            optimizer = PEERS[config.name](groups, lr=config.lr, **config.options)
    except ImportError as error:
        raise LabError(
            f"the optimizer {config.name} needs the package {error.name}: pip install 'autowarm[peers]'"
        ) from None
    if hasattr(optimizer, "train"):
        optimizer.train()  # Schedule-Free keeps two sets of weights: one to train at, one to evaluate at
    return optimizer


@contextmanager
def evaluating(optimizer: Optimizer) -> Iterator[None]:
    """The weights that the optimizer wants judged, and afterwards those it trains at."""
    averages = hasattr(optimizer, "eval") and hasattr(optimizer, "train")
    if averages:
        optimizer.eval()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if averages:
            optimizer.train()  # type: ignore[attr-defined]
