"""Learning-rate warm-up that ends by itself, for any PyTorch optimizer.

- `AdaptiveWarmup`: a learning-rate scheduler that needs no ``warmup_steps``. `find_rate` suggests its peak rate.
- `SpikeGuard`: recovery from loss spikes beside any other scheduler.
- `Muon`, `Lion`, `SignSGD`, `NormSGD`: optimizers. `LMO`: the general form, with any geometry for each group.
- `replay`: where `AdaptiveWarmup` would have ended the warm-up of a past run, from its log (`autowarm.logs`).
- `autowarm.geometry`, `autowarm.schedule`, `autowarm.theory`: the paper's norms, schedule and theorems as code.
- `autowarm.smoothness`: the curvature along your own run.
- `autowarm.integrations`: adapters for transformers, Lightning and Accelerate.
- `autowarm.jax`: the default rule as an optax transformation.
- `autowarm.lab`: the experiments, behind the ``autowarm`` command. Nothing outside it imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from .logs import replay as replay
    from .optim import LMO as LMO
    from .optim import Lion as Lion
    from .optim import Muon as Muon
    from .optim import NormSGD as NormSGD
    from .optim import SignSGD as SignSGD
    from .rate import find_rate as find_rate
    from .schedule import AdaptiveWarmup as AdaptiveWarmup
    from .schedule import SpikeGuard as SpikeGuard

__all__ = ["LMO", "AdaptiveWarmup", "Lion", "Muon", "NormSGD", "SignSGD", "SpikeGuard", "find_rate", "replay"]

_HOMES = dict.fromkeys(__all__, "optim") | {
    "AdaptiveWarmup": "schedule", "SpikeGuard": "schedule", "find_rate": "rate", "replay": "logs"
}  # fmt: skip
_ROOMS = ("geometry", "integrations", "lab", "logs", "optim", "orthogonalize", "rate", "schedule", "smoothness",
          "theory")  # fmt: skip


def __getattr__(name: str) -> object:
    # torch takes seconds to import, and `autowarm --help` does not need it: each name is imported at its first use.
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
