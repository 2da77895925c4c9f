"""What the plug-ins log."""

from ..schedule import AdaptiveWarmup

__all__ = ["loggable_metrics"]


def loggable_metrics(scheduler: AdaptiveWarmup, prefix: str = "autowarm") -> dict[str, float]:
    """`AdaptiveWarmup.metrics` as every logger takes them: numbers alone, named ``autowarm/…``.

    The phase is 0 in warm-up and 1 in decay. What is not known yet, or is text, is left out.

    Args:
        scheduler: whose metrics.
        prefix: what their names begin with.

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
