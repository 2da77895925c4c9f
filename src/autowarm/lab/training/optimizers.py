"""Makes optimizers from their configs: the library's own, and peers for comparison from their authors' packages."""

import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autowarm._torch.undisturbed import generators, set_generators
from autowarm.optim import partition
from autowarm.rate.restore import Keeper

from ..config import OptimizerConfig, UsageError
from ..errors import needs
from ..registry import OPTIMIZERS
from .authors import add_eps_before_correction, seed_momenta


def make_optimizer(model: nn.Module, config: OptimizerConfig, process_group: Any = None) -> Optimizer:
    """Make the configured optimizer for the model's parameters, grouped by the library.

    Ranks of a process group hold copies of the model and split Muon's work.
    """
    entry = OPTIMIZERS[config.name]
    with needs(f"the optimizer {config.name}", "peers"):
        make = resolve_name(entry.place)
    options: dict[str, Any] = {**entry.defaults, **config.options}
    seeded = options.pop("momentum_init", "zeros") if config.name in ("signsgd", "normsgd") else "zeros"
    eps_hat = options.pop("adamw_eps_hat", False) if config.name == "muon" else False
    if seeded not in ("zeros", "weights") or not isinstance(eps_hat, bool):
        need = "momentum_init is zeros or weights, adamw_eps_hat true or false"
        raise UsageError(f"optimizer.options: {need}, got {config.options}")
    try:
        if hasattr(make, "from_model"):
            if "dtype" in options:  # by torch's name, such as "float64"
                options["dtype"] = getattr(torch, str(options["dtype"]))
            if process_group is not None and "process_group" in inspect.signature(make).parameters:
                options["process_group"] = process_group
            optimizer: Optimizer = make.from_model(model, lr=config.lr, weight_decay=config.weight_decay, **options)
        else:
            parts = partition(model, heads=[])  # a peer decays the same weights as our own optimizers
            kinds = ((parts.matrices + parts.stacks + parts.depthwise, config.weight_decay),
                     (parts.embeddings + parts.vectors, 0.0))  # fmt: skip
            named = [{"params": some, "weight_decay": decay, "role": ""} for some, decay in kinds]
            groups = [{"params": [p for _, p in group["params"]], "weight_decay": group["weight_decay"]}
                      for group in parts.by_decay(named)]  # fmt: skip
            with contextlib.redirect_stdout(io.StringIO()):  # D-Adaptation announces its kind of weight decay
                optimizer = make(groups, lr=config.lr, **options)
    except (TypeError, ValueError, AttributeError, re.error) as error:
        raise UsageError(f"optimizer: lr {config.lr}, weight_decay {config.weight_decay} and options {config.options} "
                         f"do not suit {config.name}: {error}") from None  # fmt: skip
    if seeded == "weights":
        seed_momenta(optimizer)
    if eps_hat:
        add_eps_before_correction(optimizer)
    if hasattr(optimizer, "train"):
        optimizer.train()  # Schedule-Free has one set of weights for training and one for evaluation
    return optimizer


@contextmanager
def evaluating(optimizer: Any) -> Iterator[None]:
    """Switch to the optimizer's weights for evaluation, and afterwards back to those for training."""
    if not (hasattr(optimizer, "eval") and hasattr(optimizer, "train")):
        yield
        return
    before = [(p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"]]
    optimizer.eval()
    try:
        yield
    finally:
        optimizer.train()
        for p, weights in before:  # Schedule-Free computes them anew, with a rounding error
            p.detach().copy_(weights)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Afterwards put back all that forward passes change: buffers, attributes of modules and global generators."""
    keep, before = Keeper(offload=False), generators()
    for part in (*model.parameters(), *(module._parameters for module in model.modules())):
        keep.leave(part)
    restores = [keep(vars(module)) for module in model.modules()]
    try:
        yield
    finally:
        for restore in restores:
            restore()
        set_generators(before)
