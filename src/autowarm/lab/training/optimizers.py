"""Makes optimizers from their configs: the library's own, and peers for comparison from their authors' packages."""

import contextlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer, RAdam

import autowarm
from autowarm.optim import partition

from ..config import LabError, OptimizerConfig

__all__ = ["evaluating", "make_optimizer"]

_CLASSES = {"muon": "Muon", "lion": "Lion", "signsgd": "SignSGD", "normsgd": "NormSGD"}


def make_optimizer(model: nn.Module, config: OptimizerConfig, process_group: Any = None) -> Optimizer:
    """Make the configured optimizer for the model's parameters, grouped by the library.

    Args:
        model: the network.
        config: the optimizer; its option `dtype` is torch's name, such as "float64".
        process_group: ranks that hold copies of the model and split Muon's work.

    Raises:
        LabError: the rate, weight decay or options do not suit the optimizer, or its package is missing.
    """
    options = dict(config.options)
    try:
        if config.name not in _CLASSES:
            return _peer(model, config)
        if "dtype" in options:
            options["dtype"] = getattr(torch, str(options["dtype"]))
        if config.name == "muon" and process_group is not None:
            options["process_group"] = process_group
        make = getattr(autowarm, _CLASSES[config.name]).from_model
        optimizer: Optimizer = make(model, lr=config.lr, weight_decay=config.weight_decay, **options)
    except (TypeError, ValueError, AttributeError) as error:
        raise LabError(
            f"optimizer: lr {config.lr}, weight_decay {config.weight_decay} and options {config.options} do not suit "
            f"{config.name}: {error}"
        ) from None
    return optimizer


def _peer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """Make the named peer. It decays the same weights as our own optimizers."""
    parts, options = partition(model), dict(config.options)
    decayed, spared = parts.matrices + parts.stacks + parts.depthwise + parts.heads, parts.embeddings + parts.vectors
    groups = [
        {"params": [p for _, p in some], "weight_decay": decay}
        for some, decay in ((decayed, config.weight_decay), (spared, 0.0))
        if some
    ]
    kind: Any = AdamW
    try:
        if config.name == "schedule-free":
            import schedulefree

            kind = schedulefree.AdamWScheduleFree
        elif config.name == "prodigy":
            import prodigyopt

            kind = prodigyopt.Prodigy
        elif config.name == "radam":
            kind = partial(RAdam, decoupled_weight_decay=True)
        elif config.name == "d-adaptation":
            import dadaptation

            kind = dadaptation.DAdaptAdam
            options.setdefault("decouple", True)
        elif config.name == "dog":
            from .dog import AveragedDoG

            kind = partial(AveragedDoG, model)
            if not config.weight_decay:
                groups = [{"params": list(model.parameters()), "weight_decay": 0.0}]  # one rate, as in its paper
    except ImportError as error:
        raise LabError(
            f"the optimizer {config.name} needs the package {error.name}: pip install 'autowarm[peers]'"
        ) from None
    with contextlib.redirect_stdout(io.StringIO()):  # D-Adaptation announces its kind of weight decay
        optimizer: Optimizer = kind(groups, lr=config.lr, **options)
    if hasattr(optimizer, "train"):
        optimizer.train()  # Schedule-Free has one set of weights for training and one for evaluation
    return optimizer


@contextmanager
def evaluating(optimizer: Any) -> Iterator[None]:
    """Switch to the optimizer's weights for evaluation, and afterwards back to those for training."""
    averages = hasattr(optimizer, "eval") and hasattr(optimizer, "train")
    if averages:
        optimizer.eval()
    try:
        yield
    finally:
        if averages:
            optimizer.train()
