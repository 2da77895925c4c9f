"""From a config to an optimizer."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import autowarm

from ..config import LabError, OptimizerConfig
from .peers import PEERS, make_peer

__all__ = ["make_optimizer"]

_CLASSES = {"muon": "Muon", "lion": "Lion", "signsgd": "SignSGD", "normsgd": "NormSGD"}


def make_optimizer(model: nn.Module, config: OptimizerConfig, process_group: Any = None) -> Optimizer:
    """The configured optimizer over the model's parameters, grouped by the library.

    Args:
        model: the network.
        config: which optimizer; its option `dtype` goes by torch's name, "float64".
        process_group: ranks that hold copies of the model and share Muon's work.

    Raises:
        LabError: the rate, weight decay or options do not suit the optimizer, or its package is missing.
    """
    options = dict(config.options)
    try:
        if config.name in PEERS:
            return make_peer(model, config)
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
