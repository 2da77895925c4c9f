"""The metrics that the adapters log."""

from ..schedule import AdaptiveWarmup

__all__ = ["loggable_metrics"]


def loggable_metrics(scheduler: AdaptiveWarmup, prefix: str = "autowarm") -> dict[str, float]:
    """Return `AdaptiveWarmup.metrics` in a form that every logger accepts: numbers only, named ``autowarm/…``.

    The phase is 1 in decay, and 0 in warm-up. Values that are text or not yet known are left out.

    Args:
        scheduler: the scheduler.
        prefix: prefix of the names.

    Example:
        >>> import torch
        >>> from autowarm import AdaptiveWarmup, Lion
        >>> from autowarm.integrations.metrics import loggable_metrics
        >>> opt = Lion(torch.nn.Linear(4, 4).parameters(), lr=1e-2)
        >>> metrics = loggable_metrics(AdaptiveWarmup(opt, 100))
        >>> metrics["autowarm/phase"], metrics["autowarm/lr"]
        (0, 0.001)
    """
    metrics = scheduler.metrics()
    numbers = metrics | {"phase": int(metrics["phase"] == "decay")}
    return {f"{prefix}/{name}": value for name, value in numbers.items() if isinstance(value, int | float)}
